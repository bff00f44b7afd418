"""Background tasks: whatever one of them raises is counted, logged once in a while, and the task goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.nodes.clocks import Clock
from vox_mesh import Script, Statement, Store
from vox_mesh.errors import StoreClosed
from vox_mesh.store.background import BackgroundFaults


class Pauses:
    """Sleeps that take no time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.clock.now += seconds
        await asyncio.sleep(0)


async def test_a_task_that_fails_runs_again_after_longer_and_longer_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, runs = Clock(), 0
    pauses = Pauses(clock)
    faults = BackgroundFaults(clock, pauses)

    async def fail_at_first() -> None:
        nonlocal runs
        runs += 1
        if runs <= 12:
            raise AttributeError(f"run {runs}")

    with caplog.at_level(logging.ERROR):
        await faults.keep_running("relay", fail_at_first)
    assert faults.counts == {"relay": 12}
    assert faults.latest == {"relay": "AttributeError: run 12"}
    assert pauses.taken[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses.taken[-1] == 30.0
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert 1 < len(tracebacks) < 4, "one a minute at most"


async def test_a_cancelled_task_ends_and_one_of_its_own_cancellations_is_a_fault() -> None:
    faults, again = BackgroundFaults(), asyncio.Event()
    runs = 0

    async def cancelled_within() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise asyncio.CancelledError
        again.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(faults.keep_running("relay", cancelled_within))
    async with asyncio.timeout(20):
        await again.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert faults.counts == {"relay": 1}


async def test_what_is_fatal_is_raised() -> None:
    faults = BackgroundFaults()

    async def close() -> None:
        raise StoreClosed("over")

    with pytest.raises(StoreClosed):
        await faults.keep_running("relay", close, fatal=(StoreClosed,))
    assert not faults.counts


async def test_a_fault_of_the_task_that_sends_writes_delays_them_and_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_once() -> None:
        monkeypatch.undo()
        raise AttributeError("from a library")

    await store.write(Script(Statement("SELECT 1")))
    monkeypatch.setattr(store._combiner, "_take", fail_once)
    monkeypatch.setattr(store._combiner, "_is_quiet", False)  # so that the task sends, and no caller itself
    async with asyncio.timeout(20):
        await asyncio.gather(*(store.write(Script(Statement("SELECT 1"))) for _ in range(3)))
    assert store.faults.counts == {"combiner": 1}
