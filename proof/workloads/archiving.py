"""Archiving: nodes archive the log at the same time, and verify it with the archive."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.store.targets.target import FolderTarget

ARCHIVE: Final = "archive"
"""The folder of the archive, where nodes keep files together."""

_MOST_ENTRIES: Final = 100
_PASSES: Final = 0.3
_VERIFIES: Final = 0.04
_APART: Final = 20.0
"""Multiples of the duration of a verification: the next one comes no earlier, however long the log is."""


async def run(context: WorkloadContext) -> None:
    """Archive all entries, and verify."""
    folder = context.outside.folder
    if folder is None:  # simulated nodes have no files
        await context.over.wait()
        return
    unverified_until = context.recorder.now()
    async for _ in context.rounds():
        if context.rng.random() < _PASSES:
            await _archive(context, folder)
        if context.rng.random() < _VERIFIES and (began := context.recorder.now()) >= unverified_until:
            await _verify(context, folder)
            unverified_until = context.recorder.now() + _APART * (context.recorder.now() - began)


async def drain(context: WorkloadContext) -> None:
    """Let one node archive and verify once more."""
    if context.outside.folder is not None and context.who == context.nodes[0]:
        await _archive(context, context.outside.folder)
        await _verify(context, context.outside.folder)


async def _archive(context: WorkloadContext, folder: Path) -> None:
    mesh = context.mesh
    parts = (mesh.store, mesh.identity, mesh.clock, mesh.trusted_keys)
    archive = LogArchive(
        *parts, lambda: mesh.oplog.verify(since=mesh.oplog.checkpoint), FolderTarget(folder / ARCHIVE)
    )
    with context.recorder.operation("archive.pass") as record:
        done = await archive.run_once(0, max_entries=_MOST_ENTRIES)
        record.ok(segments=[each.number for each in done])


async def _verify(context: WorkloadContext, folder: Path) -> None:
    with context.recorder.operation("archive.verify") as record:
        reports = await context.mesh.oplog.verify(archive=FolderTarget(folder / ARCHIVE))
        problems = [f"{each.node_id}/{each.seq}: {each.problem}" for each in reports if each.problem]
        record.ok(chains=len(reports), problems=problems)


ARCHIVING: Final = FunctionWorkload("archiving", run, drain)
