"""Logs with archived entries, and their deletion."""

from __future__ import annotations

import time

from vox_mesh import Mesh, OpKind
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.segment import Segment
from vox_mesh.node import MeshNode
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.runtime.archive.deletion import LogDeletion
from vox_mesh.runtime.archive.leading import void_segment
from vox_mesh.store.script import Statement
from vox_mesh.store.targets.target import FileTarget

FREE = Statement("SELECT 1")
"""In place of a leader's guard."""


def register_notes(node: MeshNode) -> None:
    """Let a node append notes; in memory, all nodes know them."""
    if not node.oplog.can_append("note"):
        node.oplog.register(OpKind("note"))


async def fill_archive(node: MeshNode, target: FileTarget, parts: int = 6) -> None:
    """Archive a log of several sealed parts."""
    for part in range(parts):
        for number in range(8):
            await node.oplog.append("note", {"part": part, "n": number})
        await node.store.write(node.oplog.seal_script())
    await archive_of(node, target).run_once(0)


def archive_of(mesh: Mesh, target: FileTarget) -> LogArchive:
    """The archive of a mesh in a target."""
    return LogArchive(mesh.store, mesh.identity, mesh.clock, mesh.trusted_keys, mesh.oplog.verify, target)


async def delete_archived(mesh: Mesh, target: FileTarget) -> int:
    """Delete what is archived; the number of entries."""

    async def guard() -> Statement:
        return FREE

    return await LogDeletion(mesh, target, guard).run_once(0)


async def void(mesh: Mesh, target: FileTarget, number: int) -> Segment:
    """Declare a segment void, as the command does."""
    return (await void_segment(mesh, target, number, time.monotonic)).segment


async def entries_of(mesh: Mesh) -> list[LogEntry]:
    """All entries that the database has."""
    return [entry async for page in mesh.oplog.entries() for entry in page]


async def problems(mesh: Mesh, target: FileTarget | None = None) -> list[str]:
    """What verification finds."""
    reports = await mesh.oplog.verify(archive=target)
    return [each.problem for each in reports if each.problem is not None]
