"""Clocks: the database's is the one that counts, and a node whose own is wrong harms no one."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import NOTE, assert_sound, noted, own_chain, scene
from tests.support.running.examples import many
from vox_mesh import Script, Settings, Statement
from vox_mesh.errors import ClockOff
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.hlc import MAX_AHEAD_MS, Hlc
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.model.oplog.chain import SEAL
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import MAX_DISTANCE_MS, Dependencies, MeshClock
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import new_key

NOW: Final = named("nodes")["now"]
HOUR_MS: Final = 3_600_000
SKEWS: Final = (HOUR_MS, -HOUR_MS, MAX_DISTANCE_MS, -MAX_DISTANCE_MS, 2_000, -2_000)

true_ms: Final = Dependencies().wall_ms


def skewed(ahead_ms: int) -> Dependencies:
    """A machine whose clock is ahead by so much."""
    return Dependencies(wall_ms=lambda: true_ms() + ahead_ms)


def _backwards() -> Callable[[], int]:
    start, steps = true_ms(), itertools.count()
    return lambda: start - 100 * next(steps)


def _jumping() -> Callable[[], int]:
    random = Random(7)
    return lambda: true_ms() + random.choice((0, HOUR_MS, -HOUR_MS, 2_000))


def _frozen(at_ms: int) -> Callable[[], int]:
    return lambda: at_ms


WALLS: Final[dict[str, Callable[[], Dependencies]]] = {
    **{f"{ahead:+} ms": partial(skewed, ahead) for ahead in SKEWS},
    "frozen": lambda: Dependencies(wall_ms=_frozen(true_ms())),
    "at zero": lambda: Dependencies(wall_ms=_frozen(0)),
    "backwards": lambda: Dependencies(wall_ms=_backwards()),
    "jumping": lambda: Dependencies(wall_ms=_jumping()),
}


async def database_ms(mesh: Mesh) -> int:
    """The database's time."""
    now: int = (await mesh.store.read(NOW, fresh=True)).value
    return now


# --- what a wrong clock does to others -----------------------------------------------------------


@pytest.mark.parametrize("wall", list(WALLS))
async def test_a_wrong_clock_changes_no_verdict_of_others_and_no_time_in_the_log(wall: str) -> None:
    async with scene() as there, there.node("a") as other, there.node("b", WALLS[wall]()) as wrong:
        await other.run_once()
        for _ in range(3):
            await wrong.run_once()
            for watching in (other, wrong):
                live = await watching.nodes.live_nodes_from_db(10_000)
                assert [(node.node_id, node.state) for node in live] == [
                    ("a", NodeState.ALIVE),
                    ("b", NodeState.ALIVE),
                ]
            before = await database_ms(wrong)
            outcome = await wrong.store.write(noted())  # past the check, as what ends something is
            after = await database_ms(wrong)
            (entry,) = [entry for entry in await own_chain(wrong) if entry.op_id == outcome.key]
            assert before - MAX_AHEAD_MS <= Hlc.parse(entry.hlc).wall_ms <= after + MAX_AHEAD_MS
        times = [entry.hlc for entry in await own_chain(wrong)]
        assert times == sorted(set(times))
        await assert_sound(other)


async def test_the_database_tells_time_on_every_home(node_settings: Settings) -> None:
    async with Mesh.open(node_settings, skewed(HOUR_MS)) as node:
        before = await database_ms(node)
        assert before - MAX_AHEAD_MS <= node.clock.now_ms <= await database_ms(node) + MAX_AHEAD_MS
        assert abs(node.clock.distance_ms - HOUR_MS) <= MAX_AHEAD_MS
        assert node.clock.is_off
        await node.run_once()
        (seen,) = await node.nodes.live_nodes_from_db()
        assert (seen.node_id, seen.state) == (node.identity.node_id, NodeState.ALIVE)
        assert abs(seen.clock_distance_ms - HOUR_MS) <= MAX_AHEAD_MS, "it says of itself how far off it is"


