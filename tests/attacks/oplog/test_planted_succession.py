"""Planted, hidden and replayed successions: the owner is the one that the signatures make it."""

from __future__ import annotations

import orjson
import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.shared_mesh import SharedMesh, faults
from tests.support.oplog.owners import recovery_named
from tests.support.oplog.recovering import found_mesh, recover
from vox_mesh import Mesh
from vox_mesh.errors import BadSettings, BadValue, Refused
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.succession import Transfer
from vox_mesh.model.oplog.verification import ROUTE, TRANSFER

_OF_STEPS = "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'TransferOwnership'"


def plant_step(hostile: HostileWriter, before: LogEntry) -> None:
    """Plant a step by which the hostile key is the owner's, with no other signature than its own."""
    key = hostile.key.public
    transfer = Transfer(before.hash, "evil", key, key, {"evil": 1}, [])
    payload = transfer.payload(hostile.key.sign(transfer.signed_text(hostile.mesh[0])))
    late = f"9{before.hlc[1:13]}-00000-evil"
    hostile.plant_entry("evil", TRANSFER, orjson.loads(payload), hlc=late)
    hostile.plant_entry("evil", ROUTE, {"kind": "*", "node": "evil"})
    hostile.plant_key("evil", 1)
    hostile.run(
        "UPDATE mesh_owner SET node_id = 'evil', public_key = ?3 WHERE scope_id = ?1 AND repository_id = ?2",
        key,
    )


async def test_a_planted_succession_makes_no_owner(shared_mesh: SharedMesh, hostile: HostileWriter) -> None:
    key = await found_mesh(shared_mesh)
    async with Mesh.open_command(shared_mesh.settings("owner")) as owner:
        (first,) = await owner.oplog.tail(kind="InitialiseMesh")
        plant_step(hostile, first)
        async with Mesh.open(shared_mesh.settings("fresh")) as fresh:
            assert await fresh.ownership.key() == key
            assert await fresh.roles.routes() == {}
            assert "evil" in await faults(fresh)
        await owner.roles.route_kind("build", "owner")


async def test_the_recovery_key_makes_an_owner_and_nothing_else_of_the_old_one_s(
    shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    await found_mesh(shared_mesh)
    async with (
        Mesh.open(shared_mesh.settings("heir")) as heir,
        Mesh.open_command(shared_mesh.settings("owner")) as old,
    ):
        with pytest.raises(Refused):  # logged and signed, and not an act: it came before
            await heir.roles.route_kind("early", "heir")
        await recover(heir)
        with pytest.raises(Refused):
            await old.roles.route_kind("late", "old")
        hostile.run(
            "UPDATE agent_oplog SET accepted = 1, reason = NULL "
            "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'RouteKind'"
        )
        async with Mesh.open(shared_mesh.settings("fresh")) as fresh:
            assert await fresh.roles.routes() == {}
            assert await fresh.ownership.key() == heir.identity.key.public


@pytest.mark.parametrize("change", [f"DELETE FROM agent_oplog {_OF_STEPS}", "wipe"])
async def test_a_node_that_saw_the_succession_does_not_go_back(
    shared_mesh: SharedMesh, hostile: HostileWriter, change: str
) -> None:
    await found_mesh(shared_mesh)
    async with (
        Mesh.open(shared_mesh.settings("heir")) as heir,
        Mesh.open(shared_mesh.settings("other")) as other,
    ):
        await recover(heir)
        key = heir.identity.key.public
        assert await other.ownership.key() == key
        if change == "wipe":
            hostile.run(f"UPDATE agent_oplog SET payload = '{{}}' {_OF_STEPS}")
        else:
            hostile.run(change)
        other.ownership.forget()  # as after a rollback
        assert await other.ownership.key() == key
        async with Mesh.open_command(shared_mesh.settings("owner")) as old:
            await old.roles.route_kind("build", "old")  # it has seen nothing, and believes to be the owner
        assert await other.roles.routes() == {}
    async with Mesh.open_command(shared_mesh.settings("other")) as again:  # a new process
        assert await again.ownership.key() == key
        problems = [each.problem or "" for each in await again.oplog.verify()]
        assert any("by which the ownership passed on" in each for each in problems)
    with pytest.raises(BadSettings):
        async with Mesh.open(shared_mesh.settings("fresh", owner_key=key)):
            pass


async def test_a_hidden_verdict_hides_no_succession(shared_mesh: SharedMesh, hostile: HostileWriter) -> None:
    await found_mesh(shared_mesh)
    async with Mesh.open(shared_mesh.settings("heir")) as heir:
        await recover(heir)
        hostile.run(f"UPDATE agent_oplog SET accepted = 0, reason = 'refused', id = id + 1000 {_OF_STEPS}")
        async with Mesh.open(shared_mesh.settings("fresh")) as fresh:
            assert await fresh.ownership.key() == heir.identity.key.public


async def test_competing_successions_make_no_owner_where_neither_was_seen(
    shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    await found_mesh(shared_mesh)
    async with (
        Mesh.open(shared_mesh.settings("heir")) as heir,
        Mesh.open(shared_mesh.settings("thief")) as thief,
    ):
        await recover(heir)
        hostile.run(f"UPDATE agent_oplog SET kind = 'Hidden' {_OF_STEPS}")
        await recover(thief)
        await thief.roles.route_kind("build", "thief")
        hidden = _OF_STEPS.replace(TRANSFER, "Hidden")
        hostile.run(f"UPDATE agent_oplog SET kind = 'TransferOwnership' {hidden}")
        assert await heir.ownership.key() == heir.identity.key.public
        assert await heir.roles.routes() == {}
        async with Mesh.open(shared_mesh.settings("fresh")) as fresh:
            assert await fresh.ownership.key() is None
            assert await fresh.roles.routes() == {}
            with pytest.raises(Refused, match="not_the_owner"):
                await fresh.roles.route_kind("build", "fresh")
        pinned = shared_mesh.settings("pinned", owner_key=heir.identity.key.public)
        async with Mesh.open(pinned) as sure:
            assert await sure.ownership.key() == heir.identity.key.public


async def test_a_recovery_key_is_not_of_use_in_a_log_that_another_key_has_begun(
    shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    key = await found_mesh(shared_mesh)
    (row,) = hostile.run(
        "SELECT payload FROM agent_oplog "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'InitialiseMesh'"
    )
    recovery = orjson.loads(row[0])["recovery"]
    assert recovery == recovery_named("first").signing_key(key).public
    for table in ("agent_oplog", "node_keys", "mesh_owner", "node_incarnations"):
        hostile.run(f"DELETE FROM {table} WHERE scope_id = ?1 AND repository_id = ?2")
    payload = {"key": hostile.key.public, "node": "evil", "recovery": recovery}
    hostile.plant_entry("evil", "InitialiseMesh", payload)
    async with Mesh.open_command(shared_mesh.settings("heir")) as heir:
        with pytest.raises(BadValue, match="not the one in force"):
            await recover(heir)
