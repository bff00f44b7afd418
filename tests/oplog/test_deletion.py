"""Deleting archived entries: the database shrinks, and the log is verified as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.oplog.deletions import delete_archived, entries_of, fill_archive, problems
from tests.support.oplog.exports import log_of_two_chains
from vox_mesh.model.oplog.deletion import DELETE
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.store.targets.target import FolderTarget


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node whose log has two chains."""
    async with log_of_two_chains(tmp_path) as node:
        yield node


async def test_archived_entries_are_deleted_and_the_log_stays_verifiable(
    node: MeshNode, tmp_path: Path
) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(node, target)
    before = await entries_of(node)
    deleted = await delete_archived(node, target)
    after = await entries_of(node)
    assert deleted > 20
    assert len(before) - deleted == len([each for each in after if each.kind != DELETE])
    assert await problems(node) == []
    assert await problems(node, target) == []
    assert await node.oplog.verify(node.identity.chain)
    await node.oplog.append("note", {"later": 1})
    await node.store.write(node.oplog.seal_script())
    assert await problems(node) == []


async def test_what_is_verified_from_a_checkpoint_stays_so(node: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(node, target)
    assert await problems(node) == []
    known = node.oplog.checkpoint
    await delete_archived(node, target)
    reports = await node.oplog.verify(since=known)
    assert [each.problem for each in reports if each.problem] == []


async def test_an_export_after_a_deletion_is_intact(node: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(node, target)
    await delete_archived(node, target)
    await export_log(node.oplog, *node.store.mesh_id, tmp_path / "log.jsonl")
    assert [each.problem for each in verify_export(tmp_path / "log.jsonl").chains if each.problem] == []


async def test_deleting_again_goes_on_with_the_next_segments(node: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(node, target)
    await delete_archived(node, target)
    assert await delete_archived(node, target) == 0
    await fill_archive(node, target)
    assert await delete_archived(node, target) > 20
    assert await problems(node) == []
    assert await problems(node, target) == []
