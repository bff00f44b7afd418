"""Roles: who owns the mesh, what follows from its word, and that nobody else's counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.tables import make_table
from tests.support.tampering import NOTE, Intruder, hashed, stranger
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Op, OpKind, Script, Settings, Statement
from vox_mesh.coordination.clock import Surroundings
from vox_mesh.coordination.identity import COMMANDS
from vox_mesh.coordination.kinds import Authored
from vox_mesh.errors import ChainBroken, KeyRefused, NotKnown, Refused, StaleIncarnation
from vox_mesh.mesh import MeshNode, _open_node
from vox_mesh.model.canonical import canonical
from vox_mesh.model.chain import Entry
from vox_mesh.model.liveness import State
from vox_mesh.model.verification import DESIGNATE, INITIALISE, REKEY, ROUTE
from vox_mesh.store import new_key

_NEVER: Final = "1h"
_LATER: Final = "9999999999999-00000-"
DERIVED: Final = OpKind("test.derived", derivation=True)
SHARED_HOMES: Final = (FILE, MESH, MESH_REPLICA)  # the ways to a server make no difference to who may what


@dataclass(frozen=True)
class Town:
    """One mesh on one home; each node has a folder of its own, as if it were on another machine."""

    case: HomeCase
    folder: Path
    server: Server | None
    scope_id: str

    def settings(self, name: str, **more: Any) -> Settings:
        """The settings of a node; it ticks only when it is asked to."""
        values: dict[str, Any] = {"scope_id": self.scope_id, "node_id": name, "tick": _NEVER}
        if self.case is FILE:
            values["db_path"] = self.folder / "shared.db"
        return self.case.settings(self.folder / name, self.server, **(values | more))

    def forget_key(self, name: str) -> None:
        """Have a node come with another key the next time."""
        (self.folder / name / "vox" / "slots" / name / "key.pem").unlink()


@pytest.fixture(params=SHARED_HOMES, ids=str)
def town(request: pytest.FixtureRequest, tmp_path: Path) -> Town:
    """A mesh that many can share, on each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return Town(case, tmp_path, server, new_key())


@pytest.fixture
async def owner(town: Town) -> AsyncIterator[MeshNode]:
    """The first node of the mesh."""
    async with Mesh.open(town.settings("owner")) as node:
        node.oplog.register(NOTE)
        node.oplog.register(DERIVED)
        yield node


@pytest.fixture
async def other(town: Town, owner: MeshNode) -> AsyncIterator[MeshNode]:
    """A node that came later."""
    async with Mesh.open(town.settings("other")) as node:
        node.oplog.register(NOTE)
        node.oplog.register(DERIVED)
        yield node


async def assert_whole(mesh: Mesh) -> None:
    """The log has no fault."""
    assert [report for report in await mesh.oplog.verify() if report.problem] == []


async def faults(mesh: Mesh) -> set[str]:
    """The chains with a fault."""
    return {report.node_id for report in await mesh.oplog.verify() if report.problem}


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
    town: Town, owner: MeshNode, other: MeshNode
) -> None:
    async with Mesh.open_command(town.settings("owner")) as command:
        await command.roles.designate_coordinator("other")
        await command.roles.route_kind("build", "other")
    async with Mesh.open_command(town.settings("other")) as command:
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


# --- what others pretend --------------------------------------------------------------------------

Forging = Callable[[Entry, MeshNode], Entry]


def with_another_key(entry: Entry, other: MeshNode) -> Entry:
    return Intruder(other.store).signed(entry, stranger())


def with_the_key_of_another_node(entry: Entry, other: MeshNode) -> Entry:
    return Intruder(other.store).signed(entry, other.identity.key)


def with_bytes(entry: Entry, other: MeshNode) -> Entry:
    entry = Intruder(other.store).signed(entry, other.identity.key)
    return entry._replace(payload=entry.payload.encode())  # type: ignore[arg-type]


def with_a_signature_of_bytes(entry: Entry, _: MeshNode) -> Entry:
    return hashed(entry)._replace(signature=b"ed25519:")  # type: ignore[arg-type]


def with_nonsense(entry: Entry, other: MeshNode) -> Entry:
    nonsense = entry._replace(payload="nonsense", causal_deps="[[")
    return Intruder(other.store).signed(nonsense, other.identity.key)


