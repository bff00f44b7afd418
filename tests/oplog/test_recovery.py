"""Recovery: a mesh whose owner is lost gets another, and everything goes on from there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.oplog.owners import recovery_named
from tests.support.oplog.recovering import found_mesh, recover
from vox_mesh import Mesh, Op, Script
from vox_mesh.errors import BadValue, NotKnown, Refused
from vox_mesh.model.oplog.op_names import OFFER
from vox_mesh.model.oplog.succession import Transfer
from vox_mesh.model.oplog.verification import TRANSFER
from vox_mesh.oplog.export import export_log, verify_export


async def test_another_node_takes_the_lost_owner_s_place(shared_mesh: SharedMesh, tmp_path: Path) -> None:
    old_key = await found_mesh(shared_mesh)
    async with Mesh.open(shared_mesh.settings("owner")) as old:
        await old.roles.route_kind("build", "owner")
        earlier = tmp_path / "earlier.jsonl"
        await export_log(old.oplog, *old.store.mesh_id, earlier)
    pinned = shared_mesh.settings("pinned", owner_key=old_key)
    async with (
        Mesh.open(shared_mesh.settings("heir")) as heir,
        Mesh.open(pinned) as other,
        Mesh.open_command(shared_mesh.settings("owner")) as lost,
    ):
        with pytest.raises(Refused, match="not_the_owner"):
            await heir.roles.route_kind("test", "heir")
        await recover(heir)
        new_key = heir.identity.key.public
        await heir.roles.route_kind("test", "heir")
        await heir.roles.designate_coordinator("heir")
        assert await other.ownership.recorded() == await other.roles.owner()
        with pytest.raises(Refused, match="not_the_owner"):
            await lost.roles.route_kind("build", "thief")
        with pytest.raises(BadValue, match="not the one in force"):
            await recover(other)
        for node in (heir, other, lost):
            assert await node.roles.routes() == {"build": "owner", "test": "heir"}
            assert await node.ownership.key() == new_key
        await heir.roles.rekey("owner", other.identity.key.public)
        await assert_whole(heir)
        await assert_whole(other)
        later = tmp_path / "later.jsonl"
        await export_log(heir.oplog, *heir.store.mesh_id, later)
    heads = verify_export(earlier).ends
    for key in (None, old_key, new_key):
        verified = verify_export(later, owner_key=key, heads=heads)
        assert [each for each in verified.chains if each.problem] == []
        assert verified.owner_keys == (old_key, new_key)
    foreign = verify_export(later, owner_key=recovery_named("x").signing_key("").public)
    assert any(each.problem for each in foreign.chains)
    async with Mesh.open(shared_mesh.settings("fresh", owner_key=new_key)) as fresh:
        assert await fresh.ownership.key() == new_key
        await assert_whole(fresh)


async def test_workers_obey_the_routes_of_the_new_owner(shared_mesh: SharedMesh) -> None:
    await found_mesh(shared_mesh)
    ran = asyncio.Queue[str]()
    async with (
        Mesh.open(shared_mesh.settings("heir")) as heir,
        Mesh.open(shared_mesh.settings("other")) as other,
    ):
        for node in (heir, other):

            @node.worker.handles("build")
            async def build(_: object, name: str = node.identity.node_id) -> None:
                ran.put_nowait(name)

        await recover(heir)
        await heir.roles.route_kind("build", "other")
        await other.store.synced()
        async with asyncio.timeout(30.0), heir.worker.running(), other.worker.running():
            for _ in range(3):
                await heir.jobs.schedule("build", {})
            assert {await ran.get() for _ in range(3)} == {"other"}


async def test_the_owner_replaces_the_recovery_key(shared_mesh: SharedMesh) -> None:
    async with (
        Mesh.open(shared_mesh.settings("owner")) as owner,
        Mesh.open(shared_mesh.settings("heir")) as heir,
    ):
        with pytest.raises(NotKnown, match="no recovery key"):
            await recover(heir)
        with pytest.raises(Refused, match="not_the_owner"):
            await heir.recovery.replace_key(recovery_named("evil"))
        await owner.recovery.replace_key(recovery_named("leaked"))
        await owner.recovery.replace_key(recovery_named("first"))
        await owner.roles.route_kind("build", "owner")
        with pytest.raises(BadValue, match="not the one in force"):
            await recover(heir, "leaked")
        with pytest.raises(BadValue, match="is the owner"):
            await recover(owner, "first")
        await recover(heir, "first")
        assert await owner.roles.routes() == {"build": "owner"}
        assert len(await owner.oplog.tail(kind=TRANSFER)) == 3
        await assert_whole(owner)


async def test_the_owner_passes_the_ownership_on(shared_mesh: SharedMesh) -> None:
    await found_mesh(shared_mesh)
    async with (
        Mesh.open_command(shared_mesh.settings("owner")) as old,
        Mesh.open(shared_mesh.settings("heir")) as heir,
        Mesh.open(shared_mesh.settings("other")) as other,
    ):
        await old.roles.route_kind("build", "owner")
        with pytest.raises(BadValue, match="owner is the owner already"):
            await old.recovery.accept()
        with pytest.raises(NotKnown, match="has not offered it to heir"):
            await heir.recovery.accept()
        with pytest.raises(Refused, match="not_the_owner"):
            await other.recovery.offer("heir")
        await old.recovery.offer("heir")
        with pytest.raises(NotKnown, match="has not offered it to other"):
            await other.recovery.accept()
        assert (await heir.recovery.accept()).node_id == "heir"
        await heir.roles.route_kind("test", "heir")
        await heir.recovery.replace_key(recovery_named("next"))
        with pytest.raises(Refused, match="not_the_owner"):
            await old.roles.route_kind("build", "other")
        with pytest.raises(BadValue, match="heir is the owner already"):
            await heir.recovery.accept()
        for mesh in (old, heir, other):
            assert await mesh.ownership.key() == heir.identity.key.public
            assert await mesh.roles.routes() == {"build": "owner", "test": "heir"}
        await assert_whole(other)


async def test_a_new_recovery_key_withdraws_an_offer(shared_mesh: SharedMesh) -> None:
    await found_mesh(shared_mesh)
    async with (
        Mesh.open_command(shared_mesh.settings("owner")) as old,
        Mesh.open(shared_mesh.settings("heir")) as heir,
    ):
        with pytest.raises(NotKnown, match="signed nothing yet"):
            await old.recovery.offer("unknown")
        with pytest.raises(BadValue, match="is the owner"):
            await old.recovery.offer("owner")
        with pytest.raises(BadValue, match="node must be the name of a node, got ''"):
            await old.recovery.offer("")
        await old.recovery.offer("heir")
        await old.recovery.replace_key(recovery_named("other"))
        with pytest.raises(NotKnown, match="has not offered"):
            await heir.recovery.accept()


async def test_an_offer_that_the_owner_did_not_sign_makes_no_owner(shared_mesh: SharedMesh) -> None:
    key = await found_mesh(shared_mesh)
    async with Mesh.open(shared_mesh.settings("thief")) as thief:
        owners = await thief.ownership.succession()
        assert owners is not None
        own = thief.identity
        since = {"thief": 1, "thief/cli": 1}
        transfer = Transfer(owners.links[-1], "thief", own.key.public, None, since, [])
        payload = transfer.payload(own.key.sign(transfer.signed_text(thief.store.writer_id.scope_id)))
        for kind in (OFFER, TRANSFER):
            await thief.store.write(Script(op=Op(kind, payload, signed=True)))
        with pytest.raises(NotKnown, match="has not offered"):
            await thief.recovery.accept()
        assert await thief.ownership.key() == key
