"""The supervisor: what crashes is begun again, what can't go on is reported, and nothing outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from vox_mesh.errors import StaleIncarnation, StoreClosed
from vox_mesh.runtime.supervisor import PartState, Supervisor

_AT_ONCE = -0.5
"""The chance by which a pause is none."""


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    """One that does not pause, and for which a stale incarnation is the end."""
    supervisor = Supervisor(lambda: _AT_ONCE, (StaleIncarnation,))
    yield supervisor
    await supervisor.stop_all()


async def test_a_part_that_crashes_is_begun_again_and_counted(supervisor: Supervisor) -> None:
    begun, runs = asyncio.Event(), 0

    async def crash() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise ZeroDivisionError(f"run {runs}")
        begun.set()
        await asyncio.Event().wait()

    supervisor.start("crashing", crash)
    async with asyncio.timeout(20):
        await begun.wait()
    part = supervisor.parts["crashing"]
    assert (part.restarts, part.state, part.fault) == (3, PartState.RUNNING, "ZeroDivisionError: run 3")


async def test_a_part_that_crashes_does_not_disturb_another(supervisor: Supervisor) -> None:
    crashed, steady = asyncio.Event(), asyncio.Event()

    async def crash() -> None:
        crashed.set()
        raise RuntimeError

    async def go_on() -> None:
        await crashed.wait()
        steady.set()
        await asyncio.Event().wait()

    supervisor.start("crashing", crash)
    supervisor.start("steady", go_on)
    async with asyncio.timeout(20):
        await steady.wait()
    assert supervisor.parts["steady"].restarts == 0


async def test_between_two_runs_a_part_pauses_and_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            enough.set()
            await asyncio.Event().wait()

    async def crash() -> None:
        raise RuntimeError

    supervisor = Supervisor(lambda: 0.5, monotonic=lambda: 0.0)
    monkeypatch.setattr("vox_mesh.runtime.supervisor.asyncio.sleep", pause)
    supervisor.start("crashing", crash)
    async with asyncio.timeout(20):
        await enough.wait()
    assert supervisor.parts["crashing"].state is PartState.PAUSING
    await supervisor.stop_all()
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_what_is_of_no_use_to_try_again_ends_it_all_and_is_reported(supervisor: Supervisor) -> None:
    async def replaced() -> None:
        raise StaleIncarnation("another process is this node")

    supervisor.start("replaced", replaced)
    async with asyncio.timeout(20):
        why = await supervisor.broken()
    assert isinstance(why, StaleIncarnation)
    part = supervisor.parts["replaced"]
    assert (part.state, part.restarts) == (PartState.BROKEN, 0)
    assert "another process is this node" in part.fault


async def test_an_error_of_the_mesh_that_is_not_the_end_is_a_crash_like_any_other(
    supervisor: Supervisor,
) -> None:
    begun = asyncio.Event()

    async def close() -> None:
        if supervisor.parts["closing"].restarts:
            begun.set()
            return
        raise StoreClosed("the store is closed")

    supervisor.start("closing", close)
    async with asyncio.timeout(20):
        await begun.wait()
        await supervisor._tasks["closing"]
    assert supervisor.parts["closing"].state is PartState.ENDED


async def test_no_part_outlives_it(supervisor: Supervisor) -> None:
    before = asyncio.all_tasks()
    ended: list[str] = []

    def running(name: str) -> None:
        async def run() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # what is left to do takes a moment
                ended.append(name)

        supervisor.start(name, run)

    for name in "abc":
        running(name)
    await asyncio.sleep(0)
    await supervisor.stop("b")
    assert ended == ["b"]
    await supervisor.stop_all()
    assert sorted(ended) == ["a", "b", "c"]
    assert asyncio.all_tasks() == before


async def test_a_part_that_fails_while_it_is_stopped_is_not_begun_again(supervisor: Supervisor) -> None:
    begun = asyncio.Event()

    async def fail_at_the_end() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the disk is full")

    supervisor.start("failing", fail_at_the_end)
    await begun.wait()
    async with asyncio.timeout(20):
        await supervisor.stop("failing")
    assert (supervisor.parts["failing"].state, supervisor.parts["failing"].restarts) == (PartState.ENDED, 0)


async def test_a_part_that_cancels_itself_has_crashed(supervisor: Supervisor) -> None:
    again = asyncio.Event()

    async def cancel_itself() -> None:
        if supervisor.parts["odd"].restarts:
            again.set()
            return
        raise asyncio.CancelledError

    supervisor.start("odd", cancel_itself)
    async with asyncio.timeout(20):
        await again.wait()


async def test_a_part_that_does_not_end_is_left_behind(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vox_mesh.runtime.supervisor._STOP_TIMEOUT_S", 0.01)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def go_on() -> None:
        begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    supervisor.start("deaf", go_on)
    await begun.wait()
    await supervisor.stop_all()
    assert "part did not stop: part=deaf" in caplog.text
    may_end.set()
