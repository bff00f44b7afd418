"""Deletions of an owner count after the ownership has passed on."""

from __future__ import annotations

from pathlib import Path

from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.deletions import delete_archived, fill_archive, problems
from tests.support.oplog.recovering import found_mesh, recover
from vox_mesh import Mesh, OpKind
from vox_mesh.store.targets.target import FolderTarget


async def test_what_an_owner_let_be_deleted_counts_for_its_successor(
    shared_mesh: SharedMesh, tmp_path: Path
) -> None:
    target = FolderTarget(tmp_path / "archive")
    await found_mesh(shared_mesh)
    async with Mesh.open(shared_mesh.settings("owner")) as old:
        old.oplog.register(OpKind("note"))
        await fill_archive(old, target)
        assert await delete_archived(old, target) > 20
    async with Mesh.open(shared_mesh.settings("heir")) as heir:
        heir.oplog.register(OpKind("note"))
        await recover(heir)
        assert await problems(heir) == []
        await fill_archive(heir, target)
        assert await delete_archived(heir, target) > 20
        assert await problems(heir) == []
        assert await problems(heir, target) == []
