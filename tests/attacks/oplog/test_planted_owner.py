"""Planted owners and routes: only what the owner of the mesh signed is obeyed."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh import Mesh
from vox_mesh.errors import BadSettings, Refused
from vox_mesh.model.oplog.authorship import OPEN_CHAIN
from vox_mesh.model.oplog.verification import DESIGNATE, INITIALISE, ROUTE
from vox_mesh.node import MeshNode

PATIENCE_S = 30.0


def take_over(hostile: HostileWriter, **columns: int) -> None:
    """Name the hostile key as the owner's, with an op to show for it."""
    op = hostile.plant_entry("evil", INITIALISE, {"key": hostile.key.public, "node": "evil"}, **columns)
    hostile.plant_key("evil", 1)
    hostile.run(
        "UPDATE mesh_owner SET node_id = 'evil', public_key = ?3, op_id = ?4 "
        "WHERE scope_id = ?1 AND repository_id = ?2",
        *(hostile.key.public, op.op_id),
    )


async def test_a_planted_owner_is_not_obeyed_and_the_owner_stays_in_charge(
    shared_mesh: SharedMesh, owner: MeshNode, hostile: HostileWriter
) -> None:
    take_over(hostile)
    hostile.plant_entry("evil", DESIGNATE, {"node": "evil"})
    hostile.plant_entry("evil", ROUTE, {"kind": "*", "node": "evil"})
    async with Mesh.open(shared_mesh.settings("late")) as late:
        found = await late.roles.owner()
        assert found is not None
        assert (found.node_id, found.public_key) == ("owner", owner.identity.key.public)
        assert await late.roles.coordinator() is None
        assert await late.roles.routes() == {}
        await owner.roles.designate_coordinator("owner")
        coordinator = await late.roles.coordinator()
        assert coordinator is not None
        assert coordinator.node_id == "owner"
        problems = {each.node_id: each.problem for each in await late.oplog.verify() if each.problem}
    assert problems == {
        "evil": "another owner than this is recorded",
        "owner": "another owner than this is recorded",
    }


async def test_a_mesh_is_not_left_ownerless_by_a_deleted_row(
    shared_mesh: SharedMesh, owner: MeshNode, hostile: HostileWriter
) -> None:
    hostile.run("DELETE FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2")
    async with Mesh.open(shared_mesh.settings("late")) as late:
        await late.run_once()
        for node in (late, owner):
            found = await node.roles.owner()
            assert found is not None
            assert found.node_id == "owner"


async def test_a_row_planted_before_the_first_node_does_not_own_the_mesh(
    shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    async with Mesh.open_command(shared_mesh.settings("early")):
        pass  # creates the tables
    hostile.insert("mesh_owner", node_id="evil", public_key=hostile.key.public, op_id="x")
    async with Mesh.open(shared_mesh.settings("first")) as first:
        found = await first.roles.owner()
        assert found is not None
        assert found.node_id == "first"
        await first.roles.designate_coordinator("first")


async def test_with_a_pinned_key_not_even_an_earlier_op_makes_another_owner(
    shared_mesh: SharedMesh, owner: MeshNode, hostile: HostileWriter
) -> None:
    await owner.roles.designate_coordinator("owner")
    # The real op goes to the end of the log, and the planted one takes its place.
    ((place,),) = hostile.run(
        "SELECT id FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'InitialiseMesh'"
    )
    hostile.run(
        "UPDATE agent_oplog SET id = (SELECT max(id) + 1 FROM agent_oplog) "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND id = ?3",
        place,
    )
    take_over(hostile, id=place)
    pinned = shared_mesh.settings("late", owner_key=owner.identity.key.public)
    async with Mesh.open(pinned) as late:
        found = await late.roles.owner()
        assert found is not None
        assert found.public_key == owner.identity.key.public
        assert await late.roles.coordinator() is not None
        assert {each.node_id for each in await late.oplog.verify() if each.problem} >= {"evil"}


async def test_a_planted_route_keeps_no_worker_from_its_jobs(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    done = asyncio.Event()

    @other.worker.handles("build")
    async def build(_: object) -> None:
        done.set()

    hostile.plant_entry("evil", ROUTE, {"kind": "build", "node": "evil"})
    hostile.plant_key("evil", 1)
    await other.store.synced()
    await owner.jobs.schedule("build", {})
    async with asyncio.timeout(PATIENCE_S), other.worker.running():
        await done.wait()


async def test_a_route_of_the_owner_that_was_changed_in_the_database_is_still_enforced(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.roles.route_kind("build", "owner")
    await other.store.synced()
    routing = await other.roles.routing()
    hostile.run(
        "UPDATE agent_oplog SET payload = replace(payload, 'owner', 'other') "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'RouteKind'"
    )
    job = await owner.jobs.schedule("build", {})
    item = {"job_id": job.job_id, "claim_token": 1}
    for known, reason in ((routing, "routed_elsewhere"), (None, "routes_changed")):
        claim = other.jobs.transitions
        script = claim.claim([item], 1_000) if known is None else claim.claim([item], 1_000, known)
        with pytest.raises(Refused) as refused:
            await other.store.write(script)
        assert refused.value.reason == reason


def rewrite_log(hostile: HostileWriter) -> None:
    """Replace the whole log by another, in which the hostile key is the owner's, and schedules a job."""
    for table in ("agent_oplog", "node_keys", "mesh_owner", "node_incarnations"):
        hostile.run(f"DELETE FROM {table} WHERE scope_id = ?1 AND repository_id = ?2")
    op = hostile.plant_entry("owner", INITIALISE, {"key": hostile.key.public, "node": "owner"})
    hostile.plant_key("owner", 1)
    hostile.insert("mesh_owner", node_id="owner", public_key=hostile.key.public, op_id=op.op_id)


async def test_a_fresh_node_refuses_a_rewritten_log_if_it_knows_the_owners_key(
    shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    async with Mesh.open(shared_mesh.settings("owner")) as owner:
        key = owner.identity.key.public
    rewrite_log(hostile)
    with pytest.raises(BadSettings, match="but one of another key does"):
        async with Mesh.open(shared_mesh.settings("fresh", owner_key=key)):
            pass
    async with Mesh.open(shared_mesh.settings("fresh")) as fresh:  # it can't know
        found = await fresh.roles.owner()
        assert found is not None
        assert found.public_key == hostile.key.public


async def test_with_a_pinned_key_no_chain_counts_before_the_owner_has_initialised_the_mesh(
    shared_mesh: SharedMesh, hostile: HostileWriter
) -> None:
    async with Mesh.open(shared_mesh.settings("owner")) as owner:
        key = owner.identity.key.public
    for table in ("agent_oplog", "node_keys", "mesh_owner", "node_incarnations"):
        hostile.run(f"DELETE FROM {table} WHERE scope_id = ?1 AND repository_id = ?2")
    hostile.plant_entry("evil", OPEN_CHAIN, {"key": hostile.key.public, "node": "evil"})
    async with Mesh.open_command(shared_mesh.settings("fresh")) as unpinned:
        assert [each.public_key for each in await unpinned.trusted_keys.of_chain("evil")] == [
            hostile.key.public
        ]
    async with Mesh.open(shared_mesh.settings("fresh", owner_key=key)) as fresh:
        assert await fresh.trusted_keys.of_chain("evil") == []
