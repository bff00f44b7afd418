"""Backups: nodes make incremental backups by a short schedule, in one folder."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh import load_settings
from vox_mesh.runtime.backups import chunks
from vox_mesh.runtime.backups.schedule import BackupSchedule
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.targets.target import FolderTarget

BACKUPS: Final = "backups"
"""The folder of the backups, where nodes keep files together."""

_KEPT: Final = 5
_INTERVAL_S: Final = 2.0
_LOOKS: Final = 0.3
_CHUNKS: Final = {"_LEAST_BYTES": 2**12, "_MEAN_BYTES": 2**14, "_MOST_BYTES": 2**16}
"""The sizes of chunks: small ones, so that the backups of a small database share many."""

RECOVERY_S: Final = 10.0
"""Within a TTL and this time a backup is made, once all faults have healed."""


async def run(context: WorkloadContext) -> None:
    """Make a backup whenever one is due, and no other node makes one."""
    folder = context.outside.folder
    if folder is None:  # simulated nodes have no files
        await context.over.wait()
        return
    schedule = _schedule(context, folder)
    async for _ in context.rounds():
        if context.rng.random() < _LOOKS:
            await _make(context, schedule)


async def drain(context: WorkloadContext) -> None:
    """Let one node make one backup more."""
    if context.outside.folder is None or context.who != context.nodes[0]:
        return
    schedule = _schedule(context, context.outside.folder)
    until = context.recorder.now() + context.pace.ttl_s + RECOVERY_S
    is_made = await _make(context, schedule)
    while not is_made and context.recorder.now() < until:
        await asyncio.sleep(context.pace.rest_s)
        is_made = await _make(context, schedule)


async def _make(context: WorkloadContext, schedule: BackupSchedule) -> bool:
    with context.recorder.operation("backup.make") as record:
        made = await schedule.run_once()
        record.ok(backup=None if made is None else made.name)
        return made is not None
    return False


def _schedule(context: WorkloadContext, folder: Path) -> BackupSchedule:
    for size, length in _CHUNKS.items():
        setattr(chunks, size, length)
    mesh = context.mesh
    parts = mesh.identity.node_id, mesh.store, mesh.clock, mesh.locks, FolderTarget(folder / BACKUPS)
    return BackupSchedule(
        *parts,
        open_database=partial(open_engine, load_settings(_env_file=None)),
        interval_s=_INTERVAL_S,
        keep=_KEPT,
        chance=context.rng.random,
        monotonic=context.recorder.now,
        lease_s=context.pace.ttl_s,
    )


BACKING_UP: Final = FunctionWorkload("backups", run, drain)
