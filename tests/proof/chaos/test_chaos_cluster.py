"""A player has one life at a time, and is taken for dead only when its process is gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from proof.chaos.clock_steps import ClockSteps
from proof.chaos.cluster import ClusterNode, assert_all_gone
from proof.chaos.protocol import OVER, UP, ProcessSpec
from proof.history import Event, Recorder
from tests.support.nodes.stepped_databases import clock_in
from tools.homes import FILE

pytestmark = pytest.mark.timeout(30)


class EventLog(list[Event]):
    """What the stage notes."""

    @property
    def recorder(self) -> Recorder:
        """Writes into it."""
        return Recorder("stage", 1, lambda: float(len(self)), self.append)

    @property
    def processes(self) -> list[str]:
        """What began and ended, in order."""
        return [
            "began" if event.what == "life.began" else event.data["how"]
            for event in self
            if event.what.startswith("life")
        ]


@pytest.fixture
async def notes() -> EventLog:
    """All notes of the stage."""
    return EventLog()


@pytest.fixture
async def ann(tmp_path: Path, notes: EventLog) -> AsyncIterator[ClusterNode]:
    """A person whose part is read by an understudy."""
    spec = ProcessSpec("ann", 0, 1, ("ann",), str(tmp_path), str(tmp_path), 0.1)
    settings = FILE.settings(tmp_path, None, node_id="ann")
    node = ClusterNode(spec, settings, notes.recorder, tmp_path, ("tests.proof.stub_client",))
    node.begin()
    yield node
    await node.close()


async def test_one_that_is_killed_while_being_born_or_at_any_other_moment_is_gone_before_the_next_life(
    ann: ClusterNode, notes: EventLog
) -> None:
    for number in range(12):
        for _ in range(number):
            await asyncio.sleep(0)  # into the birth, a little further each time
        async with ann.kept_down():
            assert ann.process is None
            assert all(process.is_over for process in ann.processes)
            for process in ann.processes:
                with pytest.raises(ProcessLookupError):
                    os.kill(process.handle.pid, 0)
    await ann.until(UP)
    assert notes.processes == ["began", "killed"] * (len(ann.processes) - 1) + ["began"]


async def test_one_that_dies_by_itself_just_when_it_is_killed_dies_once(
    ann: ClusterNode, notes: EventLog
) -> None:
    await ann.until(UP)
    ann.order("die")
    async with ann.kept_down():
        assert ann.process is None
    await ann.until(UP)
    assert notes.processes == ["began", "killed", "began"]


async def test_one_that_is_stopped_can_be_killed_and_lives_again(ann: ClusterNode, notes: EventLog) -> None:
    await ann.until(UP)
    ann.pause()
    async with ann.kept_down():
        assert all(process.is_over for process in ann.processes)
    ann.resume()
    await ann.until(UP)
    assert notes.processes == ["began", "killed", "began"]


async def test_who_breaks_is_begun_again_and_who_leaves_is_not(ann: ClusterNode, notes: EventLog) -> None:
    await ann.until(UP)
    ann.order("fail")
    first = ann.process
    assert first is not None
    await ann.ended(first)
    await ann.until(UP)
    ann.order("over")
    await ann.until(OVER)
    with pytest.raises(AssertionError, match="ann still lives"):
        assert_all_gone({"ann": ann})
    await ann.leave()
    assert_all_gone({"ann": ann})
    assert notes.processes == ["began", "broke", "began", "left"]


async def test_who_was_removed_stays_away(ann: ClusterNode, notes: EventLog) -> None:
    await ann.until(UP)
    await ann.remove()
    await ann.leave()
    assert_all_gone({"ann": ann})
    assert notes.processes == ["began", "killed"]


async def test_the_clock_is_set_when_every_process_has_joined_and_none_starts_until_that_is_noticed(
    ann: ClusterNode, notes: EventLog, tmp_path: Path
) -> None:
    clock = clock_in(tmp_path)
    await ann.until(UP)
    joined, noticed = list[dict[str, Any]](), {"correction_ms": 0, "is_recorded": 0}
    is_asked_before, is_asked_after = asyncio.Event(), asyncio.Event()

    async def ask(sql: str) -> list[dict[str, Any]]:
        is_after = "clock_witnesses" in sql
        (is_asked_after if is_after else is_asked_before).set()
        return [noticed] if is_after else joined

    async with AsyncExitStack() as wrong:
        steps = ClockSteps(clock, [ann], ask, notes.recorder)
        setting = asyncio.create_task(wrong.enter_async_context(steps.wrong(20_000)))
        await is_asked_before.wait()
        assert clock.ahead_s == 0
        assert ann.process is not None
        joined.append({"node_id": "ann", "pid": ann.process.handle.pid})
        await is_asked_after.wait()
        assert clock.ahead_s == 20
        await ann.kill()
        assert notes.processes == ["began", "killed"]
        assert not setting.done()
        noticed["is_recorded"] = 1
        await setting
        await ann.until(UP)
        joined.append({"node_id": "ann", "pid": ann.process.handle.pid})
    assert clock.ahead_s == 0
