"""Pending ops: an op waits for its dependencies, and is applied once, by a node that sees the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.oplog.authoring import NOTE, NOTE_KIND, assert_sound, noted, scene
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Rows, Script, Statement, guard
from vox_mesh.errors import BadValue, CircuitOpen, ClockOff, NotKnown, Refused
from vox_mesh.mesh import Mesh
from vox_mesh.model.oplog.op_names import APPLY, DROP
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.oplog.op_kinds import AuthoredOp, OpKind
from vox_mesh.oplog.pending_ops import PendingOp
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.script import new_key

ADD: Final = "add"
CLOSED: Final = "closed"
FAULTY: Final = "faulty"


def _add(op: AuthoredOp) -> Sequence[Statement]:
    return [Statement("INSERT INTO effects VALUES (?, ?)", (op.op_id, op.node_id))]


KINDS: Final = (
    NOTE_KIND,
    OpKind(ADD, effects=_add),
    OpKind(CLOSED, effects=lambda op: [*_add(op), guard("0", refusal="never_open")]),
    OpKind(FAULTY, effects=lambda op: [Statement("SELECT ?", (op.payload["missing"],))]),
)


async def know(node: Mesh) -> None:
    """Have the node know the kinds, and the table that they write to be there."""
    for kind in KINDS:
        node.oplog.register(kind)
    # Nothing in it is unique: an op that is applied twice shows.
    await node.store.write(Script(Statement("CREATE TABLE IF NOT EXISTS effects (op_id, node_id)")))


async def effects(node: Mesh, *op_ids: str) -> list[str]:
    """Which of the ops took effect, in which order."""
    rows = await node.store.read("SELECT op_id FROM effects ORDER BY rowid", fresh=True)
    return [row[0] for row in rows if row[0] in op_ids]


async def add(node: Mesh, *deps: str, key: str | None = None, kind: str = ADD) -> str:
    """Append an op that depends on others; its id."""
    return (await node.oplog.append(kind, {}, deps=deps, key=key)).key


async def applied(node: Mesh, op_id: str) -> None:
    """Wait until an op took effect, whichever node applies it."""
    async with asyncio.timeout(30):
        async for change in node.store.watch("SELECT 1 FROM effects WHERE op_id = ?", (op_id,)):
            if change.rows:
                return


async def waiting(node: Mesh) -> dict[str, str | None]:
    """The ops that were not applied, and why the ones that were dropped were."""
    return {each.op_id: each.dropped for each in await node.pending_ops.waiting()}


async def standing_entries(node: Mesh, kind: str) -> list[tuple[str, int]]:
    """What was logged of applying or dropping, and whether it was accepted."""
    return [(entry.node_id, entry.accepted) for entry in await node.oplog.tail(100, kind=kind)]


# --- applying ------------------------------------------------------------------------------------


async def test_an_op_waits_until_the_last_it_depends_on_is_there() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        first, second = new_key(), new_key()
        op_id = await add(node, first, second)
        (entry,) = await node.oplog.tail(1, kind=ADD)
        assert (entry.op_id, entry.accepted, entry.reason) == (op_id, 1, "deferred")
        await add(node, key=first)
        assert await node.pending_ops.run_once() == 0
        assert await effects(node, op_id) == []
        await add(node, key=second)
        assert await node.pending_ops.run_once() == 1
        assert await effects(node, op_id, first, second) == [first, second, op_id]
        assert await node.pending_ops.run_once() == 0
        assert await waiting(node) == {}
        await assert_sound(node)


async def test_an_op_whose_dependencies_are_applied_is_applied_at_once(mesh: MeshNode) -> None:
    first = (await mesh.oplog.append(NOTE, {})).key
    second = (await mesh.oplog.append(NOTE, {}, deps=[first])).key
    assert await mesh.pending_ops.waiting_for(second) is None
    (entry,) = await mesh.oplog.tail(1, kind=NOTE)
    assert (entry.causal_deps, entry.reason) == (f'["{first}"]', None)


async def test_a_chain_of_waiting_ops_is_applied_in_its_order() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        keys = [new_key() for _ in range(8)]
        for before, key in reversed(list(pairwise(keys))):
            await add(node, before, key=key)
        assert len(await waiting(node)) == 7
        await add(node, key=keys[0])
        assert await node.pending_ops.run_once() == 7
        assert await effects(node, *keys) == keys


async def test_more_ops_than_are_looked_at_at_once_are_all_applied() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        dep = new_key()
        op_ids = [await add(node, dep) for _ in range(70)]
        await add(node, key=dep)
        assert await node.pending_ops.run_once() == 70
        assert await effects(node, *op_ids) == op_ids


async def test_what_waited_in_one_incarnation_is_applied_in_the_next() -> None:
    async with scene() as there:
        dep = new_key()
        async with there.node() as node:
            await know(node)
            op_id = await add(node, dep)
        async with there.node() as node:
            await node.oplog.append(NOTE, {}, key=dep)  # as yet it does not know the kind that waits
            assert await node.pending_ops.run_once() == 0
            assert list(await waiting(node)) == [op_id]
        async with there.node() as node:
            await know(node)
            assert await node.pending_ops.run_once() == 1
            assert await effects(node, op_id) == [op_id]
            await assert_sound(node)


@pytest.mark.parametrize("home", ["memory", "file"])
async def test_nodes_that_try_at_the_same_time_apply_once(home: str, tmp_path: Path) -> None:
    engine = await FileEngine.open(tmp_path / "x.db") if home == "file" else None
    async with scene(engine) as there, there.node("a") as one, there.node("b") as two, there.node("c") as far:
        for node in (one, two, far):
            await know(node)
        dep = new_key()
        op_ids = [await add(one, dep) for _ in range(20)]
        await add(far, key=dep)
        await asyncio.gather(
            one.pending_ops.run_once(), two.pending_ops.run_once(), far.pending_ops.run_once()
        )
        assert sorted(await effects(one, *op_ids)) == sorted(op_ids)
        assert await waiting(one) == {}
        accepted = [node_id for node_id, verdict in await standing_entries(one, APPLY) if verdict]
        assert len(accepted) == len(op_ids)
        await assert_sound(one)


async def decided_twice(one: MeshNode, two: MeshNode, op_id: str) -> None:
    """Have both nodes decide on an op that each believes to be waiting."""
    await one.pending_ops._decide(op_id)
    await two.pending_ops._decide(op_id)


async def test_a_node_that_comes_second_changes_nothing() -> None:
    async with scene() as there, there.node("a") as one, there.node("b") as two:
        await know(one)
        await know(two)
        dep = new_key()
        op_id = await add(one, dep)
        dropped = await add(one, dep, kind=CLOSED)
        await one.oplog.append(NOTE, {}, key=dep)
        await decided_twice(one, two, op_id)
        await decided_twice(one, two, dropped)
        assert await effects(one, op_id, dropped) == [op_id]
        assert await waiting(one) == {dropped: "never_open"}
        assert [pair for pair in await standing_entries(one, APPLY) if pair[1]] == [("a", 1)]
        assert await standing_entries(one, DROP) == [("a", 1)]
        await assert_sound(one)


@pytest.mark.parametrize("case", [FILE, MESH, MESH_REPLICA], ids=str)
async def test_another_node_applies_what_its_author_did_not_live_to_see(
    case: HomeCase, tmp_path: Path, shared_server: Server
) -> None:
    server = shared_server if case.needs_server else None
    settings = case.settings(tmp_path, server, tick="100ms")
    dep, late = new_key(), new_key()
    async with Mesh.open(settings) as other:
        await know(other)
        async with Mesh.open(settings) as author:
            assert author.identity.node_id != other.identity.node_id
            await know(author)
            op_id = await add(author, dep)
            at_last = await add(author, op_id, late)
        await other.oplog.append(NOTE, {}, key=dep)
        await applied(other, op_id)
        (waits,) = await other.pending_ops.waiting()
        assert waits.waits_for == [{"op_id": late, "standing": "absent"}]
    async with Mesh.open(settings) as other:  # after a restart too
        await know(other)
        await other.oplog.append(NOTE, {}, key=late)
        await applied(other, at_last)
        assert await effects(other, op_id, at_last) == [op_id, at_last]
        rows = await other.store.read("SELECT DISTINCT node_id FROM effects WHERE op_id = ?", (op_id,))
        assert [row[0] for row in rows] == [author.identity.node_id], "it is its author's still"
        await assert_sound(other)


# --- what is never applied -----------------------------------------------------------------------


async def test_an_op_that_depends_on_a_refused_one_is_refused_or_dropped_and_so_on_down() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        dep = new_key()
        child = await add(node, dep)
        grandchild = await add(node, child)
        with pytest.raises(Refused, match="never_open"):
            await add(node, key=dep, kind=CLOSED)
        with pytest.raises(Refused, match="dependency_refused"):
            await add(node, dep)
        assert await node.pending_ops.run_once() == 2
        assert await waiting(node) == {child: "dependency_refused", grandchild: "dependency_refused"}
        with pytest.raises(Refused, match="dependency_refused"):
            await add(node, grandchild)
        assert await effects(node, dep, child, grandchild) == []
        assert await node.pending_ops.run_once() == 0
        await assert_sound(node)


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_a_cycle_is_refused(mesh: MeshNode, length: int) -> None:
    keys = [new_key() for _ in range(length)]
    *first, last = zip(keys, [*keys[1:], keys[0]], strict=True)
    for key, dep in first:
        await mesh.oplog.append(NOTE, {}, key=key, deps=[dep])
    with pytest.raises(Refused, match="dependency_cycle"):
        await mesh.oplog.append(NOTE, {}, key=last[0], deps=[last[1]])
    await mesh.pending_ops.run_once()
    assert await waiting(mesh) == {key: "dependency_refused" for key, _ in first}
    await assert_sound(mesh)


async def test_a_cycle_within_one_request_is_refused() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        one, two, three = (new_key() for _ in range(3))
        there.gate.hold()
        under_way = asyncio.create_task(node.store.write(noted()))
        await there.gate.arrival()
        cycle = ((one, two), (two, three), (three, one))
        tasks = [asyncio.create_task(add(node, dep, key=key)) for key, dep in cycle]
        async with asyncio.timeout(10):
            while node.store._combiner.depth < 3:  # noqa: ASYNC110  # there is no event; a few rounds of the loop
                await asyncio.sleep(0)
        there.gate.release()
        await under_way
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(end, Refused) for end in ends] == [False, False, True]
        await node.pending_ops.run_once()
        assert await waiting(node) == {one: "dependency_refused", two: "dependency_refused"}


async def test_effects_that_are_refused_drop_their_op_with_the_reason() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        dep = new_key()
        closed = await add(node, dep, kind=CLOSED)
        faulty = await add(node, dep, kind=FAULTY)
        good = await add(node, dep)
        await add(node, key=dep)
        await node.pending_ops.run_once()
        assert await waiting(node) == {closed: "never_open", faulty: "bad_payload"}
        assert await effects(node, closed, good) == [good], "those behind it do not wait forever"
        await assert_sound(node)


async def test_a_waiting_op_that_its_author_never_signed_is_dropped_as_forged() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        dep, forged = new_key(), new_key()
        op_id = await add(node, dep)
        await node.oplog.append(NOTE, {}, key=dep)
        columns = "scope_id, repository_id, node_id, kind, causal_deps, payload, prev, hash, accepted"
        copying = Statement(
            f"INSERT INTO agent_oplog ({columns}, seq, op_id, hlc) SELECT {columns}, 99, ?2, ?2 "
            "FROM agent_oplog WHERE op_id = ?1",
            (op_id, forged),
        )
        waits = Statement(
            "INSERT INTO deferred_ops (scope_id, repository_id, op_id, causal_deps) "
            "SELECT scope_id, repository_id, ?2, causal_deps FROM deferred_ops WHERE op_id = ?1",
            (op_id, forged),
        )
        async with there.node("attacker") as attacker:
            await attacker.store.write(Script(copying, waits))
            await know(attacker)
            await attacker.pending_ops.run_once()
            assert await waiting(attacker) == {forged: "forged"}
            assert await effects(attacker, op_id, forged) == [op_id]


# --- asking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_itself", [False, True], ids=["its dependency", "the op itself"])
async def test_an_op_is_left_alone_when_a_rollback_has_lost_what_was_seen(
    is_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        first = new_key()
        op_id = await add(node, first)
        await add(node, key=first)
        seen, look = await node.pending_ops._read_decided(), node.pending_ops._read_decided

        async def decided(*, fresh: bool = False) -> Rows:
            return await look(fresh=True) if fresh else seen  # as a replica may still show it

        lost = op_id if is_itself else first
        for table in ("agent_oplog", "deferred_ops"):
            await node.store.write(Script(Statement(f"DELETE FROM {table} WHERE op_id = ?", (lost,))))
        monkeypatch.setattr(node.pending_ops, "_read_decided", decided)
        await node.pending_ops.run_once()
        assert await effects(node, op_id) == []
        assert await waiting(node) == ({} if is_itself else {op_id: None})


async def test_asking_says_what_is_waited_for(mesh: MeshNode) -> None:
    absent, there = new_key(), (await mesh.oplog.append(NOTE, {})).key
    op_id = (await mesh.oplog.append(NOTE, {}, deps=[absent, there])).key
    behind = (await mesh.oplog.append(NOTE, {}, deps=[op_id])).key

    def expected(op_id: str, *waits_for: tuple[str, str]) -> PendingOp:
        said: list[dict[str, Any]] = [{"op_id": each, "standing": how} for each, how in waits_for]
        return PendingOp(op_id, mesh.identity.node_id, NOTE, None, said)

    first, second = expected(op_id, (absent, "absent")), expected(behind, (op_id, "deferred"))
    assert await mesh.pending_ops.waiting() == [first, second]
    assert await mesh.pending_ops.waiting(limit=1) == [first]
    assert await mesh.pending_ops.waiting_for(behind) == second
    assert await mesh.pending_ops.waiting_for(there) is None
    with pytest.raises(NotKnown):
        await mesh.pending_ops.waiting_for(absent)
    await mesh.oplog.append(NOTE, {}, key=absent)
    await mesh.pending_ops.run_once()
    assert await mesh.pending_ops.waiting() == []
    assert await mesh.pending_ops.waiting_for(behind) is None


async def test_an_op_that_waits_is_stored_though_no_one_can_look_then_what_it_waits_for() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        dep = new_key()
        there.gate.asking.extend([None, None, CircuitOpen("away")])  # for grants, for `dep`, and once more
        op_id = await add(node, dep)
        assert not there.gate.asking
        await add(node, key=dep)
        await node.pending_ops.run_once()
        assert await effects(node, op_id) == [op_id]


async def test_an_op_that_waits_is_stored_though_the_clock_goes_off_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scene() as there, there.node("a") as node:
        await know(node)
        missing = new_key()

        async def refuse() -> int:
            raise ClockOff("this machine's clock is +153 s from the database's")

        with monkeypatch.context() as patched:
            patched.setattr(node.pending_ops, "run_once", refuse)
            waiting = await add(node, missing)
        await add(node, key=missing)
        await node.pending_ops.run_once()
        assert await effects(node, missing, waiting) == [missing, waiting]


async def test_an_op_that_waits_and_is_sent_again_takes_effect_once() -> None:
    async with scene() as there, there.node() as node:
        await know(node)
        dep, op_id = new_key(), new_key()
        for _ in range(2):
            await add(node, dep, key=op_id)
        await add(node, key=dep)
        for _ in range(2):
            outcome = await node.oplog.append(ADD, {}, deps=[dep], key=op_id)
            assert outcome.repeated
            await node.pending_ops.run_once()
        assert await effects(node, op_id) == [op_id]
        await assert_sound(node)


async def test_dependencies_are_named_by_ids_each_once_and_not_too_many(mesh: MeshNode) -> None:
    key = new_key()
    for deps in (["not an id"], [key, key], [new_key() for _ in range(257)], [key.lower()]):
        with pytest.raises(BadValue):
            await mesh.oplog.append(NOTE, {}, deps=deps)
    assert await mesh.oplog.tail(1, kind=NOTE) == []


async def test_an_op_is_later_than_those_it_depends_on_whatever_the_clocks_say() -> None:
    hours = (3_600_000, 0, -3_600_000, 30_000)
    async with scene() as there:
        before: list[str] = []
        for turn in range(12):
            wall_ms = Dependencies().wall_ms() + hours[turn % len(hours)]
            async with there.node(f"n{turn % 5}", Dependencies(wall_ms=partial(int, wall_ms))) as node:
                await node.store.write(Script(Statement("SELECT 1")))
                node.clock.is_off = False  # let them author nevertheless
                before.append((await node.oplog.append(NOTE, {}, deps=before[-1:])).key)
                entries = {entry.op_id: entry.hlc for entry in await node.oplog.tail(100, kind=NOTE)}
                times = [entries[key][:19] for key in before]
                assert times == sorted(set(times))
