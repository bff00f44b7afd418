"""`vox-mesh hooks`: have hosts of agents ask the mesh before an edit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from vox_mesh.cli.hosts.git_hooks import GIT, git_status, install_git, remove_git
from vox_mesh.cli.locks.paths import keys_of, root_of
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    json_option,
    printable,
    show_lines,
    show_one,
    show_several,
)
from vox_mesh.cli.support.session import run_on_mesh, start_quickly
from vox_mesh.errors import BadSettings
from vox_mesh.hosts.setup.hook_plan import HookPlan
from vox_mesh.hosts.setup.hook_status import HookState, is_answering, own_plan, status_of
from vox_mesh.hosts.setup.hook_trial import (
    AGENT_TOKEN,
    BEFORE_EDIT,
    SESSION_END,
    HookAnswer,
    sample_of,
    try_hook,
)
from vox_mesh.hosts.setup.hook_verdict import verdict_on
from vox_mesh.hosts.setup.host_agent import checked_host_agent
from vox_mesh.hosts.setup.installer import HookInstaller, interpreter
from vox_mesh.hosts.setup.registry import HOSTS
from vox_mesh.model.base.addresses import is_loopback
from vox_mesh.model.locks.patterns import FILE
from vox_mesh.settings.secrets import secret_of

if TYPE_CHECKING:
    from vox_mesh.mesh import Mesh
    from vox_mesh.settings import Settings

_TEST_FILE: Final = "vox-mesh-hooks-test.txt"
_HOLDER: Final = "vox-mesh-hooks-test"
_HELD_S: Final = 60.0
_KINDS: Final = ("session_start", BEFORE_EDIT, "before_commit", "stop", SESSION_END)

host_argument: Final = click.argument("host", type=click.Choice([*HOSTS, GIT]))
user_option: Final = click.option(
    "--user", "for_user", is_flag=True, help="Use the user's configuration, for all projects."
)
project_option: Final = click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Root of the project.",
    show_default="the git work tree of the current folder",
)


@click.group(cls=CommandGroup, no_args_is_help=False)
def hooks() -> None:
    """Have hosts of agents ask the mesh before an edit."""


@hooks.command()
@host_argument
@user_option
@project_option
@click.option(
    "--agent", help="Agent that the host acts for, unless VOX_AGENT_ID is set.", show_default="VOX_AGENT_ID"
)
@click.option("--auto", is_flag=True, help="Lock free files for 10 minutes before an edit.")
@click.option("--strict", is_flag=True, help="Deny edits while the mesh can't be asked.")
@json_option
def install(
    host: str,
    for_user: bool,
    project: Path | None,
    agent: str | None,
    auto: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Install the hooks of a host, or update them.

    They are merged into the configuration of HOST: everything else in the file stays, also comments. In a
    project, the file is one that git does not track, and is added to .git/info/exclude. An agent's token is
    read from VOX_AGENT_TOKEN, or from agents/AGENT.token in the mesh; it is never written into the file.

    Without --strict, an edit is allowed and a note is shown if the mesh can't be asked.

    \b
    Example:
      vox-mesh hooks install claude --agent coder
    """
    settings = start_quickly("hooks install")
    if host == GIT:
        _refuse_options(for_user or project is not None or agent is not None or auto or strict)
        show_several(install_git(), as_json=as_json)
        return
    installer = _installer(host, settings, for_user=for_user, project=project)
    name = agent or settings.agent_id
    plan = replace(
        _plan(host, settings, installer),
        agent=None if name is None else checked_host_agent(name),
        auto=auto,
        strict=strict,
    )
    change = installer.install(plan)
    record = {"host": host, "file": str(change.file), "changed": change.changed, "agent": plan.agent}
    show_one({**record, "next": installer.host.advice or None}, as_json=as_json)


@hooks.command()
@host_argument
@user_option
@project_option
@json_option
def remove(host: str, for_user: bool, project: Path | None, as_json: bool) -> None:
    """Remove the hooks of a host.

    The file becomes what it was before, byte for byte; what you have changed since stays. A file made for the
    hooks is removed.

    \b
    Example:
      vox-mesh hooks remove claude
    """
    settings = start_quickly("hooks remove")
    if host == GIT:
        _refuse_options(for_user or project is not None)
        show_several(remove_git(), as_json=as_json)
        return
    change = _installer(host, settings, for_user=for_user, project=project).remove()
    show_one({"host": host, "file": str(change.file), "changed": change.changed}, as_json=as_json)


@hooks.command()
@click.argument("host", type=click.Choice([*HOSTS, GIT]), required=False)
@project_option
@json_option
def status(host: str | None, project: Path | None, as_json: bool) -> ExitCode:
    """Show the state of the hooks of each host.

    The state is `not installed`, `outdated`, `not trusted` (Codex), `node not answering` or `installed`.
    Hooks in the user's configuration have a line of their own. Ends with 1 if installed hooks do not work, or
    if those of HOST are not installed.

    \b
    Example:
      vox-mesh hooks status
    """
    settings = start_quickly("hooks status")
    records = [
        record
        for name in ([*HOSTS, GIT] if host is None else [host])
        for record in _status(name, settings, project)
    ]
    show_several(records, as_json=as_json)
    fine = {HookState.INSTALLED, *([HookState.NOT_INSTALLED] if host is None else [])}
    is_fine = all(record["state"] in fine for record in records)
    return ExitCode.DONE if is_fine else ExitCode.NO