FORGINGS: Final = (
    with_another_key,
    with_the_key_of_another_node,
    with_bytes,
    with_a_signature_of_bytes,
    with_nonsense,
)


async def spoken(owner: MeshNode) -> None:
    """Let the owner say who coordinates and what goes where."""
    await owner.roles.designate_coordinator("owner")
    await owner.roles.route_kind("build", "owner")


async def assert_still_spoken(owner: MeshNode, other: MeshNode) -> None:
    """What the owner said is in force for everybody, and whoever it made coordinator is that alone."""
    for node in (owner, other):
        found = await node.roles.coordinator()
        assert found is not None
        assert found.node_id == "owner"
        assert await node.roles.routes() == {"build": "owner"}
    await owner.oplog.append(DERIVED.name, {})
    with pytest.raises(Refused, match="not_the_coordinator"):
        await other.oplog.append(DERIVED.name, {})


@pytest.mark.parametrize("forge", FORGINGS, ids=lambda each: each.__name__)
async def test_a_forged_word_of_the_owner_is_found_and_ignored(
    owner: MeshNode, other: MeshNode, forge: Forging
) -> None:
    await spoken(owner)
    intruder = Intruder(other.store)
    for kind, payload in ((DESIGNATE, {"node": "other"}), (ROUTE, {"kind": "build", "node": "other"})):
        forged = await intruder.next_entry("forged", kind, payload, hlc=f"{_LATER}{kind}")
        await intruder.insert(forge(forged, other))
    await owner.store.synced()
    await assert_still_spoken(owner, other)
    assert await faults(owner) == {"forged"}


async def test_a_signature_of_the_owner_does_not_speak_for_another_entry(
    owner: MeshNode, other: MeshNode
) -> None:
    await spoken(owner)
    (said,) = await owner.oplog.tail(1, kind=DESIGNATE)
    copied = said._replace(node_id="copy", op_id=new_key(), hlc=f"{_LATER}copy", payload='{"node":"other"}')
    await Intruder(other.store).insert(copied)
    await Intruder(other.store).insert(
        hashed(copied._replace(node_id="c", op_id=new_key(), hlc=f"{_LATER}c"))
    )
    await owner.store.synced()
    await assert_still_spoken(owner, other)
    assert await faults(owner) == {"copy", "c"}


async def test_an_entry_cut_in_other_places_does_not_speak_for_the_owner(
    owner: MeshNode, other: MeshNode
) -> None:
    """The owner signs a note whose payload holds the text of another op: the same bytes, read otherwise."""
    await spoken(owner)
    inner = {"hlc": f"{_LATER}cut", "kind": DESIGNATE, "node": "cut", "op_id": new_key()}
    note = {"a": 0, **inner, "payload": {"node": "other"}}
    outcome = await owner.oplog.append(NOTE.name, note)
    (true,) = [entry for entry in await owner.oplog.tail(1) if entry.op_id == outcome.key]
    outer = canonical({"hlc": true.hlc, "kind": true.kind, "node": true.node_id, "op_id": true.op_id})
    cut = true._replace(
        node_id=inner["node"],
        op_id=inner["op_id"],
        kind=inner["kind"],
        hlc=inner["hlc"],
        causal_deps=f'[],{outer[1:-1]},"payload":{{"a":0',
        payload='{"node":"other"}}',
    )
    assert cut.true_hash == true.hash
    await Intruder(other.store).insert(cut)
    await owner.store.synced()
    await assert_still_spoken(owner, other)
    assert await faults(owner) == {"cut"}


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


async def test_a_coordinator_that_left_is_reported_and_not_replaced(town: Town, owner: MeshNode) -> None:
    async with Mesh.open(town.settings("worker")):
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


async def test_a_coordinator_that_died_is_reported_and_not_replaced(town: Town) -> None:
    passed_s = 0.0
    times = Surroundings(monotonic=lambda: passed_s)
    async with Mesh.open(town.settings("owner"), times) as owner:
        worker = await _open_node(town.settings("worker", tick="5s"), Surroundings())
        for task in worker._tasks:
            task.cancel()
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
        assert (found.node_id, found.node.state, found.is_drifting) == ("worker", State.DEAD, True)


# --- deferred ops ---------------------------------------------------------------------------------


