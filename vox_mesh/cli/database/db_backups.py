"""`vox-mesh db backups`: the backups that nodes have made by their schedule."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_one, show_several
from vox_mesh.cli.support.session import start_shared
from vox_mesh.errors import BadSettings
from vox_mesh.model.locks.records import iso_of
from vox_mesh.runtime.archive_target import backup_target
from vox_mesh.runtime.backups.backup_index import StoredBackup
from vox_mesh.runtime.backups.backup_mesh import BackupMesh, BackupOwner
from vox_mesh.runtime.backups.stored_backups import StoredBackups

_UNSCHEDULED: Final = "no backups are scheduled: neither VOX_BACKUP_DIR nor VOX_BACKUP_URL is set"
_HINT: Final = "for example VOX_BACKUP_DIR=/mnt/backups"


@click.group(cls=CommandGroup, no_args_is_help=False)
def backups() -> None:
    """List and fetch the scheduled backups."""


def _stored(command: str) -> StoredBackups | None:
    settings = start_shared(command)
    target, mesh = backup_target(settings), BackupMesh(settings.scope_id, settings.repository_id)
    return None if target is None else StoredBackups(target, BackupOwner(mesh))


@backups.command("list")
@json_option
def list_backups(as_json: bool) -> None:
    """List the backups, the newest first.

    \b
    Example:
      vox-mesh db backups list
    """
    stored = _stored("db backups list")
    if stored is None:
        click.echo(f"vox-mesh: {_UNSCHEDULED}; {_HINT}", err=True)
    found = [] if stored is None else asyncio.run(stored.listed())
    show_several([_record(each) for each in reversed(found)], as_json=as_json)


@backups.command()
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def fetch(name: str, file: Path, as_json: bool) -> None:
    """Copy the backup NAME to a new file, and verify it.

    `vox-mesh db restore FILE` restores it.

    \b
    Example:
      vox-mesh db backups fetch vox-mesh-20260131T020000Z-1a2b3c4d.json mesh.db
    """
    stored = _stored("db backups fetch")
    if stored is None:
        raise BadSettings(_UNSCHEDULED, hint=_HINT)
    found = asyncio.run(stored.fetch(name, file))
    show_one(_record(found) | {"file": str(file)}, as_json=as_json)


def _record(backup: StoredBackup) -> dict[str, Any]:
    return {
        "name": backup.name,
        "at": iso_of(backup.at_ms),
        "bytes": backup.bytes,
        "node": backup.node_id,
        "sha256": backup.sha256,
    }
