"""Archiving: nodes archive the log at the same time, verify it, and the owner's node deletes old entries.

In the chain of a node there is always something between two seals that must stay. So commands of the nodes
write what can be deleted.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads.pruning import KIND as PRUNED
from vox_mesh import Mesh, OpKind, load_settings
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.runtime.archive.deletion import delete_archived
from vox_mesh.store.targets.target import FolderTarget

ARCHIVE: Final = "archive"
"""The folder of the archive, where nodes keep files together."""

_MOST_ENTRIES: Final = 100
_PASSES: Final = 0.3
_VERIFIES: Final = 0.04
_DELETES: Final = 0.1
_WRITES: Final = 0.1
_PARTS: Final = 2
_NOTES: Final = 6
_MOST_S: Final = 20.0
"""A deletion that takes longer is stopped, and another one goes on."""

_APART: Final = 20.0
"""Multiples of the duration of a verification: the next one comes no earlier, however long the log is."""

_KIND: Final = OpKind("proof.archived", appendable=True)


async def run(context: WorkloadContext) -> None:
    """Archive all entries, verify, and delete."""
    folder = context.outside.folder
    if folder is None:  # simulated nodes have no files
        await context.over.wait()
        return
    unverified_until = undeleted_until = context.recorder.now()
    async for _ in context.rounds():
        if context.rng.random() < _PASSES:
            await _archive(context, folder)
        if context.rng.random() < _VERIFIES and (began := context.recorder.now()) >= unverified_until:
            await _verify(context, folder)
            unverified_until = context.recorder.now() + _APART * (context.recorder.now() - began)
        if context.rng.random() < _WRITES:
            await _write(context)
        if context.rng.random() < _DELETES and (began := context.recorder.now()) >= undeleted_until:
            await _delete(context, folder)
            undeleted_until = context.recorder.now() + _APART / 4 * (context.recorder.now() - began)


async def drain(context: WorkloadContext) -> None:
    """Let one node archive and verify once more; the owner's deletes."""
    if context.outside.folder is None:
        return
    if context.who == context.nodes[0]:
        await _archive(context, context.outside.folder)
        await _verify(context, context.outside.folder)
    await _delete(context, context.outside.folder)


async def _archive(context: WorkloadContext, folder: Path) -> None:
    mesh = context.mesh
    parts = (mesh.store, mesh.identity, mesh.clock, mesh.trusted_keys)
    archive = LogArchive(
        *parts, lambda: mesh.oplog.verify(since=mesh.oplog.checkpoint), FolderTarget(folder / ARCHIVE)
    )
    with context.recorder.operation("archive.pass") as record:
        done = await archive.run_once(0, max_entries=_MOST_ENTRIES)
        record.ok(segments=[each.number for each in done])


async def _write(context: WorkloadContext) -> None:
    """Write parts of a chain, each from one seal to the next, that nothing needs once they are archived."""
    with context.recorder.operation("archive.write") as record:
        async with Mesh.open_command(load_settings(_env_file=None)) as command:
            command.oplog.register(_KIND)
            for _ in range(_PARTS):
                if context.rng.random() < 1 / 2:
                    await command.jobs.abort((await command.jobs.schedule(PRUNED)).job_id)
                await asyncio.gather(*(command.oplog.append(_KIND.name, {"n": n}) for n in range(_NOTES)))
                await command.store.write(command.oplog.seal_script())
        record.ok()


async def _delete(context: WorkloadContext, folder: Path) -> None:
    """Delete what may be deleted; nodes other than the owner's are refused."""
    with context.recorder.operation("archive.delete") as record:
        target, clock = FolderTarget(folder / ARCHIVE), context.recorder.now
        try:
            async with asyncio.timeout(_MOST_S):
                deleted = await delete_archived(context.mesh, target, 0, clock, context.pace.ttl_s)
        except TimeoutError:
            record.unknown(error="too slow")
        else:
            record.ok(deleted=deleted)


async def _verify(context: WorkloadContext, folder: Path) -> None:
    with context.recorder.operation("archive.verify") as record:
        reports = await context.mesh.oplog.verify(archive=FolderTarget(folder / ARCHIVE))
        problems = [f"{each.node_id}/{each.seq}: {each.problem}" for each in reports if each.problem]
        record.ok(chains=len(reports), problems=problems)


ARCHIVING: Final = FunctionWorkload("archiving", run, drain)
