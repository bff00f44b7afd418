"""Roles: who owns the mesh, what follows from its word, and that no other's counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from tests.support.nodes.shared_mesh import DERIVED, SharedMesh, assert_whole, faults
from tests.support.oplog.tampering import NOTE, Intruder, stranger
from vox_mesh import Mesh, Op, Script
from vox_mesh.errors import Refused
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.model.oplog.chain import COMMANDS
from vox_mesh.model.oplog.verification import DESIGNATE, INITIALISE, REKEY, ROUTE
from vox_mesh.node import MeshNode, open_node
from vox_mesh.nodes.clock import Dependencies

# --- the owner ------------------------------------------------------------------------------------


async def test_the_first_node_is_the_owner(owner: MeshNode, other: MeshNode) -> None:
    (initialised,) = await owner.oplog.tail(kind=INITIALISE)
    assert (initialised.node_id, initialised.accepted) == ("owner", 1)
    for node in (owner, other):
        assert await node.roles.owner() == ("owner", owner.identity.key.public, initialised.op_id)
    assert initialised.signature is not None


Saying = Callable[[Mesh], Awaitable[Any]]
SAYINGS: Final[dict[str, tuple[str, Saying]]] = {
    "designate": (DESIGNATE, lambda mesh: mesh.roles.designate_coordinator("other")),
    "designate by hand": (DESIGNATE, lambda mesh: mesh.oplog.append(DESIGNATE, {"node": "other"})),
    "route": (ROUTE, lambda mesh: mesh.roles.route_kind("build", "other")),
    "rekey": (REKEY, lambda mesh: mesh.roles.rekey("other", stranger().public)),
}


@pytest.mark.parametrize(("kind", "say"), SAYINGS.values(), ids=SAYINGS)
async def test_what_only_the_owner_may_say_is_refused_and_noted_when_another_says_it(
    owner: MeshNode, other: MeshNode, kind: str, say: Saying
) -> None:
    await other.oplog.append(NOTE.name, {})
    keys = await other.oplog.keys()
    with pytest.raises(Refused) as refused:
        await say(other)
    assert refused.value.reason == "not_the_owner"
    (entry,) = await other.oplog.tail(1, node_id="other")
    assert (entry.kind, entry.accepted, entry.reason) == (kind, 0, "not_the_owner")
    assert entry.signature is not None
    assert await other.roles.coordinator() is None
    assert await other.roles.routes() == {}
    assert await other.oplog.keys() == keys
    await assert_whole(other)


async def test_a_refused_op_that_is_made_accepted_changes_nothing(owner: MeshNode, other: MeshNode) -> None:
    with pytest.raises(Refused):
        await other.roles.designate_coordinator("other")
    (entry,) = await other.oplog.tail(1, node_id="other")
    await Intruder(owner.store).set("other", entry.seq, accepted=1, reason=None)
    assert await owner.roles.coordinator() is None
    assert await faults(owner) == {"other"}


async def test_the_command_line_of_the_owner_is_the_owner(
    shared_mesh: SharedMesh, owner: MeshNode, other: MeshNode
) -> None:
    async with Mesh.open_command(shared_mesh.settings("owner")) as command:
        await command.roles.designate_coordinator("other")
        await command.roles.route_kind("build", "other")
    async with Mesh.open_command(shared_mesh.settings("other")) as command:
        with pytest.raises(Refused, match="not_the_owner"):
            await command.roles.designate_coordinator("other")
        found = await command.roles.coordinator()
        assert found is not None
        assert found.node_id == "other"
        assert await command.roles.routes() == {"build": "other"}
        (refused,) = await command.oplog.tail(1, node_id="other" + COMMANDS)
        assert (refused.kind, refused.accepted, refused.reason) == (DESIGNATE, 0, "not_the_owner")
        await assert_whole(command)


# --- what is in force -----------------------------------------------------------------------------


async def test_the_latest_by_its_time_is_in_force_not_the_latest_commit(owner: MeshNode) -> None:
    await owner.roles.designate_coordinator("owner")
    await owner.roles.route_kind("build", "owner")
    chain, intruder = "owner" + COMMANDS, Intruder(owner.store)
    await intruder.set_key(chain, owner.identity.key.public)
    for kind, payload in ((DESIGNATE, {"node": "late"}), (ROUTE, {"kind": "build", "node": "late"})):
        older = await intruder.next_entry(chain, kind, payload)
        await intruder.insert(intruder.signed(older, owner.identity.key))
    await assert_whole(owner)
    found = await owner.roles.coordinator()
    assert found is not None
    assert found.node_id == "owner"
    assert await owner.roles.routes() == {"build": "owner"}
    await owner.oplog.append(DERIVED.name, {})


async def test_a_route_can_be_taken_back(owner: MeshNode) -> None:
    await owner.roles.route_kind("build", "owner")
    await owner.roles.route_kind("test", "owner")
    await owner.roles.route_kind("build", None)
    assert await owner.roles.routes() == {"test": "owner"}


# --- derivations ----------------------------------------------------------------------------------


async def test_only_the_coordinator_derives(owner: MeshNode, other: MeshNode) -> None:
    for node in (owner, other):
        with pytest.raises(Refused, match="not_the_coordinator"):
            await node.oplog.append(DERIVED.name, {})
    await owner.roles.designate_coordinator("other")
    await other.oplog.append(DERIVED.name, {})
    with pytest.raises(Refused, match="not_the_coordinator"):
        await owner.oplog.append(DERIVED.name, {})
    (refused,) = await owner.oplog.tail(1, node_id="owner")
    assert (refused.kind, refused.accepted, refused.reason) == (DERIVED.name, 0, "not_the_coordinator")
    await owner.roles.designate_coordinator("owner")
    with pytest.raises(Refused, match="not_the_coordinator"):
        await other.oplog.append(DERIVED.name, {})
    await owner.oplog.append(DERIVED.name, {})
    await assert_whole(owner)


async def test_a_derivation_that_comes_after_another_was_designated_is_refused(
    owner: MeshNode, other: MeshNode
) -> None:
    await owner.roles.designate_coordinator("other")
    guards = await other.roles.guards(DERIVED)
    await owner.roles.designate_coordinator("owner")
    with pytest.raises(Refused, match="not_the_coordinator"):
        await other.store.write(Script(*guards, op=Op(DERIVED.name, "{}")))


# --- drift ----------------------------------------------------------------------------------------


async def test_a_coordinator_that_left_is_reported_and_not_replaced(
    shared_mesh: SharedMesh, owner: MeshNode
) -> None:
    async with Mesh.open(shared_mesh.settings("worker")):
        await owner.roles.designate_coordinator("worker")
        await owner.store.synced()
        found = await owner.roles.coordinator()
        assert found is not None
        assert not found.is_drifting
    await owner.store.synced()
    await owner.run_once()
    found = await owner.roles.coordinator()
    assert found is not None
    assert (found.node_id, found.is_drifting) == ("worker", True)
    with pytest.raises(Refused, match="not_the_coordinator"):
        await owner.oplog.append(DERIVED.name, {})


async def test_a_coordinator_that_died_is_reported_and_not_replaced(shared_mesh: SharedMesh) -> None:
    passed_s = 0.0
    times = Dependencies(monotonic=lambda: passed_s, elapsed=lambda: passed_s)
    async with Mesh.open(shared_mesh.settings("owner"), times) as owner:
        worker = await open_node(shared_mesh.settings("worker", tick="5s"), Dependencies())
        await worker.supervisor.stop_all()
        await worker.store.close()  # as if it had been killed: it has not said that it ends
        await owner.roles.designate_coordinator("worker")
        await owner.store.synced()
        found = await owner.roles.coordinator()
        assert found is not None
        assert not found.is_drifting
        passed_s = 60.0
        found = await owner.roles.coordinator()
        assert found is not None
        assert found.node is not None
        assert (found.node_id, found.node.state, found.is_drifting) == ("worker", NodeState.DEAD, True)
        passed_s = 0.0  # or it would leave with a word against the database's clock
