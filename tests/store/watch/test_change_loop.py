"""The loop over changes: a turn at once, one after each commit, and none missed."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.support.nodes.virtual_time import in_virtual_time
from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.store.watch.changes import ChangeLoop, Changes

_NEVER_S: Final = 10_000.0
"""Longer than any wait of a loop; no time passes by it, because it is virtual."""


class _Source:
    def __init__(self) -> None:
        self.commits = Changes()
        self.is_in_touch = True

    @property
    def change_count(self) -> int:
        return self.commits.count

    async def changed(self, since: int) -> int:
        return await self.commits.after(since)


async def _turn(loop: ChangeLoop) -> ChangeLoop:
    return await asyncio.wait_for(anext(loop), _NEVER_S)


async def _seconds_to_turn(loop: ChangeLoop) -> float:
    clock = asyncio.get_running_loop()
    began = clock.time()
    await _turn(loop)
    return clock.time() - began


async def _waits(loop: ChangeLoop) -> bool:
    with pytest.raises(TimeoutError):
        await _turn(loop)
    return True


@in_virtual_time
async def test_the_first_turn_comes_at_once_and_the_next_after_a_commit() -> None:
    source = _Source()
    loop = ChangeLoop(source)
    await _turn(loop)
    assert await _waits(loop)
    source.commits.bump()
    await _turn(loop)
    assert await _waits(loop)


@in_virtual_time
async def test_a_commit_during_the_body_starts_the_next_turn() -> None:
    source = _Source()
    loop = ChangeLoop(source)
    await _turn(loop)
    source.commits.bump()
    source.commits.bump()
    await _turn(loop)
    assert await _waits(loop)  # one turn for both


@in_virtual_time
async def test_with_a_count_the_first_turn_waits_for_another_one() -> None:
    source = _Source()
    loop = ChangeLoop(source, since=source.change_count)
    assert await _waits(loop)
    source.commits.bump()
    await _turn(loop)
    await _turn(ChangeLoop(source, since=0))


@in_virtual_time
async def test_a_turn_comes_after_the_interval_without_a_commit() -> None:
    source = _Source()
    loop = ChangeLoop(source, interval_s=20.0)
    assert [await _seconds_to_turn(loop) for _ in range(3)] == [0.0, 20.0, 20.0]


@in_virtual_time
async def test_a_limit_holds_for_one_turn() -> None:
    source = _Source()
    loop = ChangeLoop(source)
    (await _turn(loop)).wait_at_most(20.0)
    assert await _seconds_to_turn(loop) == 20.0
    assert await _waits(loop)


@in_virtual_time
async def test_a_turn_comes_every_second_while_out_of_touch() -> None:
    source = _Source()
    source.is_in_touch = False
    loop = ChangeLoop(source)
    assert [await _seconds_to_turn(loop) for _ in range(3)] == [0.0, 1.0, 1.0]


@in_virtual_time
async def test_it_is_woken_before_and_while_it_waits() -> None:
    source = _Source()
    loop = ChangeLoop(source)
    (await _turn(loop)).wake()
    await _turn(loop)
    waiting = asyncio.create_task(_turn(loop))
    while not source.commits.is_awaited:  # noqa: ASYNC110 - a turn of the loop, not a pause
        await asyncio.sleep(0)
    loop.wake()
    loop.wake()
    await waiting
    assert await _waits(loop)


@in_virtual_time
async def test_a_pause_ends_by_time_alone() -> None:
    source = _Source()
    loop = ChangeLoop(source)
    source.commits.bump()
    await (await _turn(loop)).pause(20.0)
    assert asyncio.get_running_loop().time() == 20.0
    assert await _seconds_to_turn(loop) == 0.0
    assert await _waits(loop)


@in_virtual_time
async def test_the_debounce_collects_commits() -> None:
    source = _Source()
    loop = ChangeLoop(source, debounce_s=20.0)
    await _turn(loop)
    source.commits.bump()
    waiting = asyncio.create_task(_seconds_to_turn(loop))
    await asyncio.sleep(5.0)
    source.commits.bump()
    assert await waiting == 20.0
    assert await _waits(loop)


@in_virtual_time
async def test_a_cancelled_turn_loses_no_commit() -> None:
    source = _Source()
    loop = ChangeLoop(source, debounce_s=2 * _NEVER_S)
    await _turn(loop)
    source.commits.bump()
    assert await _waits(loop)  # cancelled during the debounce
    loop.debounce_s = 0.0
    await _turn(loop)
    undelayed = ChangeLoop(source)
    await _turn(undelayed)
    assert await _waits(undelayed)  # cancelled while waiting
    source.commits.bump()
    await _turn(undelayed)


@in_virtual_time
async def test_an_unavailable_database_is_retried_and_other_errors_are_raised() -> None:
    source = _Source()
    loop = ChangeLoop(source)
    with (await _turn(loop)).retry_if_unavailable():
        raise DatabaseUnavailable("no answer")
    assert await _seconds_to_turn(loop) == 1.0
    with loop.retry_if_unavailable():
        pass
    assert await _waits(loop)
    with pytest.raises(ValueError, match="other"), loop.retry_if_unavailable():
        raise ValueError("other")
