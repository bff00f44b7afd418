"""The gate: pages change while nobody reads, and nobody reads while they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """Any number of readers, or one change; a change that is due keeps new readers out.

    What runs in the event loop's own thread without pausing needs no place: it need only look whether the
    gate `is_changing`, or for a change whether it `is_free`.
    """

    def __init__(self) -> None:
        self.is_changing = False
        self._due = 0
        self._readers = 0
        self._waiting = 0
        self._moved = asyncio.Condition()

    @property
    def is_free(self) -> bool:
        """Whether nobody reads and nothing changes."""
        return not (self._readers or self._due)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read in another thread meanwhile."""
        async with self._moved:
            await self._wait_until(lambda: not self._due)
            self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            async with self._moved:
                self._moved.notify_all()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Change the pages meanwhile."""
        if self._waiting:
            await asyncio.sleep(0)  # whoever waited for the last change goes first, or might wait for ever
        self._due += 1
        try:
            async with self._moved:
                await self._moved.wait_for(lambda: not (self._readers or self.is_changing))
            self.is_changing = True
            try:
                yield
            finally:
                self.is_changing = False
        finally:
            self._due -= 1
            async with self._moved:
                self._moved.notify_all()

    async def unchanging(self) -> None:
        """Wait until no change is under way."""
        async with self._moved:
            await self._wait_until(lambda: not self.is_changing)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._waiting += 1
        try:
            await self._moved.wait_for(condition)
        finally:
            self._waiting -= 1
