"""The status desk: what agents say is written once for each beat, whatever becomes of the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages.messaging import NodeGroup
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes
from tests.support.rhythm.grounds import BAR_MS, BEAT_MS, BEGIN_MS, ClockedReporter, MovableClock, player
from vox_mesh.errors import BadValue, DatabaseFault, StaleIncarnation, Unreachable
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.rhythm.claims import StatusClaim
from vox_mesh.rhythm import status_claims as status
from vox_mesh.store.batch import Batch
from vox_mesh.store.write.breaker import Breaker

_PATIENCE_S = 30.0
_REST_S = 10.0


@pytest.fixture
def rest() -> Clock:
    """The clock by which a circuit that has opened rests."""
    return Clock()


@pytest.fixture
async def one(there: RestartableNodes, hand: MovableClock, rest: Clock) -> AsyncIterator[ClockedReporter]:
    """One node on it, which finds at the first fault that the database is away."""
    async with there.node(breaker=Breaker(rest, faults=1, reset_timeout_s=_REST_S)) as node:
        await node.run_once()
        yield player(node, hand)


def goes_away(there: RestartableNodes) -> None:
    """Have the database be away, until the circuit has rested."""
    there.gate.before.append(Unreachable("gone"))


def comes_back(rest: Clock) -> None:
    """Have the database be there again."""
    rest.now += _REST_S


async def claims(
    player: ClockedReporter, columns: str = "agent_id, task_id, beat_index, state"
) -> list[tuple[Any, ...]]:
    """What is written, in the order of the bars and beats."""
    sql = f"SELECT {columns} FROM status_claims WHERE scope_id = ? AND repository_id = ?"
    rows = await player.node.store.read(
        f"{sql} ORDER BY epoch_ms, agent_id, task_id", player.ground.mesh, fresh=True
    )
    return [tuple(row) for row in rows]


def writes(there: RestartableNodes) -> int:
    """How many requests have written claims."""
    return sum(_puts(batch) for batch in there.gate.batches)


def _puts(batch: Batch) -> bool:
    return any("INSERT INTO status_claims" in step.sql for step in batch.steps)


async def test_the_last_claim_of_a_beat_is_written_with_all_that_it_says(
    crowd: NodeGroup, hand: MovableClock
) -> None:
    one = player(await crowd.node("one"), hand)
    one.status.claim("a", "t", "planning")
    hand.now_ms += 10
    said = one.status.claim(
        "a",
        "t",
        "waiting",
        wait_for=["thread:1"],
        beats_left=2,
        progress=0.42,
        notes="für dich",
        overran=True,
    )
    await one.beat()
    columns = (
        "window_ms, epoch_ms, beat_index, state, wait_for, beats_left, progress, notes, overran, hlc, serial"
    )
    rows = await claims(one, f"{columns}, began_ms, useful_ms")
    assert rows == [
        (
            *(BEGIN_MS, BEGIN_MS, 1, "waiting", '["thread:1"]', 2, 0.42, "für dich", 1, said.hlc, 1),
            *(BEGIN_MS, BEGIN_MS + 10),
        )
    ]


async def test_a_task_that_goes_on_is_claimed_in_every_beat_until_it_is_over(
    crowd: NodeGroup, hand: MovableClock
) -> None:
    one = player(await crowd.node("one"), hand)
    one.status.claim("a", "t", "executing", overran=True)
    one.status.claim("b", "u", "executing")
    for beat in (1, 2, 3):
        hand.to(0, beat, 20)
        if beat == 3:
            one.status.claim("a", "t", "done")
            one.status.claim("b", "u", "failed")
        await one.beat()
    hand.to(0, 4)
    await one.beat()
    assert await claims(one, "agent_id, beat_index, state, overran") == [
        *(("a", 1, "executing", 1), ("b", 1, "executing", 0)),
        *(("a", 2, "executing", 0), ("b", 2, "executing", 0)),
        *(("a", 3, "done", 0), ("b", 3, "failed", 0)),
    ]
    assert (one.status.live, one.status.waiting) == (0, 0)


async def test_of_two_nodes_that_claim_for_one_task_the_later_stands(
    crowd: NodeGroup, hand: MovableClock
) -> None:
    one, two = player(await crowd.node("one"), hand), player(await crowd.node("two"), hand)
    two.status.claim("a", "t", "review")
    early = two.status
    hand.now_ms += 5
    await one.say("a", "t", "done")
    await early.flush()
    assert await claims(one, "state, serial, node_id") == [("done", 1, "one")]
    hand.now_ms += 5
    await two.say("a", "t", "failed")
    assert await claims(one, "state, serial, node_id") == [("failed", 2, "two")]


async def test_a_hundred_agents_on_four_nodes_cost_one_write_for_each_node_and_beat(
    there: RestartableNodes, hand: MovableClock
) -> None:
    nodes = [there.node(name) for name in "pqrs"]
    players = [player(await node.__aenter__(), hand) for node in nodes]
    try:
        for each in players:
            await each.node.run_once()
        for number in range(100):
            players[number % 4].status.claim(f"agent-{number}", "t", "executing")
        for beat in range(1, 9):
            hand.to(0, beat, 100)
            before = writes(there)
            for number in range(100):
                players[number % 4].status.claim(f"agent-{number}", "t", "executing", progress=beat / 8)
            await asyncio.gather(*(each.beat() for each in players))
            assert writes(there) - before == 4
        rows = await claims(players[0], "count(*), count(DISTINCT serial), max(serial)")
        assert rows == [(800, 800, 800)]
    finally:
        for node in nodes:
            await node.__aexit__(None, None, None)


async def test_who_has_nothing_to_say_writes_nothing(
    there: RestartableNodes, one: ClockedReporter, hand: MovableClock
) -> None:
    for beat in (1, 2):
        hand.to(0, beat)
        await one.beat()
    await one.status.flush()
    await one.status.close()
    assert writes(there) == 0
    one.status.claim("a", "t", "done")
    await one.beat()
    await one.beat()
    assert writes(there) == 1


async def test_the_loop_writes_at_the_end_of_a_beat_and_sleeps_when_all_is_over(
    there: RestartableNodes, one: ClockedReporter, hand: MovableClock
) -> None:
    running = asyncio.create_task(one.status.run())
    try:
        one.status.claim("a", "t", "executing")
        seen = one.node.store.change_count
        await asyncio.sleep(0)  # it has begun to wait for the end of the beat
        assert writes(there) == 0
        for beat in (2, 3):
            hand.to(0, beat)
            one.ground.times.notify_clock_set()
            async with asyncio.timeout(_PATIENCE_S):
                seen = await one.node.store.changed(seen)
        one.status.claim("a", "t", "done")
        hand.to(0, 4)
        one.ground.times.notify_clock_set()
        async with asyncio.timeout(_PATIENCE_S):
            await one.node.store.changed(seen)
        assert await claims(one, "beat_index, state") == [(1, "executing"), (2, "executing"), (3, "done")]
        assert writes(there) == 3
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_what_could_not_be_written_goes_with_the_next_beat_into_its_own(
    there: RestartableNodes, one: ClockedReporter, hand: MovableClock, rest: Clock
) -> None:
    one.status.claim("a", "t", "executing")
    goes_away(there)
    for beat in (7, 8):
        hand.to(0, beat)
        await one.beat()
    assert writes(there) == 1  # and then no one tried
    comes_back(rest)
    hand.to(1, 1)
    await one.beat()
    assert await claims(one, "window_ms, beat_index, serial") == [
        *((BEGIN_MS, 1, 1), (BEGIN_MS, 7, 2), (BEGIN_MS, 8, 3)),
        (BEGIN_MS + BAR_MS, 1, 4),
    ]


async def test_claims_whose_answer_was_lost_are_written_once(
    there: RestartableNodes, one: ClockedReporter, hand: MovableClock, rest: Clock
) -> None:
    one.status.claim("a", "t", "done")
    there.gate.after.append(Unreachable("lost"))
    await one.beat()
    assert one.status.waiting == 1
    comes_back(rest)
    hand.to(0, 2)
    await one.beat()
    assert await claims(one, "state, serial") == [("done", 1)]
    assert one.status.waiting == 0


async def test_a_node_that_was_replaced_can_not_go_on(there: RestartableNodes, one: ClockedReporter) -> None:
    async with there.node() as successor:
        await successor.run_once()
        one.status.claim("a", "t", "done")
        with pytest.raises(StaleIncarnation):
            await one.beat()


async def test_claims_that_no_disk_takes_wait_for_room(
    there: RestartableNodes, one: ClockedReporter, rest: Clock
) -> None:
    one.status.claim("a", "t", "done")
    there.gate.before.append(DatabaseFault("the database failed: database or disk is full"))
    await one.beat()
    assert one.status.waiting == 1
    comes_back(rest)
    await one.beat()
    assert await claims(one) == [("a", "t", 1, "done")]


async def test_there_are_no_more_live_tasks_than_can_be_reported(
    one: ClockedReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MAX_LIVE", 3)
    for number in range(5):
        one.status.claim("a", f"t{number}", "executing")
    one.status.claim("a", "t2", "review")
    assert (one.status.live, one.status.dropped) == (3, 2)
    await one.beat()
    assert len(await claims(one)) == 5, "what was said is written all the same"


async def test_while_the_database_is_away_the_oldest_claims_give_way(
    there: RestartableNodes,
    one: ClockedReporter,
    hand: MovableClock,
    rest: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "MAX_WAITING", 3)
    one.status.claim("a", "t", "executing")
    goes_away(there)
    for beat in range(1, 7):
        hand.to(0, beat)
        await one.beat()
    comes_back(rest)
    await one.status.flush()
    assert [index for (index,) in await claims(one, "beat_index")] == [4, 5, 6]
    assert one.status.dropped == 3


async def test_long_notes_go_in_several_scripts(
    there: RestartableNodes, one: ClockedReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_MAX_SCRIPT_BYTES", 3_000)
    for number in range(6):
        one.status.claim("a", f"t{number}", "done", notes="x" * 900)
    await one.beat()
    assert len(await claims(one)) == 6
    assert writes(there) == 3


async def test_what_is_left_is_written_when_the_node_closes(
    there: RestartableNodes, one: ClockedReporter
) -> None:
    one.status.claim("a", "t", "executing")
    await one.status.close()
    assert len(await claims(one)) == 1
    one.status.claim("a", "t", "done")
    goes_away(there)
    await one.status.close()
    assert one.status.waiting == 1


# --- in the spool ---------------------------------------------------------------------------------


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where a node keeps what it can't write."""
    return tmp_path / "spool.db"


