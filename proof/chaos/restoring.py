"""The backups of a run, at its end: each is fetched, and the newest is restored."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from proof.history import Recorder
from proof.witness import WITNESSES
from proof.workloads.backups import BACKUPS
from tools.homes import FILE
from vox_mesh import Mesh, MeshError, Settings
from vox_mesh.runtime.backups.backup_mesh import BackupMesh, BackupOwner
from vox_mesh.runtime.backups.stored_backups import StoredBackups
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.runtime.restore import BackupFile, restore
from vox_mesh.store.schema.schema import VERSION
from vox_mesh.store.schema.statements import named
from vox_mesh.store.targets.target import FolderTarget

_REQUEST_S: Final = 30.0
_ENTRIES: Final = "SELECT node_id, seq, op_id, hash FROM agent_oplog ORDER BY id"
_JOBS: Final = "SELECT job_id, last_op FROM jobs ORDER BY id"
_WITNESSED: Final = " UNION ALL ".join(
    f"SELECT max(log_id) FROM {each.name}" for each in WITNESSES if each.has_log_position
)
_LAST_IDS: Final = (
    f"SELECT max(id), (SELECT max(id) FROM (SELECT 0 AS id UNION ALL {_WITNESSED})) FROM agent_oplog"
)


async def note_backups(folder: Path, of: Settings, recorder: Recorder) -> None:
    """Note what each listed backup holds, and what verifying finds in the newest one."""
    target = FolderTarget(folder / BACKUPS)
    backups = StoredBackups(target, BackupOwner(BackupMesh(of.scope_id, of.repository_id)))
    listed = await backups.listed()
    recorder.note("final.backups", names=[each.name for each in listed])
    with tempfile.TemporaryDirectory(prefix="vox-chaos-backups-") as room:
        for number, backup in enumerate(reversed(listed)):
            path = Path(room) / backup.name
            found: dict[str, Any]
            try:
                await backups.fetch(backup.name, path)
                found = _content(path)
                if number == 0 and _is_restorable(path):
                    found["problems"] = await _restored(path, of)
            except (MeshError, sqlite3.Error) as error:
                found = {"error": getattr(error, "line", str(error))}
            recorder.note("final.backup", name=backup.name, **found)


def _content(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        entries, jobs = (connection.execute(each).fetchall() for each in (_ENTRIES, _JOBS))
        last_id, witnessed_id = connection.execute(_LAST_IDS).fetchone()
    return {"entries": entries, "jobs": jobs, "last_id": last_id, "witnessed_id": witnessed_id}


def _is_restorable(path: Path) -> bool:
    """Return whether this code knows the schema: nodes of a later build may have made the backup."""
    with closing(sqlite3.connect(path)) as connection:
        version: int = connection.execute(named("schema")["versions"]).fetchone()[0]
    return version <= VERSION


async def _restored(path: Path, of: Settings) -> list[str]:
    """Restore a backup, and return what verifying its log finds."""
    names = {"scope_id": of.scope_id, "repository_id": of.repository_id, "node_id": "restored"}
    settings = FILE.settings(path.with_suffix(".restored"), None, **names)
    engine = await open_engine(settings)
    try:
        with BackupFile(path) as backup:
            await restore(engine, backup, timeout=_REQUEST_S, skip_unknown=True)  # the witnesses
    finally:
        await engine.close()
    async with Mesh.open_command(settings) as mesh:
        reports = await mesh.oplog.verify()
    return [f"{each.node_id}/{each.seq}: {each.problem}" for each in reports if each.problem]
