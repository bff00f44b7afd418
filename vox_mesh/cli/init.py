"""`vox-mesh init`: create the mesh of a repository, of a folder or of the user."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from vox_mesh.cli.database.db import init_database
from vox_mesh.cli.support.mesh_report import warn_of_other_meshes
from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.session import start
from vox_mesh.errors import BadSettings
from vox_mesh.runtime.home_check import make_home, refuse_unsafe_home
from vox_mesh.settings import Settings, load_settings
from vox_mesh.settings.discovery import FOLDER, HERE, MARKER, PLACES, USER, has_marker, locate_mesh, user_mesh
from vox_mesh.settings.origins import mesh_origin, setting_origins
from vox_mesh.store.files import load_or_create


@click.command()
@click.option("--here", is_flag=True, help="Create it in the current folder, even inside another mesh.")
@click.option("--user", "for_user", is_flag=True, help="Create the mesh for folders outside repositories.")
@json_option
def init(here: bool, for_user: bool, as_json: bool) -> None:
    """Create the mesh of this repository or folder.

    In a git repository it is next to the common git directory, so that all worktrees and subfolders share it;
    elsewhere it is in the current folder. A mesh made here is enabled unless VOX_MESH_ENABLED is 0. Safe to
    run at any time: a mesh that exists is checked and kept.

    \b
    Example:
      vox-mesh init
    """
    if here and for_user:
        raise click.UsageError("--here and --user can't be combined")
    given = start()
    home, place = _choose(given, here=here, for_user=for_user)
    chosen: dict[str, Any] = {} if home is None else {"home_dir": home}
    settings = load_settings(enabled=True, **chosen)
    record = asyncio.run(_make(settings))
    mesh = {"mesh": str(settings.home_dir.absolute()), "mesh_from": place}
    show_one({**mesh, **record}, as_json=as_json)
    origin = setting_origins(given).get("VOX_MESH_ENABLED")
    if origin not in (None, "vox-mesh init") and not given.enabled:
        click.echo(f"warning: VOX_MESH_ENABLED is 0 in {origin}: commands will not use the mesh", err=True)
    warn_of_other_meshes(settings)


def _choose(given: Settings, *, here: bool, for_user: bool) -> tuple[Path | None, str]:
    """Return the home of the mesh, `None` if VOX_MESH_HOME names it, and the kind of its place."""
    if here:
        return Path(FOLDER), HERE
    if for_user:
        return user_mesh().home, USER
    if (origin := mesh_origin(given)) not in PLACES:
        return None, origin
    mesh = locate_mesh()
    if mesh.fault:
        raise BadSettings(mesh.fault, hint="run `git worktree repair`, or set VOX_MESH_HOME")
    return (Path(FOLDER), HERE) if mesh.place == USER else (mesh.home, mesh.place)


async def _make(settings: Settings) -> dict[str, Any]:
    """Create the home, then its database, and mark it last: a mesh half made does not count."""
    refuse_unsafe_home(settings.home_dir, settings.file_path)
    make_home(settings.home_dir)
    record = await init_database(settings)
    if not has_marker(settings.home_dir):
        text = json.dumps({"made_by": "vox-mesh init", "format": 1})
        load_or_create(settings.home_dir / MARKER, lambda: f"{text}\n".encode())
    return record