async def assert_authors_nothing(node: MeshNode) -> None:
    """All that is new is refused."""
    attempts: tuple[Callable[[], Awaitable[object]], ...] = (
        partial(node.oplog.append, NOTE, {}),
        partial(node.oplog.append, NOTE, {}, deps=[new_key()]),
        node.oplog.anchor,
        node.roles.initialise,
        partial(node.roles.route_kind, "build", "a"),
        partial(node.roles.designate_coordinator, "b"),
    )
    for new in attempts:
        with pytest.raises(ClockOff):
            await new()


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS, MAX_DISTANCE_MS + 2_000, -MAX_DISTANCE_MS - 2_000])
async def test_a_node_that_is_far_off_authors_nothing_new_but_ticks_seals_and_leaves(ahead_ms: int) -> None:
    async with scene() as there:
        async with there.node("b") as node:
            await node.oplog.append(NOTE, {})  # which no seal vouches for yet
        async with there.node("b", skewed(ahead_ms)) as node:
            await node.run_once()
            before = await own_chain(node)
            await assert_authors_nothing(node)
            assert await own_chain(node) == before
            await node.run_once()
            assert [seen.state for seen in await node.nodes.all()] == [NodeState.ALIVE]
            await node.close()
        async with there.node("a") as other:
            assert [seen.state for seen in await other.nodes.all()] == [NodeState.LEFT]
            (chain,) = await other.oplog.verify("b")
            assert (chain.problem, chain.entries, chain.sealed_to) == (None, 2, 1)


@pytest.mark.parametrize("ahead_ms", [MAX_DISTANCE_MS - 2_000, -MAX_DISTANCE_MS + 2_000, 2_000])
async def test_a_node_that_is_a_little_off_goes_on(ahead_ms: int) -> None:
    async with scene() as there, there.node("b", skewed(ahead_ms)) as node:
        await node.run_once()
        await node.oplog.append(NOTE, {})
        await node.oplog.anchor()
        assert not node.clock.is_off


async def test_a_clock_that_was_set_right_is_believed_with_the_next_tick() -> None:
    ahead = HOUR_MS
    around = Dependencies(wall_ms=lambda: true_ms() + ahead)
    async with scene() as there, there.node("a", around) as node:
        await node.run_once()
        with pytest.raises(ClockOff):
            await node.oplog.append(NOTE, {})
        assert await node.roles.owner() is None, "to own the mesh is something new"
        ahead = 0
        await node.run_once()
        await node.oplog.append(NOTE, {})
        owner = await node.roles.owner()
        assert owner is not None
        assert owner.node_id == "a"
        ahead = -HOUR_MS
        await node.run_once()
        with pytest.raises(ClockOff, match="-3600 s"):
            await node.oplog.append(NOTE, {})


async def test_what_waited_is_left_to_nodes_whose_clocks_are_right() -> None:
    async with scene() as there, there.node("a") as right, there.node("b", skewed(HOUR_MS)) as wrong:
        await wrong.run_once()
        dep = new_key()
        op_id = (await right.oplog.append(NOTE, {}, deps=[dep])).key
        await right.oplog.append(NOTE, {}, key=dep)
        with pytest.raises(ClockOff):
            await wrong.pending_ops.run_once()
        assert await right.pending_ops.run_once() == 1
        assert await right.pending_ops.waiting_for(op_id) is None


async def test_a_forged_time_in_a_row_is_flagged_and_not_merged() -> None:
    async with scene() as there, there.node("a") as node:
        await node.oplog.append(NOTE, {})
        forged = new_key()
        future = str(Hlc(true_ms() + HOUR_MS, 0, "evil"))
        columns = "scope_id, repository_id, seq, kind, causal_deps, payload, prev, hash, accepted"
        row = Statement(
            f"INSERT INTO agent_oplog ({columns}, node_id, op_id, hlc) SELECT {columns}, 'evil', ?, ? "
            "FROM agent_oplog",
            (forged, future),
        )
        key = Statement("INSERT INTO node_keys SELECT scope_id, repository_id, 'evil', 1, 'x' FROM node_keys")
        await node.store.write(Script(row, key))
        assert node.clock.flagged == 0
        await node.oplog.append(NOTE, {}, deps=[forged])
        assert node.clock.flagged == 1
        await node.oplog.anchor()
        assert node.clock.flagged == 2
        last = (await own_chain(node))[-1]
        assert Hlc.parse(last.hlc).wall_ms <= await database_ms(node) + MAX_AHEAD_MS
        await node.store.write(node.oplog.seal_script())
        assert (await own_chain(node))[-1].kind == SEAL


# --- the clock itself ----------------------------------------------------------------------------


def clock_at(database: int, monotonic: Clock) -> MeshClock:
    """A clock that has just heard the database."""
    clock = MeshClock(Dependencies(wall_ms=lambda: database, elapsed=monotonic))
    clock.name("a")
    clock.heard(database, clock.started())
    return clock


def test_at_full_speed_the_counter_carries_and_never_blocks() -> None:
    clock = clock_at(1_000_000, Clock())
    last = clock.tick()
    for _ in range(250_000):
        time = clock.tick()
        assert time[:2] > last[:2]
        last = time
    assert last.wall_ms == 1_000_002, "100,000 fit into a millisecond"


