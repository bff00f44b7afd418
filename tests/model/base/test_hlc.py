"""Hybrid clocks: a strict total order that respects causes, under any clocks, near the one followed."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few, many
from vox_mesh.errors import BadValue
from vox_mesh.model.base.hlc import MAX_AHEAD_MS, Hlc, HybridClock, clock_part

LAST_WALL: Final = 10**13 - 1
LAST_LOGICAL: Final = 10**5 - 1
NOW: Final = 1_800_000_000_000

authors = st.text("ABYZabyz0189/-._", min_size=1, max_size=8)
walls = st.one_of(st.integers(0, LAST_WALL), st.integers(NOW, NOW + 3), st.integers(0, 3))
logicals = st.one_of(
    st.integers(0, LAST_LOGICAL), st.integers(0, 3), st.integers(LAST_LOGICAL - 2, LAST_LOGICAL)
)
times = st.builds(Hlc, walls, logicals, authors)

# Steps, not readings: a clock that is set back, stands still, goes, and jumps.
readings = st.one_of(
    st.integers(NOW - 3, NOW + 3),
    st.integers(NOW - 5_000, NOW + 5_000),
    st.integers(-5, LAST_WALL - 1),
)


class Step(NamedTuple):
    """What a node does next, by which clock: an event of its own, or seeing some earlier one of another."""

    node: int
    now_ms: int
    seen: int | None


steps = st.builds(Step, st.integers(0, 3), readings, st.none() | st.integers(0, 10**6))


class Event(NamedTuple):
    """An event with its time, and the set of all that happened before it."""

    node: int
    time: Hlc
    causes: frozenset[int]


def history(plan: list[Step], clocks: list[HybridClock]) -> list[Event]:
    """Carry out the steps. Times that are not believed are not received, and cause nothing."""
    events: list[Event] = []
    past: list[frozenset[int]] = [frozenset() for _ in clocks]
    for step in plan:
        clock, causes = clocks[step.node], past[step.node]
        if step.seen is None or not events:
            time: Hlc | None = clock.tick(step.now_ms)
        else:
            index = step.seen % len(events)
            time = clock.receive(events[index].time, step.now_ms)
            causes |= events[index].causes | {index}
        if time is not None:
            past[step.node] = causes | {len(events)}
            events.append(Event(step.node, time, causes))
    return events


def four_clocks() -> list[HybridClock]:
    return [HybridClock(name) for name in ("node-a", "node-A", "node.b", "node-a/cli")]


@many
@given(st.lists(steps, max_size=40))
def test_what_happened_before_has_an_earlier_time_under_any_clocks(plan: list[Step]) -> None:
    events = history(plan, four_clocks())
    for event in events:
        assert all(events[cause].time < event.time for cause in event.causes)
    # No two events have the same time: a strict order of all of them, and a total one.
    assert len({event.time for event in events}) == len(events)
    assert all(one < other for one, other in pairwise(sorted(event.time for event in events)))
    texts = sorted(str(event.time) for event in events)
    assert texts == [str(time) for time in sorted(event.time for event in events)]


@many
@given(st.lists(steps, max_size=40))
def test_no_time_is_further_ahead_than_a_second_of_the_clocks_that_were_followed(plan: list[Step]) -> None:
    clocks = four_clocks()
    events = history(plan, clocks)
    latest = max((step.now_ms for step in plan), default=0)
    for event in events:
        assert event.time.wall_ms <= max(latest, 0)
    assert all(clock.last.wall_ms <= max(latest, 0) for clock in clocks)


@many
@given(
    plan=st.lists(st.tuples(st.integers(0, 2), st.integers(NOW - 50, NOW), st.booleans()), max_size=30),
    ahead=st.lists(st.integers(-5, 3 * MAX_AHEAD_MS), min_size=1, max_size=30),
    logical=logicals,
)
def test_nodes_with_right_clocks_stay_within_a_second_whatever_a_wrong_one_sends(
    plan: list[tuple[int, int, bool]], ahead: list[int], logical: int
) -> None:
    clocks = four_clocks()[:3]
    sent = iter(ahead * (len(plan) + 1))
    for node, now_ms, hears_the_wrong_one in plan:
        if hears_the_wrong_one:
            clocks[node].receive(Hlc(now_ms + next(sent), logical, "wrong"), now_ms)
        else:
            clocks[node].receive(clocks[node - 1].last, now_ms)
        # One millisecond more: a full counter has carried.
        assert clocks[node].last.wall_ms <= NOW + MAX_AHEAD_MS + 1
        assert len(str(clocks[node].last)) == len(str(Hlc(NOW, 0, clocks[node].last.author)))


@few
@given(
    last=times,
    now_ms=st.integers(0, LAST_WALL - MAX_AHEAD_MS - 2),
    more=st.integers(1, MAX_AHEAD_MS),
    logical=logicals,
)
def test_a_time_more_than_a_second_ahead_is_not_merged_and_changes_nothing(
    last: Hlc, now_ms: int, more: int, logical: int
) -> None:
    clock = HybridClock("a")
    clock.resume(last)
    before = clock.last
    assert clock.receive(Hlc(now_ms + MAX_AHEAD_MS + more, logical, "b"), now_ms) is None
    assert clock.last == before


def test_a_time_just_a_second_ahead_is_merged() -> None:
    clock = HybridClock("a")
    remote = Hlc(NOW + MAX_AHEAD_MS, 7, "b")
    assert clock.receive(remote, NOW) == Hlc(NOW + MAX_AHEAD_MS, 8, "a")
    assert clock.receive(remote._replace(wall_ms=NOW + MAX_AHEAD_MS + 1), NOW) is None


def test_the_followed_clock_is_taken_over_when_it_goes_on_and_counted_upon_when_not() -> None:
    clock = HybridClock("a")
    shown = [clock.tick(now_ms)[:2] for now_ms in (NOW, NOW, NOW - 10, NOW + 1, NOW + 1)]
    assert shown == [(NOW, 0), (NOW, 1), (NOW, 2), (NOW + 1, 0), (NOW + 1, 1)]


def test_a_full_counter_carries_into_the_wall_part_and_never_blocks() -> None:
    clock = HybridClock("a")
    clock.resume(Hlc(NOW, LAST_LOGICAL - 1, "a"))
    shown = [clock.tick(NOW)[:2] for _ in range(4)]
    assert shown == [(NOW, LAST_LOGICAL), (NOW + 1, 0), (NOW + 1, 1), (NOW + 1, 2)]
    assert clock.tick(NOW + 2)[:2] == (NOW + 2, 0)


def test_a_frozen_clock_is_counted_upon_through_several_full_counters() -> None:
    clock = HybridClock("a")
    before = clock.tick(NOW)
    for _ in range(2 * (LAST_LOGICAL + 1)):
        time = clock.tick(NOW)
        assert time > before
        before = time
    assert before[:2] == (NOW + 2, 0)


def test_a_full_counter_of_another_carries_when_it_is_received() -> None:
    clock = HybridClock("a")
    assert clock.receive(Hlc(NOW, LAST_LOGICAL, "b"), NOW) == Hlc(NOW + 1, 0, "a")


@pytest.mark.parametrize("now_ms", [LAST_WALL + 1, 10**15])
def test_a_wall_of_more_than_13_digits_is_refused_and_changes_nothing(now_ms: int) -> None:
    clock = HybridClock("a")
    clock.tick(NOW)
    with pytest.raises(BadValue, match=f"{now_ms} ms is no time"):
        clock.tick(now_ms)
    assert clock.last == Hlc(NOW, 0, "a")
    assert clock.tick(NOW) == Hlc(NOW, 1, "a")


def test_the_last_time_of_all_is_shown_and_the_one_after_it_refused() -> None:
    clock = HybridClock("a")
    clock.resume(Hlc(LAST_WALL, LAST_LOGICAL - 1, "a"))
    assert str(clock.tick(0)) == "9999999999999-99999-a"
    for _ in range(2):
        with pytest.raises(BadValue, match=f"{LAST_WALL + 1} ms is no time"):
            clock.tick(0)


@few
@given(times, st.lists(times, max_size=5))
def test_going_on_after_earlier_times_never_steps_back(own: Hlc, earlier: list[Hlc]) -> None:
    clock = HybridClock("a")
    clock.resume(own)
    for each in earlier:
        clock.resume(each)
    assert clock.last[:2] == max(time[:2] for time in (own, *earlier))


# --- the text -------------------------------------------------------------------------------------


@many
@given(times, times)
def test_sorting_the_text_sorts_the_clock(one: Hlc, other: Hlc) -> None:
    assert (str(one) < str(other)) is (one < other)
    assert (str(one).encode() < str(other).encode()) is (one < other)  # as the database sorts text
    assert (str(one) == str(other)) is (one == other)


@few
@given(walls, logicals, authors, authors)
def test_the_author_decides_between_equal_clocks(wall: int, logical: int, one: str, other: str) -> None:
    assert (str(Hlc(wall, logical, one)) < str(Hlc(wall, logical, other))) is (one < other)


@few
@given(times)
def test_a_text_is_read_as_the_time_that_it_shows(time: Hlc) -> None:
    text = str(time)
    assert Hlc.parse(text) == time
    assert str(Hlc.parse(text)) == text
    assert clock_part(text, time.author) == text[: -len(time.author)]
    assert clock_part(text, time.author + "x") is None


def test_the_text_form() -> None:
    assert str(Hlc(1, 2, "node-1/cli")) == "0000000000001-00002-node-1/cli"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0000000000001-00001-",
        "0000000000001-00001",
        "000000000001-00001-a",
        "00000000000001-00001-a",
        "0000000000001-0001-a",
        "0000000000001-000001-a",
        "0000000000001_00001-a",
        "0000000000001-00001_a",
        "-000000000001-00001-a",
        "+000000000001-00001-a",
        " 000000000001-00001-a",
        "0000000000001-0000x-a",
        "000000000000\u0661-00001-a",
        "000000000000\u00b2-00001-a",
        "0x00000000001-00001-a",
        "1_00000000000-00001-a",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="no time of a hybrid clock"):
        Hlc.parse(text)
    assert clock_part(text, "a") is None


@few
@given(st.text(max_size=30))
def test_any_text_is_either_read_exactly_or_refused(text: str) -> None:
    try:
        time = Hlc.parse(text)
    except BadValue:
        return
    assert str(time) == text
