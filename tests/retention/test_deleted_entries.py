"""Deleting archived entries: jobs, grants, keys and rules are as before, and open jobs keep their ops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retention.test_jobs import done, keep_no_jobs, pruned
from tests.support.jobs.staging import schedule
from tests.support.messages.messaging import NodeGroup, write
from tests.support.oplog.deletions import FREE, delete_archived, entries_of, fill_archive, problems
from vox_mesh import OpKind
from vox_mesh.errors import BadValue, StaleFence
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.records import SCHEDULE
from vox_mesh.model.nodes.features import DELETIONS_KNOWN
from vox_mesh.model.oplog.deletion import DELETE
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.node import MeshNode
from vox_mesh.runtime.archive.deletion import LogDeletion
from vox_mesh.runtime.archive.deletion import delete_archived as delete_archived_now
from vox_mesh.store.script import Statement, new_key
from vox_mesh.store.targets.target import FolderTarget

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
    neighbour = await done(node)
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
    named = {job for job in (waiting, neighbour, last) if any(f'"{job}"' in each.payload for each in left)}
    assert named == {waiting, neighbour}
    assert [each.kind for each in left if waiting in each.payload] == [SCHEDULE]
    assert PRUNE not in {each.kind for each in left}
    assert await problems(node) == []
    assert await problems(node, target) == []
    assert await rebuilt(node) == (0, 0)
    (proof,) = [await node.jobs.find(waiting)]
    assert proof.state == "pending"


async def test_a_deletion_that_was_interrupted_is_completed_and_breaks_nothing(
    local: MeshNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vox_mesh.runtime.archive.deletion._BATCH", 5)
    target = FolderTarget(tmp_path / "archive")
    for _ in range(3):
        await done(local)
    await seal(local)
    await keep_no_jobs(local)
    await seal(local)
    await pruned(local)
    await seal(local)
    await fill_archive(local, target)
    guards = 0

    async def guard() -> Statement:
        nonlocal guards
        guards += 1
        if guards == 4:  # the op is written, and two batches are deleted
            raise StaleFence
        return FREE

    with pytest.raises(StaleFence):
        await LogDeletion(local, target, guard).run_once(0)
    before = await entries_of(local)
    assert await problems(local) == []
    assert await problems(local, target) == []
    assert await rebuilt(local) == (0, 0)
    assert await delete_archived(local, target) > 20
    assert len(await entries_of(local)) < len(before) - 20
    assert await problems(local) == []
    assert await rebuilt(local) == (0, 0)


async def test_nothing_is_deleted_while_a_live_node_does_not_know_it(local: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(local, target)
    version = "UPDATE node_versions SET schema_version = ?3 WHERE scope_id = ?1 AND repository_id = ?2"
    await write(local, version, DELETIONS_KNOWN - 1)
    local.features._cached_until = None
    with pytest.raises(BadValue, match="nothing deleted"):
        await delete_archived_now(local, target, 0, local._monotonic)
    await write(local, version, DELETIONS_KNOWN)
    local.features._cached_until = None
    assert await delete_archived_now(local, target, 0, local._monotonic) > 20


async def test_only_the_owner_deletes(crowd: NodeGroup, tmp_path: Path) -> None:
    owner, other = await crowd.node("one"), await crowd.node("two")
    owner.oplog.register(_NOTE)
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    await other.store.synced()
    with pytest.raises(BadValue, match="only the owner"):
        await delete_archived_now(other, target, 0, other._monotonic)
    assert await delete_archived_now(owner, target, 0, owner._monotonic) > 20


async def test_what_waits_for_an_op_keeps_it(local: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    needed = await local.oplog.append("note", {"needed": 1})
    await seal(local)
    for _ in range(2):
        await local.oplog.append("note", {"apart": 1})
        await seal(local)
    waiting = await local.oplog.append("note", {}, deps=[needed.key, new_key()])
    await fill_archive(local, target)
    assert await delete_archived(local, target) > 20
    left = {each.op_id for each in await entries_of(local)}
    assert {needed.key, waiting.key} <= left


async def test_a_verdict_next_to_a_gap_is_not_taken_for_changed(local: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(local, target)
    await delete_archived(local, target)
    for entry in await entries_of(local):
        assert await local.oplog.is_authentic(entry)
        assert not await local.oplog.has_changed_verdict(entry)