def test_a_database_whose_clock_is_accepted_as_it_goes_back_does_not_take_times_back() -> None:
    monotonic = Clock()
    clock = clock_at(2_000_000, monotonic)
    before = clock.tick()
    clock.heard(1_000_000, clock.started())
    assert clock.now_ms == 2_000_000, "it is not believed at once"
    clock.accept()
    clock.heard(1_000_000, clock.started())
    assert clock.now_ms == 1_000_000
    again = clock.tick()
    assert again > before
    monotonic.now += 2_000
    assert clock.tick().wall_ms == 3_000_000, "and it goes on with the database once that has caught up"


def test_a_clock_that_is_far_ahead_of_the_database_comes_no_closer_to_others() -> None:
    clock = clock_at(1_000_000, Clock())
    assert clock.receive(str(Hlc(1_000_000 + MAX_AHEAD_MS, 5, "b")))
    assert not clock.receive(str(Hlc(1_000_001 + MAX_AHEAD_MS, 0, "b")))
    assert clock.flagged == 1
    assert clock.tick() == Hlc(1_000_000 + MAX_AHEAD_MS, 7, "a")


def test_before_the_database_is_heard_the_own_clock_is_all_there_is() -> None:
    clock = MeshClock(Dependencies(wall_ms=lambda: 5_000, elapsed=Clock()))
    assert not clock.is_set
    assert clock.now_ms == 5_000
    assert clock.distance_ms == 0
    clock.refuse_if_off()


@many
@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=30
    ),
    st.integers(0, 10**12),
)
def test_what_is_reported_is_never_ahead_of_the_database_nor_behind_by_more_than_an_answer_takes(
    answers: list[tuple[int, int, int]], ahead: int
) -> None:
    monotonic = Clock(1_000.0)
    clock = MeshClock(Dependencies(wall_ms=lambda: 0, elapsed=monotonic))
    clock.name("a")
    quickest = 10_000
    last = Hlc(0, 0, "a")
    for pause, there, back in answers:
        monotonic.now += pause / 1_000
        started = clock.started()
        monotonic.now += there / 1_000
        database = int(monotonic.now * 1_000) + ahead
        monotonic.now += back / 1_000
        clock.heard(database, started)
        quickest = min(quickest, back)
        behind = int(monotonic.now * 1_000) + ahead - clock.now_ms
        assert -1 <= behind <= quickest + 2
        assert clock.tick() > last
        last = clock.tick()


@pytest.mark.parametrize("correction_ms", [18_000, 40])
def test_a_late_answer_does_not_set_a_slightly_fast_clock_far_back(correction_ms: int) -> None:
    monotonic = Clock(1_000.0)
    clock = MeshClock(Dependencies(wall_ms=lambda: 0, elapsed=monotonic))
    clock.heard(1_000_000, clock.started(), correction_ms=correction_ms)
    monotonic.now += 1
    started = clock.started()
    monotonic.now += 3
    clock.heard(1_000_960, started, correction_ms=correction_ms - 40)
    assert 1_003_960 - 750 <= clock.now_ms <= 1_003_961, "the correction has faded by 40 ms, not by 3 s"


def test_an_answer_from_before_a_step_does_not_end_it() -> None:
    monotonic = Clock(1_000.0)
    clock = MeshClock(Dependencies(wall_ms=lambda: 0, elapsed=monotonic))
    clock.heard(1_000_000, clock.started())
    before = clock.started()
    monotonic.now += 1
    clock.heard(1_001_000 - 20_000, clock.started())
    assert clock.step is not None
    clock.heard(1_000_000, before)
    assert clock.step is not None
    assert clock.jumps == 1
    clock.heard(1_001_000, clock.started())
    assert clock.step is None, "the clock was set right again"


@many
@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(0, 60_000), st.integers(0, 60_000)),
        min_size=2,
        max_size=10,
    ),
    st.integers(-4_000, 4_000),
)
def test_answers_that_took_long_are_no_step_of_the_database(
    answers: list[tuple[int, int, int]], set_by: int
) -> None:
    monotonic = Clock(1_000.0)
    clock = MeshClock(Dependencies(wall_ms=lambda: 0, elapsed=monotonic))
    for number, (pause, there, back) in enumerate(answers):
        monotonic.now += pause / 1_000
        started = clock.started()
        monotonic.now += there / 1_000
        database = int(monotonic.now * 1_000) + (set_by if number else 0)
        monotonic.now += back / 1_000
        clock.heard(database, started)
        assert clock.step is None
