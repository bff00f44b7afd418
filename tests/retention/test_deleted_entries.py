"""Deleting archived entries: jobs, grants, keys and rules are as before, and open jobs keep their ops."""

from __future__ import annotations

from pathlib import Path

from tests.retention.test_jobs import done, keep_no_jobs, pruned
from tests.support.jobs.staging import schedule
from tests.support.oplog.deletions import delete_archived, entries_of, fill_archive, problems
from vox_mesh import OpKind
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.records import SCHEDULE
from vox_mesh.model.oplog.deletion import DELETE
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.node import MeshNode
from vox_mesh.oplog.archive.target import FolderTarget

_NOTE = OpKind("note")


async def rebuilt(node: MeshNode) -> tuple[int, int]:
    """How many differences and findings a rebuild has."""
    await node.store.synced()
    rebuild = Rebuild(node.store, node.oplog)
    return len(await rebuild.check()), len(rebuild.findings)


async def seal(node: MeshNode) -> None:
    """End a part of the chain."""
    await node.store.write(node.oplog.seal_script())


async def test_ops_of_pruned_jobs_are_deleted_and_those_of_open_ones_stay(
    any_node: MeshNode, tmp_path: Path
) -> None:
    node = any_node
    target = FolderTarget(tmp_path / "archive")
    node.oplog.register(_NOTE)
    for _ in range(4):
        await done(node)
    await seal(node)
    waiting = await schedule(node)
    beside = await done(node)
    await seal(node)
    last = await done(node)
    await seal(node)
    await done(node)  # the newest job stays
    await seal(node)
    await keep_no_jobs(node)
    await seal(node)
    await pruned(node)
    await seal(node)
    await fill_archive(node, target)
    await node.store.synced()
    assert await problems(node) == []
    assert await delete_archived(node, target) > 20
    await node.store.synced()
    left = [each for each in await entries_of(node) if each.kind != DELETE]
    named = {job for job in (waiting, beside, last) if any(f'"{job}"' in each.payload for each in left)}
    assert named == {waiting, beside}
    assert [each.kind for each in left if waiting in each.payload] == [SCHEDULE]
    assert PRUNE not in {each.kind for each in left}
    assert await problems(node) == []
    assert await problems(node, target) == []
    assert await rebuilt(node) == (0, 0)
    (proof,) = [await node.jobs.find(waiting)]
    assert proof.state == "pending"