def _status(host: str, settings: Settings, project: Path | None) -> list[Record]:
    if host == GIT:
        return [git_status()]
    found = [
        status_of(_installer(host, settings, for_user=for_user, project=None if for_user else project))
        for for_user in (False, True)
    ]
    shown = [each for each in found if each.state is not HookState.NOT_INSTALLED] or found[:1]
    return [
        {
            "host": each.host,
            "scope": each.scope,
            "state": each.state.value,
            "file": str(each.file),
            "advice": each.advice,
        }
        for each in shown
    ]


@hooks.command()
@click.argument("host", type=click.Choice([*HOSTS]))
@user_option
@project_option
@click.option(
    "--event",
    "kind",
    type=click.Choice(_KINDS),
    default=BEFORE_EDIT,
    show_default=True,
    help="Recorded event to send.",
)
@click.option("--path", default=_TEST_FILE, show_default=True, help="File of the edit, from the root.")
@click.option("--held", is_flag=True, help="Let another agent hold the file meanwhile, to see a denial.")
@json_option
def test(
    host: str, for_user: bool, project: Path | None, kind: str, path: str, held: bool, as_json: bool
) -> ExitCode:
    """Send a recorded event through the installed hooks.

    It runs the command of the configuration, or calls its URL, as HOST would, and shows the answer and what
    it means. A lock that --auto acquires for the test is released at its end. Ends with 1 if the mesh was not
    asked.

    \b
    Example:
      vox-mesh hooks test claude --path src/lib.rs --held
    """
    settings = start_quickly("hooks test")
    if held and kind != BEFORE_EDIT:
        raise click.UsageError(f"--held needs --event {BEFORE_EDIT}")
    installer = _installer(host, settings, for_user=for_user, project=project)
    calls = installer.calls()
    if not calls:
        raise BadSettings(
            f"hooks of {host} are not installed in {installer.path}",
            hint=f"run `vox-mesh hooks install {host}`",
        )
    plan = own_plan(installer, calls, _plan(host, settings, installer))
    root = installer.project or root_of(settings)

    def send(kind: str) -> HookAnswer:
        return try_hook(calls, sample_of(host, kind, root, path), root)

    answer = asyncio.run(_send_held(settings, path, send)) if held else send(kind)
    if kind == BEFORE_EDIT and plan.auto:
        send(SESSION_END)
    verdict = verdict_on(kind, answer.answer, is_node_up=is_answering(plan))
    about = f" of {path}" if kind == BEFORE_EDIT else ""
    record: Record = {
        "host": host,
        "agent": plan.agent,
        "event": f"{answer.event}: {kind.replace('_', ' ')}{about}",
        "handler": answer.handler,
        "result": verdict.result.value,
        "meaning": verdict.meaning,
    }
    if as_json:
        show_one({**record, "text": verdict.text, "answer": answer.answer}, as_json=True)
    else:
        show_one({**record, "answer": json.dumps(answer.answer, ensure_ascii=False)}, as_json=False)
        show_lines([f"  {printable(line)}" for line in verdict.text.splitlines()])
    return ExitCode.DONE if verdict.is_checked else ExitCode.NO


async def _send_held(settings: Settings, path: str, send: Callable[[str], HookAnswer]) -> HookAnswer:
    """Send the event of an edit while another agent holds the file."""
    (key,) = keys_of([f"{FILE}{path}"], settings, literal=False)

    async def hold(mesh: Mesh) -> HookAnswer:
        async with mesh.locks.hold(key, agent=_HOLDER, ttl=_HELD_S):
            return await asyncio.to_thread(send, BEFORE_EDIT)

    return await run_on_mesh(settings, hold)


# --- what the options mean -----------------------------------------------------------------------


def _installer(host: str, settings: Settings, *, for_user: bool, project: Path | None) -> HookInstaller:
    if for_user and project is not None:
        raise click.UsageError("--user and --project can't be combined")
    root = None if for_user else (project or root_of(settings)).resolve()
    return HookInstaller(HOSTS[host], root)


def _plan(host: str, settings: Settings, installer: HookInstaller) -> HookPlan:
    """Return the plan of an installation without an agent and options."""
    return HookPlan(
        host=host,
        home=settings.home_dir.absolute(),
        python=interpreter(),
        project=installer.project,
        address=_fixed_address(settings),
    )


def _fixed_address(settings: Settings) -> str | None:
    """Return the address of the node for HTTP: fixed, of this machine, and with a token for it at hand."""
    given = settings.bind if settings.bind is not None else settings.control_addr
    if given is None or not secret_of(AGENT_TOKEN):
        return None
    from urllib.parse import urlsplit  # imported late: few nodes have a fixed address

    parts = urlsplit(given if "//" in given else f"//{given}")
    if not parts.port or not is_loopback(parts.hostname or "") or parts.scheme not in ("", "http"):
        return None
    return f"http://{parts.netloc}"


def _refuse_options(given: bool) -> None:
    if given:
        raise click.UsageError("git hooks have no options: they use the settings of the current folder")
