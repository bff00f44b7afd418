"""The op log when answers get lost: nothing is lost or doubled, and the chain goes on without a gap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final

import pytest

from proof.chaos.proxy import Fault, Proxy
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import (
    NOTE,
    NOTE_KIND,
    RestartableNodes,
    assert_sound,
    ids,
    noted,
    notes,
    scene,
)
from tests.support.running.lengths import SOAK, in_soak
from tools.homes import MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import Answer, Outcome, Script, Statement, guard
from vox_mesh.errors import (
    ChainBroken,
    CircuitOpen,
    MeshError,
    NoAnswer,
    OutcomeUnknown,
    Overloaded,
    Refused,
    StaleIncarnation,
    Unreachable,
)
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.script import Op, new_key
from vox_mesh.store.write.breaker import Breaker

SHORT_S: Final = 0.05
CLOSED: Final = guard("0", refusal="closed")
WALKS: Final = 200 if SOAK else 12
STEPS: Final = 60 if SOAK else 30


async def give_up(there: RestartableNodes, node: MeshNode, script: Script) -> None:
    """Send a script whose request stands at the gate until no one waits for it any more."""
    there.gate.hold()
    with pytest.raises(OutcomeUnknown) as unknown:
        await node.store.write(script, timeout=SHORT_S)
    assert unknown.value.key == script.key
    there.gate.release()


# --- answers that get lost -----------------------------------------------------------------------


async def test_a_lost_answer_is_asked_for_again_and_the_op_is_there_once() -> None:
    async with scene() as there, there.node() as node:
        await node.oplog.append(NOTE, {})
        there.gate.after.extend([NoAnswer("lost"), NoAnswer("lost again")])
        answer = Answer("SELECT 7", columns=("seven",))
        outcome = await node.store.write(Script(answer=answer, op=Op(NOTE, "{}")))
        assert (outcome.rows.value, outcome.repeated) == (7, True)
        there.gate.after.append(NoAnswer("lost"))
        with pytest.raises(Refused, match="closed"):
            await node.store.write(noted(CLOSED))
        assert [entry.accepted for entry in await notes(node)] == [1, 1, 0]
        await assert_sound(node)


async def test_an_op_whose_copy_came_first_is_not_reported_as_unsent_and_is_there_once() -> None:
    async with scene() as there, there.node() as node:
        await node.oplog.append(NOTE, {})
        script = Script(op=Op(NOTE, "{}"))
        there.gate.doubled = 1
        there.gate.asking.extend(Unreachable("no route") for _ in range(10_000))  # what became of it
        with pytest.raises(OutcomeUnknown):
            await node.store.write(script, timeout=SHORT_S)
        there.gate.asking.clear()
        assert (await node.store.write(script)).repeated
        assert len(await notes(node)) == 2
        await assert_sound(node)


async def test_a_request_that_lands_late_is_refused_as_a_whole() -> None:
    async with scene() as there, there.node() as node:
        await node.store.write(Script(Statement("CREATE TABLE t (a)")))
        late = noted(Statement("INSERT INTO t VALUES ('late')"))
        await give_up(there, node, late)
        request = there.gate.batches[-1]
        newer = await node.oplog.append(NOTE, {})
        assert not await there.gate.land(request)
        assert ids(await notes(node)) == [newer.key]
        assert not await node.store.read("SELECT * FROM t")
        await node.store.write(late)  # its key tells: it was not applied, so it is now
        assert not await there.gate.land(request)
        assert ids(await notes(node)) == [newer.key, late.key]
        assert len(await node.store.read("SELECT * FROM t")) == 1
        await assert_sound(node)


async def test_a_request_that_lands_after_it_was_given_up_is_found_in_the_log() -> None:
    async with scene() as there, there.node() as node:
        await node.run_once()
        late = noted(key=new_key())
        await give_up(there, node, late)
        assert await there.gate.land(there.gate.batches[-1])
        assert (await node.store.write(late)).repeated
        newer = await node.oplog.append(NOTE, {})
        assert ids(await notes(node)) == [late.key, newer.key]
        await node.store.write(node.oplog.seal_script())
        await assert_sound(node)


async def test_a_request_that_lands_while_the_next_is_under_way_leaves_both_in_the_chain() -> None:
    async with scene() as there, there.node() as node:
        await node.run_once()
        late = noted()
        await give_up(there, node, late)
        given_up = there.gate.batches[-1]
        there.gate.hold()
        next_one = asyncio.create_task(node.oplog.append(NOTE, {}))
        await there.gate.arrival()
        assert await there.gate.land(given_up)  # after the end was read for the next one
        there.gate.release()
        newer = await next_one
        assert ids(await notes(node)) == [late.key, newer.key]
        await assert_sound(node)


async def test_after_an_op_of_unknown_fate_what_has_no_op_goes_on_as_ever() -> None:
    async with scene() as there, there.node() as node:
        await node.run_once()
        await give_up(there, node, noted())
        await node.run_once()
        assert (await node.store.write(Script(Statement("SELECT 1")))).repeated is False
        await node.oplog.append(NOTE, {})
        await assert_sound(node)


async def test_a_node_that_was_replaced_is_notified_and_its_late_requests_are_refused() -> None:
    async with scene() as there, there.node() as old:
        await old.oplog.append(NOTE, {})
        await give_up(there, old, noted())
        late = there.gate.batches[-1]
        async with there.node() as new:
            await new.run_once()
            assert not await there.gate.land(late)
            for script in (noted(), Script(Statement("SELECT 1"))):
                with pytest.raises(StaleIncarnation):
                    await old.store.write(script)
            await new.oplog.append(NOTE, {})
            assert len(await notes(new)) == 2
            await assert_sound(new)


async def test_what_a_node_wrote_before_it_was_replaced_is_not_reported_as_unwritten() -> None:
    async with scene() as there, there.node() as old:
        await old.oplog.append(NOTE, {})
        script = Script(Statement("SELECT 1"))
        await give_up(there, old, script)
        assert await there.gate.land(there.gate.batches[-1])
        async with there.node() as new:
            await new.run_once()
            with pytest.raises(OutcomeUnknown, match="was started again elsewhere"):
                await old.store.write(script)


async def test_entries_that_were_acknowledged_and_are_gone_are_reported() -> None:
    async with scene() as there, there.node() as node:
        for _ in range(3):
            await node.oplog.append(NOTE, {})
        await node.store.write(Script(Statement("DELETE FROM agent_oplog WHERE seq = 3")))
        for _ in range(2):
            with pytest.raises(ChainBroken, match="entry 3 of a"):
                await node.oplog.append(NOTE, {})
        await node.store.write(Script(Statement("SELECT 1")))
        assert len(await notes(node)) == 2


async def test_a_long_chain_that_comes_in_pages_is_taken_in_once() -> None:
    async with scene() as there:
        async with there.node() as node:
            for _ in range(11):
                await node.store.write_all([noted() for _ in range(200)])
        async with there.node() as node:
            ask, asked = there.gate.query, 0

            async def query(statement: Statement) -> object:
                nonlocal asked
                asked += "agent_oplog" in statement.sql
                if asked in (3, 5):  # the second page of the chain, and the next try's
                    asked += 1
                    raise Unreachable("cut")
                return await ask(statement)

            there.gate.query = query  # type: ignore[method-assign, assignment]
            await node.oplog.append(NOTE, {})
            assert asked > 5
            await node.store.write(node.oplog.seal_script())
            await assert_sound(node)


# --- while the database is away ------------------------------------------------------------------


async def test_with_the_circuit_open_ops_fail_at_once_or_wait_in_the_spool_in_their_order(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with scene() as there:
        breaker = Breaker(clock, faults=1)
        async with there.node(breaker=breaker, spool=tmp_path / "spool.db") as node:
            before = await node.oplog.append(NOTE, {"n": 0})
            there.gate.before.append(Unreachable("no route"))
            with pytest.raises(CircuitOpen):
                await node.store.write(noted(CLOSED))
            kept = [await node.oplog.append(NOTE, {"n": n}) for n in range(1, 6)]
            assert all(outcome.spooled for outcome in kept)
            with pytest.raises(CircuitOpen):
                await node.store.write(noted(CLOSED))
            assert len(await notes_once_closed(there)) == 1
        async with there.node(spool=tmp_path / "spool.db") as node:  # by the next owner of the slot
            await asyncio.wait_for(node.store.drained(), 10)
            assert ids(await notes(node)) == [before.key, *(outcome.key for outcome in kept)]
            await node.store.write(node.oplog.seal_script())
            await assert_sound(node)


async def notes_once_closed(there: RestartableNodes) -> list[str]:
    """The notes of all nodes, past the store, whose circuit is open."""
    rows = await there.gate.query(Statement("SELECT op_id FROM agent_oplog WHERE kind = ?", (NOTE,)))
    return [row[0] for row in rows]


async def test_an_op_that_went_to_the_spool_and_had_landed_is_there_once(tmp_path: Path) -> None:
    async with scene() as there, there.node(spool=tmp_path / "spool.db") as node:
        await node.run_once()
        there.gate.hold()
        kept = await node.oplog.append(NOTE, {}, timeout=SHORT_S)
        assert kept.spooled
        assert await there.gate.land(there.gate.batches[-1])
        there.gate.release()
        await asyncio.wait_for(node.store.drained(), 10)
        await node.oplog.append(NOTE, {})
        assert ids(await notes(node))[0] == kept.key
        assert len(await notes(node)) == 2
        await assert_sound(node)


@pytest.mark.soak
@pytest.mark.parametrize("case", [MESH, *in_soak(MESH_HTTP)], ids=str)
async def test_answers_lost_by_a_network_lose_and_double_nothing(
    case: HomeCase, tmp_path: Path, shared_server: Server
) -> None:
    async with Proxy(shared_server.port) as proxy:
        settings = case.settings(tmp_path, shared_server, db_url=proxy.url, tick=3_600)
        async with Mesh.open(settings) as node:
            node.oplog.register(NOTE_KIND)
            await node.oplog.append(NOTE, {})
            keys: list[str] = []
            for fault in (Fault.DROP_ANSWER, Fault.CUT_ANSWER, Fault.CUT_REQUEST):
                proxy.spoil(fault)
                outcomes = await asyncio.gather(*(node.oplog.append(NOTE, {}) for _ in range(5)))
                keys += [outcome.key for outcome in outcomes]
                await proxy.spoiled.acquire()
            assert ids(await notes(node))[1:] == keys
            await node.store.write(node.oplog.seal_script())
            await assert_sound(node)


# --- whatever happens ----------------------------------------------------------------------------


class Walk:
    """Random things that happen to one chain, and the answer for each op."""

    def __init__(self, there: RestartableNodes, random: Random) -> None:
        self._there = there
        self._random = random
        self._result: dict[str, str] = {}
        self._late: list[int] = []

    async def incarnation(self, steps: int) -> None:
        """A node that lives for some steps."""
        async with self._there.node() as node:
            for _ in range(steps):
                step = self._random.choice(
                    (self._append, self._append, self._lose, self._cut, self._abandon, self._land, self._seal)
                )
                await step(node)

    def _scripts(self) -> list[Script]:
        """Some ops, some of which are refused, and something that is none."""
        random = self._random
        scripts = [
            Script(
                Statement("INSERT INTO effects VALUES (?)", (key := new_key(),)),
                *([CLOSED] if random.random() < 0.2 else []),
                key=key,
                answer=Answer("SELECT 1", columns=("one",)) if random.random() < 0.3 else None,
                op=Op(NOTE, "{}"),
            )
            for _ in range(random.randint(1, 4))
        ]
        if random.random() < 0.3:
            scripts.append(Script(Statement("SELECT 1")))
        if random.random() < 0.2:
            scripts.append(random.choice(scripts))
        return scripts

    async def _write(self, node: MeshNode, scripts: list[Script], timeout: float = 10.0) -> None:
        try:
            verdicts = await node.store.write_all(scripts, timeout=timeout)
            ends = ["applied" if isinstance(verdict, Outcome) else "refused" for verdict in verdicts]
        except (OutcomeUnknown, Overloaded) as error:  # the latter: a slow machine had not sent it yet
            ends = ["unknown" if isinstance(error, OutcomeUnknown) else "absent"] * len(scripts)
        for script, end in zip(scripts, ends, strict=True):
            if script.op is not None:
                self._result[script.key] = end

    async def _append(self, node: MeshNode) -> None:
        await self._write(node, self._scripts())

    async def _lose(self, node: MeshNode) -> None:
        self._there.gate.after.extend([NoAnswer("lost")] * self._random.randint(1, 2))
        await self._write(node, self._scripts())

    async def _cut(self, node: MeshNode) -> None:
        self._there.gate.before.append(self._random.choice((NoAnswer("cut"), Unreachable("no route"))))
        await self._write(node, self._scripts())

    async def _abandon(self, node: MeshNode) -> None:
        gate = self._there.gate
        if node.incarnation is None:
            return  # what begins an incarnation waits for its answer
        scripts = self._scripts()
        gate.hold()
        await self._write(node, scripts, timeout=0.01)
        gate.release()
        self._late.append(len(gate.batches) - 1)
        if self._random.random() < 0.5:
            await self._land(node)
        if self._random.random() < 0.5:
            await self._write(node, scripts)

    async def _land(self, node: MeshNode) -> None:
        if self._late:
            await self._there.gate.land(self._there.gate.batches[self._random.choice(self._late)])

    async def _seal(self, node: MeshNode) -> None:
        await node.store.write(node.oplog.seal_script())

    async def assert_kept(self, node: MeshNode) -> None:
        """Acknowledged ops are there once, and nothing that is there was reported otherwise."""
        await assert_sound(node)
        entries = await notes(node)
        assert len(set(ids(entries))) == len(entries)
        found = {entry.op_id: "applied" if entry.accepted else "refused" for entry in entries}
        for key, result in self._result.items():
            assert result in ("unknown", found.get(key, "absent")), (key, result)
        rows = await node.store.read("SELECT op_id FROM effects")
        effects = sorted(row[0] for row in rows)
        assert effects == sorted(key for key, end in found.items() if end == "applied")


@pytest.mark.soak
@pytest.mark.parametrize("home", ["memory", "file"])
async def test_whatever_happens_the_chain_verifies_and_acknowledged_ops_are_there_once(
    home: str, tmp_path: Path, seed: int
) -> None:
    for number in range(WALKS):
        random = Random(f"{seed}-{number}")
        engine = await FileEngine.open(tmp_path / f"{number}.db") if home == "file" else None
        async with scene(engine) as there:
            async with there.node() as node:
                await node.store.write(Script(Statement("CREATE TABLE effects (op_id)")))
            walk = Walk(there, random)
            for _ in range(random.randint(1, 4)):
                await walk.incarnation(random.randint(1, STEPS))
            async with there.node() as node:
                await node.run_once()
                await node.store.write(node.oplog.seal_script())
                await walk.assert_kept(node)


async def test_a_refused_op_raises_and_is_in_the_log(mesh: MeshNode) -> None:
    mesh.oplog.register(OpKind("closed", effects=lambda _: [CLOSED]))
    with pytest.raises(Refused) as refused:
        await mesh.oplog.append("closed", {}, key=(key := new_key()))
    assert refused.value.reason == "closed"
    (entry,) = await mesh.oplog.tail(1, kind="closed")
    assert (entry.op_id, entry.accepted, entry.reason) == (key, 0, "closed")
    with pytest.raises(MeshError, match=r"op kind .* not found"):
        await mesh.oplog.append("unheard", {})
