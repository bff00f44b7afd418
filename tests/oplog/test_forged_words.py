"""What others pretend: no entry but the owner's own speaks for it, and no op that was put in takes effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.support.nodes.shared_mesh import DERIVED, LATER, SharedMesh, come_and_go, faults
from tests.support.oplog.tampering import NOTE, Intruder, hashed, stranger
from tests.support.store.tables import make_table
from vox_mesh import Mesh, OpKind, Statement
from vox_mesh.errors import ChainBroken, Refused
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.chain import COMMANDS, LogEntry
from vox_mesh.model.oplog.verification import DESIGNATE, ROUTE
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import AuthoredOp
from vox_mesh.store import new_key

# --- what others pretend --------------------------------------------------------------------------

Forging = Callable[[LogEntry, MeshNode], LogEntry]


def with_another_key(entry: LogEntry, other: MeshNode) -> LogEntry:
    return Intruder(other.store).signed(entry, stranger())


def with_the_key_of_another_node(entry: LogEntry, other: MeshNode) -> LogEntry:
    return Intruder(other.store).signed(entry, other.identity.key)


def with_bytes(entry: LogEntry, other: MeshNode) -> LogEntry:
    entry = Intruder(other.store).signed(entry, other.identity.key)
    return entry._replace(payload=entry.payload.encode())  # type: ignore[arg-type]


def with_a_signature_of_bytes(entry: LogEntry, _: MeshNode) -> LogEntry:
    return hashed(entry)._replace(signature=b"ed25519:")  # type: ignore[arg-type]


def with_nonsense(entry: LogEntry, other: MeshNode) -> LogEntry:
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
    """What the owner said is in force for everybody, and its coordinator is only that."""
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
        forged = await intruder.next_entry("forged", kind, payload, hlc=f"{LATER}{kind}")
        await intruder.insert(forge(forged, other))
    await owner.store.synced()
    await assert_still_spoken(owner, other)
    assert await faults(owner) == {"forged"}


async def test_a_signature_of_the_owner_does_not_speak_for_another_entry(
    owner: MeshNode, other: MeshNode
) -> None:
    await spoken(owner)
    (said,) = await owner.oplog.tail(1, kind=DESIGNATE)
    copied = said._replace(node_id="copy", op_id=new_key(), hlc=f"{LATER}copy", payload='{"node":"other"}')
    await Intruder(other.store).insert(copied)
    await Intruder(other.store).insert(hashed(copied._replace(node_id="c", op_id=new_key(), hlc=f"{LATER}c")))
    await owner.store.synced()
    await assert_still_spoken(owner, other)
    assert await faults(owner) == {"copy", "c"}


async def test_an_entry_cut_in_other_places_does_not_speak_for_the_owner(
    owner: MeshNode, other: MeshNode
) -> None:
    """The owner signs a note whose payload holds the text of another op: the same bytes, read otherwise."""
    await spoken(owner)
    inner = {"hlc": f"{LATER}cut", "kind": DESIGNATE, "node": "cut", "op_id": new_key()}
    note = {"a": 0, "grant": None, **inner, "payload": {"node": "other"}}
    outcome = await owner.oplog.append(NOTE.name, note)
    (true,) = [entry for entry in await owner.oplog.tail(1) if entry.op_id == outcome.key]
    named = {"hlc": true.hlc, "kind": true.kind, "node": true.node_id, "op_id": true.op_id}
    outer = canonical({"grant": None, **named})
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


# --- deferred ops ---------------------------------------------------------------------------------


@pytest.fixture
async def counted(owner: MeshNode) -> OpKind:
    """A kind of op that adds a row to a table, whose name is that of the kind."""
    table = await make_table(owner.store, "op_id TEXT")

    def effects(authored: AuthoredOp) -> list[Statement]:
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
        await intruder.insert(intruder.signed(entry._replace(node_id="forged", hlc=f"{LATER}{n}"), key))
        await intruder.delay(entry.op_id)
        forged.append(entry.op_id)
    await owner.pending_ops.run_once()
    assert await applied(owner, counted) == []
    assert [(each.op_id, each.dropped) for each in await owner.pending_ops.waiting()] == [
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
    await owner.pending_ops.run_once()
    assert await applied(owner, counted) == []
    assert await faults(owner) == {"other"}


async def test_a_node_does_not_go_on_after_an_entry_that_was_put_into_its_chain(
    shared_mesh: SharedMesh, owner: MeshNode
) -> None:
    await come_and_go(shared_mesh, "worker")
    intruder = Intruder(owner.store)
    await intruder.insert(await intruder.next_entry("worker", NOTE.name, {}))
    await intruder.insert(await intruder.next_entry("worker" + COMMANDS, NOTE.name, {}))
    with pytest.raises(ChainBroken):
        async with Mesh.open(shared_mesh.settings("worker")):
            pass
    async with Mesh.open_command(shared_mesh.settings("worker")) as command:
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
        entry = intruder.signed(entry._replace(node_id="forged", hlc=f"{LATER}{n}"), stranger())
        await intruder.insert(entry._replace(**parts))
        await intruder.delay(entry.op_id)
    awaited = new_key()
    waiting = await owner.oplog.append(counted.name, {}, deps=[awaited])
    await owner.oplog.append(NOTE.name, {}, key=awaited)
    await owner.pending_ops.run_once()
    assert await applied(owner, counted) == [waiting.key]
    assert [each.dropped for each in await owner.pending_ops.waiting()] == ["forged"] * len(nonsense)


async def test_an_op_that_never_waited_is_not_applied_when_it_is_made_to(
    owner: MeshNode, counted: OpKind
) -> None:
    intruder = Intruder(owner.store)
    done = await owner.oplog.append(counted.name, {})
    with pytest.raises(Refused):
        await owner.oplog.append(counted.name, {}, deps=[(refused := new_key())], key=refused)
    await intruder.delay(done.key)
    await intruder.delay(refused)
    await owner.pending_ops.run_once()
    assert await applied(owner, counted) == [done.key]


async def test_an_op_that_was_applied_is_not_applied_again_when_it_is_made_to_wait(
    owner: MeshNode, counted: OpKind
) -> None:
    awaited = new_key()
    waiting = await owner.oplog.append(counted.name, {}, deps=[awaited])
    await owner.oplog.append(NOTE.name, {}, key=awaited)
    await owner.pending_ops.run_once()
    await Intruder(owner.store).delay(waiting.key)
    await owner.pending_ops.run_once()  # it ends
    assert await applied(owner, counted) == [waiting.key]
