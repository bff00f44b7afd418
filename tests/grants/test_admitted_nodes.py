"""Admitted nodes: in a strict mesh, only nodes that the owner has admitted join and are believed."""

from __future__ import annotations

import pytest

from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.oplog.owners import recovery_named
from tests.support.oplog.tampering import NOTE
from vox_mesh import Mesh
from vox_mesh.errors import NodeNotAdmitted, NotKnown, Refused
from vox_mesh.node import MeshNode


async def believes(mesh: Mesh, op_id: str) -> bool:
    """Return whether a mesh counts an op."""
    await mesh.store.synced()
    return await mesh.oplog.is_authentic(await mesh.oplog.find(op_id))


async def test_a_node_that_is_not_admitted_can_write_no_more_until_the_owner_admits_it(
    shared_mesh: SharedMesh, owner: MeshNode
) -> None:
    settings = shared_mesh.settings("other")
    async with Mesh.open(settings) as other, Mesh.open_command(settings) as command:
        for mesh in (other, command):
            mesh.oplog.register(NOTE)
            await mesh.oplog.append(NOTE.name, {"when": "before"})
        await owner.grants.set_strict(strict=True)
        for mesh in (other, command):
            with pytest.raises(NodeNotAdmitted, match="has not admitted this node") as refusal:
                await mesh.oplog.anchor()
            assert f"`vox-mesh nodes admit other --key {other.identity.key.public}`" in refusal.value.hint
        await owner.store.synced()
        before = [entry for entry in await owner.oplog.tail(100) if entry.kind == NOTE.name]
        assert [await owner.oplog.is_authentic(entry) for entry in before] == [True, True]
    with pytest.raises(NodeNotAdmitted):
        async with Mesh.open(settings):
            pass
    await assert_whole(owner)
    assert (await owner.grants.admit_node("other")).public_key == other.identity.key.public
    async with Mesh.open(settings) as again:
        entry = await again.oplog.anchor()
        assert await believes(owner, entry.key)
        await assert_whole(again)


async def test_the_owner_s_key_admits_what_its_user_starts_from_the_same_home(
    shared_mesh: SharedMesh, owner: MeshNode
) -> None:
    early_settings, late_settings = (
        shared_mesh.settings("owner").model_copy(update={"node_id": name}) for name in ("early", "late")
    )
    async with Mesh.open(early_settings) as early:
        await owner.grants.set_strict(strict=True)
        async with Mesh.open(late_settings) as late:
            for node in (early, late):
                await node.oplog.anchor()
    await owner.store.synced()
    admissions = await owner.grants.admissions()
    for node in (owner, early, late):
        assert admissions.has_admitted_by_op(node.identity.node_id, [node.identity.key.public])
    await assert_whole(owner)


async def test_only_the_owner_admits_nodes_and_each_with_its_own_key(
    owner: MeshNode, other: MeshNode
) -> None:
    with pytest.raises(NotKnown, match="has not presented a key"):
        await owner.grants.admit_node("other")
    with pytest.raises(Refused, match="node_has_another_key"):
        await owner.grants.admit_node("other", owner.identity.key.public)
    with pytest.raises(Refused, match="not_the_owner"):
        await other.grants.admit_node("other", other.identity.key.public)
    admissions = await owner.grants.admissions()
    assert not admissions.has_admitted("other", [other.identity.key.public, owner.identity.key.public])
    await assert_whole(other)


async def test_a_new_key_of_a_node_is_admitted_with_it(shared_mesh: SharedMesh, owner: MeshNode) -> None:
    async with Mesh.open(shared_mesh.settings("other")) as other:
        await owner.grants.admit_node("other", other.identity.key.public)
    await owner.grants.set_strict(strict=True)
    shared_mesh.forget_key("other")
    with pytest.raises(Exception, match="known with another key"):
        async with Mesh.open(shared_mesh.settings("other")):
            pass
    await owner.roles.rekey("other")
    async with Mesh.open(shared_mesh.settings("other")) as other:
        entry = await other.oplog.anchor()
        assert await believes(owner, entry.key)
        await assert_whole(other)


async def test_the_recovery_key_makes_an_owner_of_a_node_that_nobody_has_admitted(
    shared_mesh: SharedMesh,
) -> None:
    async with Mesh.open(shared_mesh.settings("owner")) as owner:
        await owner.recovery.replace_key(recovery_named("first"))
        await owner.grants.set_strict(strict=True)
        async with Mesh.open_command(shared_mesh.settings("heir")) as heir:
            await heir.recovery.recover(recovery_named("first"), recovery_named("next"))
            await heir.grants.admit_node("third", "ed25519:" + "ab" * 32)
        async with Mesh.open(shared_mesh.settings("heir")) as heir_node:
            heir_node.oplog.register(NOTE)
            entry = await heir_node.oplog.append(NOTE.name, {})
            assert await believes(owner, entry.key)
        await owner.store.synced()
        admissions = await owner.grants.admissions()
        assert admissions.is_strict
        assert admissions.has_admitted("third", ["ed25519:" + "ab" * 32])
        await assert_whole(owner)  # the node of the old owner was admitted when the mesh became strict
