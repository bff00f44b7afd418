"""`vox-mesh init`: create the mesh of a repository, of a folder or of the user."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import click

from vox_mesh.cli.database.db import init_database
from vox_mesh.cli.support.mesh_report import warn_of_other_meshes
from vox_mesh.cli.support.output import Record, details_option, json_option, show_done
from vox_mesh.cli.support.recovery_keys import KEY_FILE, can_show, new_recovery_key
from vox_mesh.cli.support.session import run_on_mesh, start
from vox_mesh.errors import BadSettings
from vox_mesh.mesh import Mesh
from vox_mesh.model.oplog.recovery_key import RecoveryKey
from vox_mesh.runtime.foreign_home import foreign_home_fault
from vox_mesh.runtime.home_check import make_home, refuse_unsafe_home
from vox_mesh.settings import Settings, load_settings
from vox_mesh.settings.discovery import FOLDER, HERE, MARKER, PLACES, USER, has_marker, locate_mesh, user_mesh
from vox_mesh.settings.origins import mesh_origin, setting_origins
from vox_mesh.store.files import load_or_create
from vox_mesh.store.script import Outcome

_NEXT: Final = (
    "next: `vox-mesh lock acquire file:PATH --agent NAME` locks a file, `vox-mesh up` runs a node, "
    "`vox-mesh doctor` checks everything"
)


@click.command()
@click.option("--here", is_flag=True, help="Create it in the current folder, even inside another mesh.")
@click.option("--user", "for_user", is_flag=True, help="Create the mesh for folders outside repositories.")
@click.option("--recovery-key-file", "key_file", type=KEY_FILE, help="New file for the recovery key.")
@click.option("--no-recovery-key", "is_keyless", is_flag=True, help="Make no recovery key.")
@details_option
@json_option
def init(
    here: bool, for_user: bool, key_file: Path | None, is_keyless: bool, verbose: bool, as_json: bool
) -> None:
    """Create the mesh of this repository or folder.

    In a git repository it is next to the common git directory, so that all worktrees and subfolders share it;
    elsewhere it is in the current folder. A mesh made here is enabled unless VOX_MESH_ENABLED is 0. Safe to
    run at any time: a mesh that exists is checked and kept.

    On a terminal, or with --recovery-key-file, this machine becomes the owner of a new mesh, and a recovery
    key is made: with it, another machine becomes the owner if the disk of this one is lost. It is shown once.

    \b
    Example:
      vox-mesh init
    """
    if here and for_user:
        raise click.UsageError("--here and --user can't be combined")
    if key_file is not None and is_keyless:
        raise click.UsageError("--recovery-key-file and --no-recovery-key can't be combined")
    given = start("init")
    home, place = choose_home(given, here=here, for_user=for_user)
    chosen: dict[str, Any] = {} if home is None else {"home_dir": home}
    settings = load_settings(enabled=True, **chosen)
    made = asyncio.run(make_mesh(settings))
    record = {"mesh": str(settings.home_dir.absolute()), "mesh_from": place, **made}
    show_done(record, _summary(record), as_json=as_json, verbose=verbose)
    if not as_json:
        click.echo(_NEXT, err=True)
    if not is_keyless and (key_file is not None or can_show(as_json=as_json)):
        own_mesh(settings, key_file, as_json=as_json)
    origin = setting_origins(given).get("VOX_MESH_ENABLED")
    if origin not in (None, "vox-mesh init") and not given.enabled:
        click.echo(f"warning: VOX_MESH_ENABLED is 0 in {origin}: commands will not use the mesh", err=True)
    warn_of_other_meshes(settings)
    if (fault := foreign_home_fault(settings)) is not None:
        click.echo(f"warning: {fault.line}", err=True)


def _summary(record: Record) -> str:
    """Return the line about the mesh."""
    return f"{record['done']} mesh {record['mesh']} (database {record['address']})"


def choose_home(given: Settings, *, here: bool, for_user: bool) -> tuple[Path | None, str]:
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


def own_mesh(settings: Settings, key_file: Path | None, *, as_json: bool) -> None:
    """Become the owner of a mesh that has none, with a recovery key; an owned mesh keeps its key."""
    if asyncio.run(run_on_mesh(settings, is_owned)):
        if key_file is not None:
            click.echo(
                "no recovery key made: the mesh has an owner; see `vox-mesh roles recovery-key`", err=True
            )
        return
    option = "--recovery-key-file"
    with new_recovery_key(key_file, settings.home_dir, as_json=as_json, option=option) as key:
        asyncio.run(run_on_mesh(settings, lambda mesh: _initialise(mesh, key)))


async def is_owned(mesh: Mesh) -> bool:
    """Return whether the mesh has an owner, or is to have another one."""
    if mesh.ownership.pinned_key not in (None, mesh.identity.key.public):
        return True
    return await mesh.roles.owner() is not None


async def _initialise(mesh: Mesh, key: RecoveryKey) -> Outcome:
    return await mesh.roles.initialise(key.signing_key(mesh.identity.key.public).public)


async def make_mesh(settings: Settings) -> dict[str, Any]:
    """Create the home, then its database, and mark it last: a mesh half made does not count."""
    refuse_unsafe_home(settings.home_dir, settings.file_path)
    make_home(settings.home_dir)
    record = await init_database(settings)
    if not has_marker(settings.home_dir):
        text = json.dumps({"made_by": "vox-mesh init", "format": 1})
        load_or_create(settings.home_dir / MARKER, lambda: f"{text}\n".encode())
    return record
