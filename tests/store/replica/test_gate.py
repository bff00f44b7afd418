"""The gate: readers and changes exclude each other, no one waits forever, giving up leaves no trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few
from vox_mesh.store.replica.gate import Gate

_PATIENCE_S = 20.0
_ROUNDS = 12
"""More turns of the event loop than anything here needs to come to rest."""


async def at_rest() -> None:
    """Let everybody go as far as they can."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


class Watched:
    """A gate, and who is behind it."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.readers = 0
        self.changes = 0
        self.done = 0

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read, and see that nothing changes."""
        async with self.gate.reading():
            self.readers += 1
            try:
                self._check()
                yield
                self._check()
                self.done += 1
            finally:
                self.readers -= 1

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Change, and see that no one else does anything."""
        async with self.gate.changing():
            self.changes += 1
            try:
                self._check()
                yield
                self._check()
                self.done += 1
            finally:
                self.changes -= 1

    def _check(self) -> None:
        assert self.changes <= 1, "two changes at once"
        assert not (self.changes and self.readers), "a change under a reader"
        assert self.gate.is_changing is bool(self.changes)
        assert not self.gate.is_free

    async def assert_usable(self) -> None:
        """Nothing is left of those who were here before."""
        async with asyncio.timeout(_PATIENCE_S):
            await self.gate.wait_until_unchanged()
            for way in (self.changing, self.reading, self.changing):
                async with way():
                    await asyncio.sleep(0)
        assert self.gate.is_free
        assert not self.gate.is_changing


Way = Callable[[Watched], AbstractAsyncContextManager[None]]
each_way = pytest.mark.parametrize("way", [Watched.reading, Watched.changing], ids=["reading", "changing"])


async def stay(place: AbstractAsyncContextManager[None], until: asyncio.Event) -> None:
    """Take the place and keep it."""
    async with place:
        await until.wait()


async def test_readers_share_it() -> None:
    watched = Watched()
    async with asyncio.timeout(_PATIENCE_S), watched.reading(), watched.reading():
        assert watched.readers == 2
        assert not watched.gate.is_changing
    await watched.assert_usable()


async def test_a_change_waits_for_the_readers_and_readers_for_the_change() -> None:
    watched, read, changed = Watched(), asyncio.Event(), asyncio.Event()
    reader = asyncio.create_task(stay(watched.reading(), read))
    await at_rest()
    change = asyncio.create_task(stay(watched.changing(), changed))
    await at_rest()
    assert (watched.readers, watched.changes) == (1, 0)
    assert not watched.gate.is_changing, "those who only look may look for as long as nothing changes"
    read.set()
    await reader
    await at_rest()
    assert watched.changes == 1
    late = asyncio.create_task(stay(watched.reading(), read))
    looking = asyncio.create_task(watched.gate.wait_until_unchanged())
    await at_rest()
    assert not looking.done()
    changed.set()
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(change, late, looking)
    await watched.assert_usable()


async def test_a_change_that_is_due_keeps_new_readers_out() -> None:
    watched, first, rest = Watched(), asyncio.Event(), asyncio.Event()
    reader = asyncio.create_task(stay(watched.reading(), first))
    await at_rest()
    change = asyncio.create_task(stay(watched.changing(), rest))
    await at_rest()
    late = asyncio.create_task(stay(watched.reading(), rest))
    await at_rest()
    assert watched.readers == 1
    assert not watched.gate.is_free
    first.set()
    await reader
    await at_rest()
    assert (watched.changes, watched.readers) == (1, 0)
    rest.set()
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(change, late)
    await watched.assert_usable()


async def test_a_reader_that_waited_gets_in_between_two_changes() -> None:
    watched, at_once = Watched(), asyncio.Event()
    at_once.set()
    async with asyncio.timeout(_PATIENCE_S):
        async with watched.changing():
            waiting = [asyncio.create_task(stay(watched.reading(), at_once)) for _ in range(3)]
            looking = asyncio.create_task(watched.gate.wait_until_unchanged())
            await at_rest()
        for _ in range(3):
            async with watched.changing():
                await at_rest()
    assert all(task.done() for task in (*waiting, looking)), "changes one after another kept them out"


async def test_changes_come_one_after_another() -> None:
    watched = Watched()

    async def change() -> None:
        async with watched.changing():
            await at_rest()

    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*(change() for _ in range(4)))
    assert watched.done == 4
    await watched.assert_usable()


@each_way
async def test_an_error_inside_opens_it_again(way: Way) -> None:
    watched = Watched()
    with pytest.raises(ZeroDivisionError):
        async with way(watched):
            raise ZeroDivisionError
    await watched.assert_usable()


@each_way
@pytest.mark.parametrize("holder", [Watched.reading, Watched.changing], ids=["read", "changed"])
@pytest.mark.parametrize("times", [1, 2])
async def test_one_that_is_cancelled_at_any_turn_leaves_it_usable(way: Way, holder: Way, times: int) -> None:
    for turns in range(_ROUNDS):
        watched, held, kept = Watched(), asyncio.Event(), asyncio.Event()
        holding = asyncio.create_task(stay(holder(watched), held))
        await at_rest()
        victim = asyncio.create_task(stay(way(watched), kept))
        other = asyncio.create_task(stay(watched.reading(), kept))
        if turns > _ROUNDS // 2:
            held.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(times):
            victim.cancel()
            await asyncio.sleep(0)
        held.set()
        kept.set()
        async with asyncio.timeout(_PATIENCE_S):
            with suppress(asyncio.CancelledError):
                await victim
            await asyncio.gather(holding, other)
        await watched.assert_usable()


@few
@given(st.integers(0, 2**32))
async def test_many_who_come_go_and_give_up_never_meet(seed: int) -> None:
    random, watched = Random(seed), Watched()

    async def visit(turns: int, way: Way) -> None:
        async with way(watched):
            for _ in range(turns):
                await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    async with asyncio.timeout(_PATIENCE_S):
        for _ in range(60):
            way = Watched.reading if random.random() < 0.6 else Watched.changing
            tasks.append(asyncio.create_task(visit(random.randint(0, 6), way)))
            if random.random() < 0.4:
                random.choice(tasks).cancel()
            if random.random() < 0.5:
                await asyncio.sleep(0)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]
    assert not faults
    assert watched.done
    await watched.assert_usable()
