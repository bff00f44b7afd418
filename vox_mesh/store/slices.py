"""Slices: work on the event loop that takes long is done in short slices, and one slice at a time.

Between two slices others run. Where `resting` is set, the loop is also left idle for a moment: the threads
that write need the GIL between any two statements, and would wait for it as long as the loop is busy.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

SLICE_S: Final = 0.002

resting: Final = ContextVar("resting", default=0.0)
"""How many seconds the work of this context rests between two slices."""

_turns: Final = WeakKeyDictionary[AbstractEventLoop, asyncio.Lock]()


async def in_slices(work: Iterable[T]) -> list[T]:
    """Return the items of an iterator that computes them, and let others run every 2 ms.

    All callers of a loop take turns: however many there are, one slice is between two of its iterations.
    """
    loop = asyncio.get_running_loop()
    turn = _turns.setdefault(loop, asyncio.Lock())
    done: list[T] = []
    items = iter(work)
    is_over = False
    while not is_over:
        async with turn:
            is_over = _work_for_a_slice(items, done, loop)
            if not is_over:
                await rest()
    return done


async def rest() -> None:
    """Let others run before the next slice."""
    await asyncio.sleep(resting.get())


def _work_for_a_slice(items: Iterable[T], done: list[T], loop: AbstractEventLoop) -> bool:
    """Add the next items, for some time by the loop's clock; return whether these were the last ones."""
    until = loop.time() + SLICE_S
    for item in items:
        done.append(item)
        if loop.time() > until:
            return False
    return True