@asynccontextmanager
async def cut_off(
    there: RestartableNodes, hand: MovableClock, rest: Clock, spool: Path
) -> AsyncIterator[ClockedReporter]:
    """A node with a spool, for which the database is away from now on."""
    async with there.node(breaker=Breaker(rest, faults=1, reset_timeout_s=_REST_S), spool=spool) as node:
        await node.run_once()
        goes_away(there)
        yield player(node, hand)


async def drained(player: ClockedReporter) -> None:
    """Wait until the spool is empty."""
    async with asyncio.timeout(_PATIENCE_S):
        await player.node.store.drained()


async def test_what_was_said_while_the_database_was_away_outlives_the_node(
    there: RestartableNodes, hand: MovableClock, rest: Clock, spool: Path
) -> None:
    async with cut_off(there, hand, rest, spool) as one:
        one.status.claim("a", "t", "executing", notes='für "dich"')
        for beat in (1, 2):
            hand.to(0, beat)
            await one.beat()
        assert one.status.waiting == 0, "the spool has it"
        hand.to(0, 3)
        one.status.claim("a", "t", "done", overran=True)
        await one.status.close()
        assert one.status.waiting == 0
    async with there.node(spool=spool) as node:
        one = player(node, hand)
        await drained(one)
        assert await claims(one, "beat_index, state, notes, overran, serial, node_id") == [
            (1, "executing", 'für "dich"', 0, 1, "a"),
            (2, "executing", 'für "dich"', 0, 2, "a"),
            (3, "done", "", 1, 3, "a"),
        ]


