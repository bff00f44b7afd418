"""Shared readings: many requests, few questions to the database, and what is asked for is never missed."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from vox_mesh.oplog.grants.shared_reading import SharedReading


class _Source:
    """A value that readings copy, when each of them began, and a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.value = self.found = 0
        self.begun: list[float] = []
        self.answers = True
        self.reading = SharedReading(self._read, lambda: self.now, self.wait)

    async def wait(self, seconds: float) -> None:
        """Let the time pass for which a reading waits."""
        await asyncio.sleep(0)
        self.now += seconds

    async def _read(self) -> bool:
        self.begun.append(self.now)
        found = self.value
        await asyncio.sleep(0)
        self.found = found
        return self.answers

    async def renew(self) -> int:
        await self.reading.renew()
        return self.found


@pytest.fixture
def source() -> _Source:
    return _Source()


async def test_requests_of_a_second_share_a_reading(source: _Source) -> None:
    await asyncio.gather(*(source.reading.reuse() for _ in range(50)))
    source.now = 0.9
    await source.reading.reuse()
    assert source.begun == [0.0]
    source.now = 1.0
    await source.reading.reuse()
    assert source.begun == [0.0, 1.0]
    source.reading.expire()
    await source.reading.reuse()
    assert source.begun == [0.0, 1.0, 1.0]


async def test_whatever_was_written_before_is_found_and_readings_stay_apart(source: _Source) -> None:
    found = []

    async def ask() -> None:
        written = source.value
        found.append(await source.renew() >= written)

    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            source.value += 1
            group.create_task(ask())
            await source.wait(0.001)
    assert found == [True] * 200
    assert all(later - earlier >= 0.099 for earlier, later in pairwise(source.begun)), source.begun
    assert len(source.begun) < 20


async def test_a_reading_that_is_cancelled_leaves_the_next_request_to_read(source: _Source) -> None:
    first = asyncio.ensure_future(source.renew())
    await asyncio.sleep(0)
    source.value = 1
    second = asyncio.ensure_future(source.renew())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


async def test_while_the_database_is_away_it_is_asked_once_a_second(source: _Source) -> None:
    source.answers = False
    await asyncio.gather(*(source.reading.reuse() for _ in range(50)))
    await source.reading.reuse()
    assert source.begun == [0.0]
    source.now = 1.0
    await source.reading.reuse()
    assert source.begun == [0.0, 1.0]