@pytest.fixture
async def counted(owner: MeshNode) -> OpKind:
    """A kind of op that adds a row to a table, whose name is that of the kind."""
    table = await make_table(owner.store, "op_id TEXT")

    def effects(authored: Authored) -> list[Statement]:
        return [Statement(f"INSERT INTO {table} (op_id) VALUES (?)", (authored.op_id,))]

    kind = OpKind(table, effects)
    owner.oplog.register(kind)
    return kind


async def applied(mesh: Mesh, kind: OpKind) -> list[str]:
    """The ops of the kind that took effect, as often as they did."""
    return [row[0] for row in await mesh.store.read(f"SELECT op_id FROM {kind.name}", fresh=True)]


async def test_a_forged_op_that_waits_is_dropped_and_never_applied(
    owner: MeshNode, other: MeshNode, counted: OpKind
) -> None:
    intruder = Intruder(owner.store)
    forged: list[str] = []
    for n, key in enumerate((stranger(), other.identity.key)):
        entry = await intruder.next_entry("owner", counted.name, {}, seq=90 + n, reason="deferred")
        await intruder.insert(intruder.signed(entry._replace(node_id="forged", hlc=f"{_LATER}{n}"), key))
        await intruder.delay(entry.op_id)
        forged.append(entry.op_id)
    await owner.deferral.run_once()
    assert await applied(owner, counted) == []
    assert [(each.op_id, each.dropped) for each in await owner.deferral.waiting()] == [
        (op_id, "forged") for op_id in forged
    ]


async def test_an_author_never_vouches_for_an_entry_that_was_put_into_its_chain(
    owner: MeshNode, other: MeshNode, counted: OpKind
) -> None:
    await other.oplog.append(NOTE.name, {})
    intruder = Intruder(owner.store)
    forged = await intruder.next_entry("other", counted.name, {}, reason="deferred")
    await intruder.insert(forged)
    await intruder.delay(forged.op_id)
    await other.store.synced()
    with pytest.raises(ChainBroken):
        await other.oplog.append(NOTE.name, {})
    await owner.deferral.run_once()
    assert await applied(owner, counted) == []
    assert await faults(owner) == {"other"}


async def test_a_node_does_not_go_on_after_an_entry_that_was_put_into_its_chain(
    town: Town, owner: MeshNode
) -> None:
    await come_and_go(town, "worker")
    intruder = Intruder(owner.store)
    await intruder.insert(await intruder.next_entry("worker", NOTE.name, {}))
    await intruder.insert(await intruder.next_entry("worker" + COMMANDS, NOTE.name, {}))
    with pytest.raises(ChainBroken):
        async with Mesh.open(town.settings("worker")):
            pass
    async with Mesh.open_command(town.settings("worker")) as command:
        with pytest.raises(ChainBroken):
            await command.oplog.anchor()
    assert await faults(owner) == {"worker", "worker" + COMMANDS}


async def test_a_forged_op_whose_parts_make_no_sense_holds_up_no_other(
    owner: MeshNode, counted: OpKind
) -> None:
    intruder = Intruder(owner.store)
    nonsense: list[dict[str, Any]] = [{"causal_deps": "[["}, {"payload": b"\xff"}, {"causal_deps": b"[]"}]
    for n, parts in enumerate(nonsense):
        entry = await intruder.next_entry("owner", counted.name, {}, seq=90 + n, reason="deferred")
        entry = intruder.signed(entry._replace(node_id="forged", hlc=f"{_LATER}{n}"), stranger())
        await intruder.insert(entry._replace(**parts))
        await intruder.delay(entry.op_id)
    awaited = new_key()
    waiting = await owner.oplog.append(counted.name, {}, deps=[awaited])
    await owner.oplog.append(NOTE.name, {}, key=awaited)
    await owner.deferral.run_once()
    assert await applied(owner, counted) == [waiting.key]
    assert [each.dropped for each in await owner.deferral.waiting()] == ["forged"] * len(nonsense)


async def test_an_op_that_never_waited_is_not_applied_when_it_is_made_to(
    owner: MeshNode, counted: OpKind
) -> None:
    intruder = Intruder(owner.store)
    done = await owner.oplog.append(counted.name, {})
    with pytest.raises(Refused):
        await owner.oplog.append(counted.name, {}, deps=[(refused := new_key())], key=refused)
    await intruder.delay(done.key)
    await intruder.delay(refused)
    await owner.deferral.run_once()
    assert await applied(owner, counted) == [done.key]