async def test_the_spool_gets_what_is_left_when_the_database_goes_away_as_the_node_closes(
    there: RestartableNodes, hand: MovableClock, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_CLOSE_TIMEOUT_S", 0.1)
    async with there.node(spool=spool) as node:
        await node.run_once()
        one = player(node, hand)
        one.status.claim("a", "t", "done")
        there.gate.hold()
        await one.status.close()
        assert one.status.waiting == 0
        there.gate.release()
        await drained(one)
        assert await claims(one) == [("a", "t", 1, "done")]


async def test_what_comes_from_the_spool_does_not_replace_what_was_said_later(
    there: RestartableNodes, hand: MovableClock, rest: Clock, spool: Path
) -> None:
    async with cut_off(there, hand, rest, spool) as one:
        one.status.claim("a", "t", "executing")
        one.status.claim("b", "u", "executing")
        await one.beat()
    async with there.node("two") as other, there.node(spool=spool) as node:
        two = player(other, hand)
        hand.now_ms += 5
        await two.say("a", "t", "done")
        one = player(node, hand)
        await node.run_once()
        await drained(one)
        assert await claims(one, "agent_id, state, node_id") == [
            ("a", "done", "two"),
            ("b", "executing", "a"),
        ]


async def test_claims_leave_room_in_the_spool_for_what_else_waits(
    there: RestartableNodes, hand: MovableClock, rest: Clock, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MAX_WAITING", 3)
    async with cut_off(there, hand, rest, spool) as one:
        one.status.claim("a", "t", "executing")
        for beat in range(1, 6):
            hand.to(0, beat)
            await one.beat()
        kept = (await one.node.store.status()).spool
        assert kept is not None
        assert (kept.depth, one.status.waiting) == (3, 2)
        comes_back(rest)
        hand.to(0, 6)
        await one.beat()
        await drained(one)
        assert [index for (index,) in await claims(one, "beat_index")] == [1, 2, 3, 4, 5, 6]
        assert (one.status.waiting, one.status.dropped) == (0, 0)


async def test_claims_that_find_the_spool_full_wait_as_where_there_is_none(
    there: RestartableNodes, hand: MovableClock, rest: Clock, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cut_off(there, hand, rest, spool) as one:
        queue = one.node.store.spool_queue
        assert queue is not None
        monkeypatch.setattr(queue._spool, "_max_bytes", 100)
        one.status.claim("a", "t", "done")
        await one.beat()
        assert one.status.waiting == 1
        comes_back(rest)
        monkeypatch.undo()
        hand.to(0, 2)
        await one.beat()
        await drained(one)
        assert await claims(one) == [("a", "t", 1, "done")]


# --- what is no claim of now ----------------------------------------------------------------------


async def test_a_claim_made_elsewhere_lands_in_the_beat_of_its_time(
    one: ClockedReporter, hand: MovableClock
) -> None:
    hand.to(2, 1)
    made_ms = BEGIN_MS + BAR_MS + 2 * BEAT_MS + 7
    claim = StatusClaim("a", "t", 1, "executing", (), None, None, "", str(Hlc(made_ms, 0, "b")))  # type: ignore[arg-type]
    one.status.accept(claim)
    await one.beat()
    assert await claims(one, "window_ms, beat_index, hlc") == [(BEGIN_MS + BAR_MS, 3, claim.hlc)]
    assert one.status.live == 0
    ahead = StatusClaim("a", "t", 1, "done", (), None, None, "", str(Hlc(hand.now_ms + 5_000, 0, "b")))  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="ahead"):
        one.status.accept(ahead)


def test_what_is_no_claim_is_refused_and_changes_nothing(one: ClockedReporter) -> None:
    one.status.claim("a", "t", "executing")
    with pytest.raises(BadValue, match="state"):
        one.status.claim("a", "t", "dancing")
    with pytest.raises(BadValue, match="wait_for must be"):
        one.status.claim("a", "t", "waiting", wait_for="thread:1")
    assert (one.status.live, one.status.waiting) == (1, 1)
