"""`vox-mesh console`: open the web console of a node, signed in by a one-time code."""

from __future__ import annotations

import asyncio
import getpass
import os
import subprocess
import sys
import webbrowser
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import json_option, printable, show_lines, show_one
from vox_mesh.cli.support.session import start_quickly
from vox_mesh.errors import BadSettings, NoAnswer, NotKnown
from vox_mesh.model.base.addresses import host_of, is_loopback
from vox_mesh.model.base.reserved import person_agent, safe_person_name
from vox_mesh.nodes.node_sockets import FILE, find_served_socket, is_served
from vox_mesh.store.files import replace_private
from vox_mesh.store.slots import slot_folder

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

_UNIX: Final = "unix:"
_PATH: Final = "/ui/#code="
_REDIRECT: Final = "console.html"
_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")
_TIMEOUT_S: Final = 10.0
_GIT_S: Final = 2.0


@click.command()
@click.option("--name", metavar="NAME", help="Your name in the op log.", show_default="that of git, or $USER")
@click.option("--read-only", is_flag=True, help="Sign in to look, and change nothing.")
@click.option(
    "--node",
    metavar="NODE",
    help="Id of a node of this home, or an address as in VOX_MESH_NODE.",
    show_default="one that runs here",
)
@click.option("--no-open", is_flag=True, help="Print the address; open no browser.")
@json_option
def console(name: str | None, read_only: bool, node: str | None, no_open: bool, as_json: bool) -> int:
    """Open the web console of a node in a browser.

    It prints an address with a code, which signs you in once, within a minute. The browser must reach the
    node over https or on the same machine; from elsewhere, forward its port with ssh.

    The node is the one that runs here, or at VOX_MESH_NODE; an address of another machine needs
    VOX_MESH_TOKEN. What you do is in the op log, as person:NAME.

    \b
    Example:
      vox-mesh console --name alice --no-open
    """
    settings = start_quickly("console", through_node=True)
    _refuse_agents(settings)
    person = name if name is not None else _own_name()
    person_agent(person)
    address = _address_of(settings, node)
    answer = asyncio.run(_ask_for_code(settings, address, {"name": person, "read_only": read_only}))
    url = _url_in(answer, address)
    shown = {"url": url, "node_id": answer.get("node_id"), "name": person, "read_only": read_only}
    if as_json:
        show_one({**shown, "expires_in_s": answer.get("expires_in_s")}, as_json=True)
        return ExitCode.DONE
    show_lines([printable(url)])
    if not (url.startswith("https:") or is_loopback(host_of(url))):
        click.echo("browsers sign in over https, or on this machine: put TLS before the node", err=True)
    elif not no_open and _has_display():
        _open(settings.home_dir, url)
    return ExitCode.DONE


def _refuse_agents(settings: Settings) -> None:
    """Raise `BadSettings` if an agent runs this: the console is for people."""
    found = "VOX_AGENT_ID" if settings.agent_id is not None else "VOX_AGENT_TOKEN"
    if settings.agent_id is not None or settings.agent_token is not None:
        raise BadSettings(
            f"`vox-mesh console` must be run by a person, and {found} is set", hint=f"unset {found}"
        )


def _own_name() -> str:
    """Return the name of the user, from git's settings of the user or from the system."""
    name = safe_person_name(_git_name()) or safe_person_name(_user())
    if not name:
        raise BadSettings("no name given", hint="pass --name NAME")
    return name


def _git_name() -> str:
    """Return the name in the user's settings of git. Those of a repository do not count."""
    command = ["git", "config", "--global", "--get", "user.name"]
    try:
        found = subprocess.run(command, capture_output=True, timeout=_GIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.decode(errors="replace")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _address_of(settings: Settings, node: str | None) -> str:
    """Return the address of the node. Raises `NotKnown` if none runs."""
    if node is not None and ":" not in node:
        path = (slot_folder(settings.home_dir, node) / FILE).absolute()
        if not is_served(path):
            raise NotKnown(f"node {node!r} does not run here", hint="see `vox-mesh nodes`, or start it")
        return f"{_UNIX}{path}"
    given = node or settings.node
    if given is not None:
        return given.partition("#")[0].rstrip("/")
    found = find_served_socket(settings.home_dir)
    if found is None:
        raise NotKnown("no node runs here", hint="start one with `vox-mesh up`")
    return f"{_UNIX}{found}"


async def _ask_for_code(settings: Settings, address: str, body: dict[str, Any]) -> dict[str, Any]:
    import httpx  # imported late: slow, and not needed if no node runs

    from vox_mesh.client.connection import transport_of
    from vox_mesh.client.problem_errors import error_of

    transport, base = transport_of(address)
    headers = {} if address.startswith(_UNIX) else _token_for(settings, address)
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx.AsyncClient(
                base_url=base, transport=transport, headers=headers, timeout=_TIMEOUT_S, trust_env=False
            ) as client,
        ):
            answer = await client.post("/ui/codes", json=body)
        document = answer.json()
    except (TimeoutError, httpx.TransportError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise NoAnswer(f"node at {address} did not answer: {reason}", hint="check that it runs") from None
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise NotKnown(
            f"node at {address} has no console", hint="start it with VOX_MESH_UI=1, and the newest version"
        )
    if not answer.is_success:
        raise error_of(answer.status_code, document if isinstance(document, dict) else {})
    return document if isinstance(document, dict) else {}


def _token_for(settings: Settings, address: str) -> dict[str, str]:
    """Return the header with the token, for addresses that it may be sent to."""
    if not (address.startswith("https:") or is_loopback(host_of(address))):
        raise BadSettings(
            f"address must be https, or of this machine, got {address}",
            hint="forward the port with `ssh -L`, or put a proxy with TLS before the node",
        )
    if settings.token is None:
        raise BadSettings(f"node at {address} needs VOX_MESH_TOKEN", hint="set it to the token of the node")
    return {"Authorization": f"Bearer {settings.token.get_secret_value()}"}


def _url_in(answer: dict[str, Any], address: str) -> str:
    """Return the address to open, from the answer of a node."""
    base = answer.get("url") if address.startswith(_UNIX) else address
    path = answer.get("path")
    if not (isinstance(base, str) and isinstance(path, str) and path.startswith(_PATH)):
        raise NoAnswer(f"node at {address} gave no code", hint="check its version")
    return base.rstrip("/") + path


def _has_display() -> bool:
    """Return whether a browser can show something here."""
    return sys.platform == "darwin" or any(os.environ.get(each) for each in _DISPLAYS)


def _open(home: Path, url: str) -> None:
    """Open a browser by a file that redirects: all users of a machine see the arguments of its processes."""
    path = (home / _REDIRECT).absolute()
    target = escape(url, quote=True)
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={target}">\n'
    try:
        replace_private(path, page.encode(), path.with_suffix(".new"))
        is_open = webbrowser.open(path.as_uri())
    except (OSError, webbrowser.Error):
        is_open = False
    if not is_open:
        click.echo("no browser could be opened: open the address yourself", err=True)
