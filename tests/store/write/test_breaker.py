"""The circuit breaker: when it opens, whom it lets through, when it closes."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nodes.clocks import Clock
from tests.support.running.examples import many
from vox_mesh.errors import (
    CircuitOpen,
    ConstraintFailed,
    DatabaseBusy,
    DatabaseFault,
    MeshError,
    NoAnswer,
    Refused,
    ServerFull,
    Unauthorized,
    Unreachable,
)
from vox_mesh.store.write.breaker import Breaker

FAULTS: list[MeshError] = [Unreachable("x"), NoAnswer("x"), DatabaseFault("x"), ServerFull("x")]
ANSWERS: list[MeshError] = [
    Refused("stale_fence", statement=0),
    ConstraintFailed("x", statement=0),
    DatabaseBusy("x"),
    Unauthorized("x"),
]


def call(breaker: Breaker, error: BaseException | None = None) -> None:
    """A call that succeeds or raises, as its caller sees it."""
    with suppress(type(error)) if error is not None else nullcontext(), breaker.admit():
        if error is not None:
            raise error


def opened(clock: Clock) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker(clock)
    for _ in range(5):
        call(breaker, NoAnswer("x"))
    assert breaker.state == "open"
    return breaker


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
def test_it_opens_after_five_faults_in_a_row(fault: MeshError) -> None:
    breaker = Breaker(Clock())
    for _ in range(4):
        call(breaker, fault)
    assert (breaker.state, breaker.is_rejecting) == ("closed", False)
    call(breaker, fault)
    assert (breaker.state, breaker.is_rejecting) == ("open", True)
    with pytest.raises(CircuitOpen, match="repeatedly"):
        call(breaker)


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = Breaker(Clock())
    for _ in range(3):
        for _ in range(4):
            call(breaker, NoAnswer("x"))
        call(breaker)
    assert breaker.state == "closed"


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.code)
def test_an_answer_never_counts_whatever_it_says(answer: MeshError) -> None:
    breaker = Breaker(Clock())
    for _ in range(20):
        call(breaker, answer)
    assert breaker.state == "closed"


def test_it_rests_for_thirty_seconds() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 29.9
    assert breaker.is_rejecting
    assert breaker.refusal().hint.startswith("the next probe is due in 0 s")
    clock.now += 0.1
    assert not breaker.is_rejecting


def test_exactly_one_probe_goes_through_while_others_are_refused() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    with breaker.admit():
        assert (breaker.state, breaker.is_rejecting) == ("half-open", True)
        for _ in range(3):
            with pytest.raises(CircuitOpen):
                call(breaker)
    assert (breaker.state, breaker.is_rejecting) == ("closed", False)


@pytest.mark.parametrize("answer", [None, *ANSWERS], ids=lambda answer: getattr(answer, "code", "success"))
def test_an_answered_probe_closes_it(answer: MeshError | None) -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 31
    call(breaker, answer)
    assert breaker.state == "closed"
    for _ in range(4):
        call(breaker, NoAnswer("x"))
    assert breaker.state == "closed"


def test_a_failed_probe_opens_it_for_another_thirty_seconds() -> None:
    clock = Clock()
    breaker = opened(clock)
    for _ in range(3):
        clock.now += 30
        call(breaker, Unreachable("x"))
        assert (breaker.state, breaker.is_rejecting) == ("open", True)
        clock.now += 29
        assert breaker.is_rejecting
        clock.now += 1
        assert not breaker.is_rejecting
        clock.now -= 30  # the rest counts from the probe


def test_a_cancelled_probe_has_shown_nothing_and_opens_it_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    call(breaker, asyncio.CancelledError())
    assert (breaker.state, breaker.is_rejecting) == ("open", True)
    clock.now += 30
    call(breaker)
    assert breaker.state == "closed"


def test_a_cancelled_call_counts_for_nothing() -> None:
    breaker = Breaker(Clock())
    for _ in range(4):
        call(breaker, NoAnswer("x"))
    call(breaker, asyncio.CancelledError())
    assert breaker.state == "closed"
    call(breaker, NoAnswer("x"))
    assert breaker.state == "open"


def test_a_call_that_ends_late_neither_closes_an_open_circuit_nor_prolongs_it() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    with breaker.admit():
        for _ in range(5):
            call(breaker, NoAnswer("x"))
        clock.now += 20
    assert breaker.is_rejecting
    clock.now += 10
    assert not breaker.is_rejecting


@pytest.mark.parametrize("end", [None, NoAnswer("x")], ids=["success", "fault"])
def test_a_call_that_ends_late_during_a_probe_changes_nothing(end: MeshError | None) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    late = breaker.admit()
    late.__enter__()
    for _ in range(5):
        call(breaker, NoAnswer("x"))
    clock.now += 30
    with breaker.admit():
        late.__exit__(type(end) if end else None, end, None)
        assert (breaker.state, breaker.is_rejecting) == ("half-open", True)
        with pytest.raises(CircuitOpen):
            call(breaker)
    assert (breaker.state, breaker.is_rejecting) == ("closed", False)


@many
@given(st.lists(st.tuples(st.sampled_from(["fault", "answer"]), st.floats(0, 40)), max_size=40))
def test_it_is_open_exactly_when_the_rules_say(calls: list[tuple[str, float]]) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    in_a_row, opened_at = 0, None
    for kind, pause in calls:
        clock.now += pause
        resting = opened_at is not None and clock.now - opened_at < 30
        assert breaker.is_rejecting is resting
        if resting:
            with pytest.raises(CircuitOpen):
                call(breaker)
            continue
        call(breaker, NoAnswer("x") if kind == "fault" else None)
        if kind == "answer":
            in_a_row, opened_at = 0, None
        else:
            in_a_row += 1
            if opened_at is not None or in_a_row >= 5:
                opened_at = clock.now
