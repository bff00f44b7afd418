"""Removing nodes that have died or left: they are no longer listed, stay verifiable, and may come back."""

from __future__ import annotations

import pytest

from tests.support.nodes.shared_mesh import SharedMesh, assert_whole, come_and_go
from vox_mesh import Mesh
from vox_mesh.errors import NodeInUse, NotKnown
from vox_mesh.model.nodes.liveness import REMOVE_NODE
from vox_mesh.model.oplog.chain import COMMANDS
from vox_mesh.node import MeshNode
from vox_mesh.store.script import Script, Statement


async def _names(node: MeshNode) -> list[str]:
    await node.store.synced()
    return [each.node_id for each in await node.nodes.all()]


async def test_one_that_left_is_removed_by_a_signed_op_and_its_chains_stay_verifiable(
    shared_mesh: SharedMesh, owner: MeshNode, other: MeshNode
) -> None:
    await come_and_go(shared_mesh, "ben")
    assert await _names(owner) == ["ben", "other", "owner"]
    async with Mesh.open_command(shared_mesh.settings("other")) as command:
        op_id = await command.nodes.remove("ben")
    assert await _names(owner) == ["other", "owner"]
    (entry,) = await owner.oplog.tail(kind=REMOVE_NODE)
    assert (entry.op_id, entry.accepted, entry.node_id) == (op_id, 1, "other" + COMMANDS)
    assert entry.signature is not None
    assert await owner.trusted_keys.of_chain("ben")
    await assert_whole(owner)
    with pytest.raises(NotKnown, match="'ben' not found"):
        await owner.nodes.remove("ben")

    async with Mesh.open(shared_mesh.settings("ben")) as ben:
        assert await _names(owner) == ["ben", "other", "owner"]
        assert (await owner.nodes.require("ben")).incarnation == 2
        await ben.oplog.anchor()
    await assert_whole(owner)


async def test_a_live_one_is_refused_and_one_that_was_only_cut_off_returns_with_its_next_heartbeat(
    owner: MeshNode, other: MeshNode
) -> None:
    with pytest.raises(NodeInUse, match=r"'other' not removed: it is alive, its last heartbeat was \d"):
        await owner.nodes.remove("other")
    silent = "UPDATE mesh_heartbeats SET last_seen_ms = last_seen_ms - 10 * tick_ms WHERE node_id = 'other'"
    await owner.store.write(Script(Statement(silent)))
    with pytest.raises(NodeInUse, match="it is"):  # ten and a half make it dead
        await owner.nodes.remove("other")
    await owner.store.write(Script(Statement(silent)))
    await owner.nodes.remove("other")
    assert await _names(owner) == ["owner"]
    await other.run_once()
    assert await _names(owner) == ["other", "owner"]
    assert (await other.nodes.require("other")).incarnation == 1
    await assert_whole(owner)
