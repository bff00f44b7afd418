"""The gate: pages change while nobody reads, and nobody reads while they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Any number of readers, or one change; a change that is due keeps new readers out.

    What runs in the event loop's own thread without pausing needs no place: it need only look whether the
    gate `is_changing`, or for a change whether it `is_free`.
    """

    def __init__(self) -> None:
        self.is_changing = False
        self._is_due = False
        self._readers = 0
        self._moved = asyncio.Condition()

    @property
    def is_free(self) -> bool:
        """Whether nobody reads and nothing changes."""
        return not (self._readers or self._is_due)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read in another thread meanwhile."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._is_due)
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
        self._is_due = True
        try:
            async with self._moved:
                await self._moved.wait_for(lambda: not self._readers)
            self.is_changing = True
            yield
        finally:
            self._is_due = self.is_changing = False
            async with self._moved:
                self._moved.notify_all()

    async def unchanging(self) -> None:
        """Wait until no change is under way."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self.is_changing)