async def test_an_op_that_was_applied_is_not_applied_again_when_it_is_made_to_wait(
    owner: MeshNode, counted: OpKind
) -> None:
    awaited = new_key()
    waiting = await owner.oplog.append(counted.name, {}, deps=[awaited])
    await owner.oplog.append(NOTE.name, {}, key=awaited)
    await owner.deferral.run_once()
    await Intruder(owner.store).delay(waiting.key)
    await owner.deferral.run_once()  # it ends
    assert await applied(owner, counted) == [waiting.key]


# --- new keys -------------------------------------------------------------------------------------


async def come_and_go(town: Town, name: str) -> str:
    """Let a node append an op, also from its command line, and leave; its key."""
    async with Mesh.open(town.settings(name)) as node:
        node.oplog.register(NOTE)
        await node.oplog.append(NOTE.name, {})
    async with Mesh.open_command(town.settings(name)) as command:
        await command.oplog.anchor()
    return node.identity.key.public


async def test_a_node_with_a_new_key_waits_for_the_owner_to_accept_it(town: Town, owner: MeshNode) -> None:
    old = await come_and_go(town, "worker")
    town.forget_key("worker")
    with pytest.raises(KeyRefused) as refused:
        async with Mesh.open(town.settings("worker")):
            pass
    new, _ = await owner.roles.rekey("worker")
    assert new != old
    assert new in str(refused.value)
    assert "nodes rekey worker" in refused.value.hint
    assert await come_and_go(town, "worker") == new
    await owner.store.synced()
    keys = [key for key in await owner.oplog.keys() if key.node_id.startswith("worker")]
    assert [(key.node_id, key.public_key) for key in keys] == [
        ("worker", old),
        ("worker", new),
        ("worker" + COMMANDS, old),
        ("worker" + COMMANDS, new),
    ]
    assert keys[1].from_seq > 1
    await assert_whole(owner)
    with pytest.raises(NotKnown):
        await owner.roles.rekey("worker")  # the request is gone


async def test_a_command_with_a_new_key_is_refused(town: Town, owner: MeshNode) -> None:
    await come_and_go(town, "worker")
    town.forget_key("worker")
    async with Mesh.open_command(town.settings("worker")) as command:
        with pytest.raises(KeyRefused, match="worker is known with another key"):
            await command.oplog.anchor()


async def test_nobody_but_the_owner_accepts_a_key_that_was_asked_for(
    town: Town, owner: MeshNode, other: MeshNode
) -> None:
    old = await come_and_go(town, "worker")
    town.forget_key("worker")
    with pytest.raises(KeyRefused):
        async with Mesh.open(town.settings("worker")):
            pass
    with pytest.raises(Refused, match="not_the_owner"):
        await other.roles.rekey("worker")
    assert {key.public_key for key in await other.oplog.keys() if key.node_id == "worker"} == {old}
    with pytest.raises(KeyRefused):
        async with Mesh.open(town.settings("worker")):
            pass
    await owner.roles.rekey("worker")  # the request is still there


async def test_a_key_is_not_accepted_while_the_node_still_writes(
    owner: MeshNode, other: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.oplog.append(NOTE.name, {})
    read = owner.roles._read

    async def read_while_it_writes(name: str, *values: Any) -> Any:
        rows = await read(name, *values)
        if name == "chains_of":
            await other.oplog.append(NOTE.name, {})
        return rows

    monkeypatch.setattr(owner.roles, "_read", read_while_it_writes)
    with pytest.raises(Refused, match="node_still_writes"):
        await owner.roles.rekey("other", stranger().public)
    await other.oplog.append(NOTE.name, {})
    await owner.store.synced()
    await assert_whole(owner)


async def test_a_process_with_the_old_key_writes_no_more_once_another_is_accepted(
    owner: MeshNode, other: MeshNode
) -> None:
    await other.oplog.append(NOTE.name, {})
    await owner.roles.rekey("other", stranger().public)
    with pytest.raises(StaleIncarnation):
        await other.oplog.append(NOTE.name, {})
    await assert_whole(owner)
