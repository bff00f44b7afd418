"""Carrying calls: how often, how long in between, and what is not tried again."""

from __future__ import annotations

from collections.abc import Callable

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
    Unauthorized,
    Unreachable,
)
from vox_mesh.store.write.breaker import Breaker
from vox_mesh.store.write.retry import RetryingCaller, backoff_s


class Pauses:
    """A sleep that takes no time and remembers how long it was asked to last."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


class Call:
    """Raises what it is given, one after another, and then answers."""

    def __init__(self, *faults: MeshError) -> None:
        self.faults = list(faults)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        if self.faults:
            raise self.faults.pop(0)
        return "answer"


def always() -> bool:
    """The caller waits for as long as it takes."""
    return True


def at_most(calls: int, call: Call) -> Callable[[], bool]:
    """The caller waits until this many calls were made."""
    return lambda: call.count < calls


@many
@given(attempt=st.integers(1, 10_000), chance=st.floats(0, 1, exclude_max=True))
def test_the_pause_doubles_from_half_a_second_to_thirty_with_jitter(attempt: int, chance: float) -> None:
    pause = backoff_s(attempt, lambda: chance)
    assert pause == min(30.0, 0.5 * 2.0 ** min(attempt - 1, 60) + 0.5 * chance)
    assert 0.5 <= pause <= 30.0


async def test_faults_in_a_row_are_retried_after_growing_pauses() -> None:
    pauses, call = Pauses(), Call(*(NoAnswer("x") if i % 2 else Unreachable("x") for i in range(8)))
    assert await RetryingCaller(None, chance=lambda: 0.0, sleep=pauses).call(call, always) == "answer"
    assert pauses.taken == [0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_a_busy_database_is_asked_again_soon() -> None:
    pauses, call = Pauses(), Call(*(DatabaseBusy("x") for _ in range(50)))
    assert await RetryingCaller(None, sleep=pauses).call(call, always) == "answer"
    assert len(pauses.taken) == 50
    assert all(0.005 <= pause <= 0.05 for pause in pauses.taken)
    assert len(set(pauses.taken)) > 10, "without jitter, contenders meet again and again"


async def test_having_been_busy_does_not_make_a_lost_connection_wait_longer() -> None:
    pauses, call = Pauses(), Call(*(DatabaseBusy("x") for _ in range(8)), Unreachable("x"))
    await RetryingCaller(None, chance=lambda: 0.0, sleep=pauses).call(call, always)
    assert pauses.taken[-1] == 0.5


async def test_without_a_fault_there_is_one_call_and_no_pause() -> None:
    pauses, call = Pauses(), Call()
    await RetryingCaller(None, sleep=pauses).call(call, always)
    assert (call.count, pauses.taken) == (1, [])


@pytest.mark.parametrize("calls", [1, 2, 5])
async def test_it_stops_when_no_one_wants_the_answer_any_more(calls: int) -> None:
    pauses, call = Pauses(), Call(*(NoAnswer(f"fault {i}") for i in range(1, 100)))
    with pytest.raises(NoAnswer, match=f"fault {calls}$"):
        await RetryingCaller(None, sleep=pauses).call(call, at_most(calls, call))
    assert call.count == calls
    assert len(pauses.taken) == calls - 1


@pytest.mark.parametrize(
    "error",
    [CircuitOpen("x"), ConstraintFailed("x", statement=0), DatabaseFault("x"), Unauthorized("x")],
    ids=lambda error: error.code,
)
@pytest.mark.parametrize("after", [0, 2])
async def test_what_will_not_pass_is_raised_at_once(error: MeshError, after: int) -> None:
    pauses, call = Pauses(), Call(*(NoAnswer("x") for _ in range(after)), error)
    with pytest.raises(type(error)):
        await RetryingCaller(None, sleep=pauses).call(call, always)
    assert call.count == after + 1


async def test_the_fifth_fault_opens_the_circuit_and_ends_the_retries() -> None:
    pauses, call = Pauses(), Call(*(Unreachable("x") for _ in range(100)))
    breaker = Breaker(Clock())
    with pytest.raises(CircuitOpen):
        await RetryingCaller(breaker, sleep=pauses).call(call, always)
    assert call.count == 5
    with pytest.raises(CircuitOpen):
        await RetryingCaller(breaker, sleep=pauses).call(call, always)
    assert call.count == 5
