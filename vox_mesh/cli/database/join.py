"""`vox-mesh join`: use the shared database of a mesh from this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.session import run_on_mesh, start
from vox_mesh.errors import BadSettings
from vox_mesh.mesh import Mesh
from vox_mesh.runtime.home_check import make_home
from vox_mesh.settings import Settings, load_settings
from vox_mesh.settings.discovery import FOLDER
from vox_mesh.settings.env_writer import with_variables, write_approved, write_private
from vox_mesh.settings.fields import ENV_FILE
from vox_mesh.settings.secrets import read_secret
from vox_mesh.settings.trust import read_env_file

_TOKEN_NAME: Final = "db-token"  # noqa: S105 - the name of a file
_STDIN: Final = Path("/dev/stdin")
_URL: Final = "VOX_DB_URL"
_SECRET: Final = "VOX_DB_TOKEN"  # noqa: S105 - the name of a variable
_PLAINTEXT: Final = "VOX_DB_ALLOW_PLAINTEXT"


@click.command()
@click.argument("url")
@click.option(
    "--token-file",
    type=click.Path(allow_dash=True, path_type=Path),
    help="File with the token; - for standard input.",
    show_default="asked for",
)
@click.option("--replace", is_flag=True, help="Leave the server that this folder uses now.")
@click.option("--allow-plaintext", is_flag=True, help="Send the token unencrypted to another machine.")
@json_option
def join(url: str, token_file: Path | None, replace: bool, allow_plaintext: bool, as_json: bool) -> None:
    """Join the mesh on a shared database server.

    Checks the server and the token, then writes the settings of this folder: .env, which is approved for
    you, and the token in .vox. Both are readable by you only, and nothing is written if the check fails. The
    token is never an argument, because other users can read arguments.

    \b
    Example:
      vox-mesh join https://db.example.com --token-file db.token
    """
    folder = _folder(start("join"))
    env_file = folder / ENV_FILE
    _refuse_link(folder / FOLDER)
    _refuse_another(env_file, url, replace=replace)
    token = _token(token_file)
    given = {"enabled": True, "db_url": url, "db_token": token, "home_dir": folder / FOLDER}
    if allow_plaintext:
        given["db_allow_plaintext"] = True
    settings = load_settings(**given)
    live = asyncio.run(run_on_mesh(settings, _count_nodes))
    token_path = _write(folder, url, token, allow_plaintext=allow_plaintext)
    record = {"server": settings.endpoint, "live_nodes": live}
    show_one({**record, "settings": str(env_file.absolute()), "token": str(token_path)}, as_json=as_json)
    if not as_json:
        click.echo("next: `vox-mesh nodes` lists the nodes, `vox-mesh up` runs one here", err=True)
    _warn_of_exported(url)


def _folder(settings: Settings) -> Path:
    """Return the folder whose settings are written: that of the mesh, or the current one."""
    home = settings.home_dir
    return home.absolute().parent if home.name == FOLDER else Path.cwd()


def _refuse_link(home: Path) -> None:
    """Refuse a home that may be anywhere: the token is written there."""
    if home.is_symlink():
        raise BadSettings(f"{home} is a link, which may lead anywhere", hint="remove it, and join again")


def _refuse_another(env_file: Path, url: str, *, replace: bool) -> None:
    file = read_env_file(env_file)
    present = None if file is None else file.variables.get(_URL)
    if present and present != url and not replace:
        raise BadSettings(
            f"{env_file} names another server: {present}",
            hint="pass --replace to leave it, or choose another folder",
        )


def _token(path: Path | None) -> str:
    """Return the token from a file, from standard input, or from the person at the terminal."""
    if path is None and sys.stdin.isatty():
        text: str = click.prompt("token", hide_input=True, err=True)
    else:
        text = read_secret(_STDIN if path is None or str(path) == "-" else path, "the token")
    text = text.strip()
    if not text or not text.isascii() or any(each.isspace() for each in text):
        raise BadSettings(
            "the token must be one line of ASCII text without spaces",
            hint="make one with `vox-mesh token create`",
        )
    return text


async def _count_nodes(mesh: Mesh) -> int:
    return len(await mesh.nodes.live_nodes_from_db())


def _write(folder: Path, url: str, token: str, *, allow_plaintext: bool) -> Path:
    home, env_file = folder / FOLDER, folder / ENV_FILE
    values: dict[str, Any] = {
        "VOX_MESH_ENABLED": "1",
        _URL: url,
        f"{_SECRET}_FILE": f"{FOLDER}/{_TOKEN_NAME}",
    }
    if allow_plaintext:
        values[_PLAINTEXT] = "1"
    text = with_variables(env_file, values, removed=(_SECRET, _PLAINTEXT))
    make_home(home)
    path = home / _TOKEN_NAME
    write_private(path, f"{token}\n")
    write_approved(env_file, text)
    return path


def _warn_of_exported(url: str) -> None:
    exported = os.environ.get(_URL)
    if exported and exported != url:
        click.echo(f"warning: the exported {_URL} wins over the file; run `unset {_URL}`", err=True)
