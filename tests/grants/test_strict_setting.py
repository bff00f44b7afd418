"""`VOX_MESH_STRICT`: the owner's node records a strict mesh, and no other node starts on one that is not."""

from __future__ import annotations

import pytest

from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from vox_mesh import Mesh
from vox_mesh.errors import NotGranted, NotStrict


async def test_the_owner_s_node_records_that_the_mesh_is_strict(shared_mesh: SharedMesh) -> None:
    for _ in range(2):
        async with Mesh.open(shared_mesh.settings("owner", strict=True)) as owner:
            assert (await owner.grants.history()).is_strict()
            assert (await owner.grants.admissions()).is_strict
            assert len(await owner.oplog.tail(kind="SetStrict")) == 1
    async with Mesh.open(shared_mesh.settings("owner")) as owner:  # without it, the mesh stays strict
        with pytest.raises(NotGranted):
            await owner.locks.acquire("task:1", agent="eve")
        await assert_whole(owner)


async def test_other_processes_do_nothing_for_agents_until_the_owner_has_made_the_mesh_strict(
    shared_mesh: SharedMesh,
) -> None:
    async with Mesh.open(shared_mesh.settings("owner")) as owner:
        settings = shared_mesh.settings("other", strict=True)
        with pytest.raises(NotStrict, match="VOX_MESH_STRICT requires it"):
            async with Mesh.open(settings):
                pass
        async with Mesh.open_command(settings) as command:
            assert await command.locks.holders() == []  # what only reads is not refused
            for agent in ("eve", None):
                with pytest.raises(NotStrict):
                    await command.locks.acquire("task:1", agent=agent)
            with pytest.raises(NotStrict):
                await command.jobs.schedule("build", {})
            key = command.identity.key.public
        await owner.grants.admit_node("other", key)
        await owner.grants.set_strict(strict=True)
        async with Mesh.open(settings) as other:
            with pytest.raises(NotGranted):
                await other.locks.acquire("task:1", agent="eve")
            await owner.grants.set_strict(strict=False)
            await other.store.synced()
            with pytest.raises(NotStrict):
                await other.locks.acquire("task:1", agent="eve")
        await assert_whole(owner)
