"""The loop over changes: a turn at once, one after each commit, and none missed."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.store.watch.changes import ChangeLoop, Changes

_NEVER_S: Final = 0.05
_PATIENCE_S: Final = 10.0


class _Source:
    def __init__(self) -> None:
        self.commits = Changes()
        self.is_in_touch = True

    @property
    def change_count(self) -> int:
        return self.commits.count

    async def changed(self, since: int) -> int:
        return await self.commits.after(since)


@pytest.fixture
async def source() -> _Source:
    return _Source()


async def _turn(loop: ChangeLoop) -> ChangeLoop:
    return await asyncio.wait_for(anext(loop), _PATIENCE_S)


async def _waits(loop: ChangeLoop) -> bool:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(loop), _NEVER_S)
    return True


async def test_the_first_turn_comes_at_once_and_the_next_after_a_commit(source: _Source) -> None:
    loop = ChangeLoop(source)
    await _turn(loop)
    assert await _waits(loop)
    source.commits.bump()
    await _turn(loop)
    assert await _waits(loop)


async def test_a_commit_during_the_body_starts_the_next_turn(source: _Source) -> None:
    loop = ChangeLoop(source)
    await _turn(loop)
    source.commits.bump()
    source.commits.bump()
    await _turn(loop)
    assert await _waits(loop)  # one turn for both


async def test_with_a_count_the_first_turn_waits_for_another_one(source: _Source) -> None:
    loop = ChangeLoop(source, since=source.change_count)
    assert await _waits(loop)
    source.commits.bump()
    await _turn(loop)
    await _turn(ChangeLoop(source, since=0))


async def test_a_turn_comes_after_the_interval_without_a_commit(source: _Source) -> None:
    loop = ChangeLoop(source, interval_s=0.01)
    for _ in range(3):
        await _turn(loop)


async def test_a_limit_holds_for_one_turn(source: _Source) -> None:
    loop = ChangeLoop(source)
    (await _turn(loop)).wait_at_most(0.01)
    await _turn(loop)
    assert await _waits(loop)


async def test_a_turn_comes_every_second_while_out_of_touch(source: _Source) -> None:
    source.is_in_touch = False
    loop, began = ChangeLoop(source), asyncio.get_running_loop().time()
    await _turn(loop)
    await _turn(loop)
    assert asyncio.get_running_loop().time() - began > 0.9


async def test_it_is_woken_before_and_while_it_waits(source: _Source) -> None:
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


async def test_a_pause_ends_by_time_alone(source: _Source) -> None:
    loop = ChangeLoop(source)
    began = asyncio.get_running_loop().time()
    source.commits.bump()
    await (await _turn(loop)).pause(0.02)
    await _turn(loop)
    assert asyncio.get_running_loop().time() - began > 0.015
    assert await _waits(loop)


async def test_the_debounce_collects_commits(source: _Source) -> None:
    loop = ChangeLoop(source, debounce_s=0.02)
    await _turn(loop)
    source.commits.bump()
    waiting = asyncio.create_task(_turn(loop))
    await asyncio.sleep(0.005)
    source.commits.bump()
    await waiting
    assert await _waits(loop)


async def test_a_cancelled_turn_loses_no_commit(source: _Source) -> None:
    loop = ChangeLoop(source, debounce_s=_PATIENCE_S)
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


async def test_an_unavailable_database_is_retried_and_other_errors_are_raised(source: _Source) -> None:
    loop = ChangeLoop(source)
    began = asyncio.get_running_loop().time()
    with (await _turn(loop)).retry_if_unavailable():
        raise DatabaseUnavailable("no answer")
    with (await _turn(loop)).retry_if_unavailable():
        pass
    assert asyncio.get_running_loop().time() - began > 0.9
    assert await _waits(loop)
    with pytest.raises(ValueError, match="other"), loop.retry_if_unavailable():
        raise ValueError("other")
