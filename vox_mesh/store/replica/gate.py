"""Separate the reads of a copy from its changes, within a process and between processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol


class Gate:
    """A readers-writer lock that prefers writers: a waiting change keeps new readers out.

    Code that runs in the event loop's thread without awaiting need not enter it: a read only checks that the
    gate is not `is_changing`, a change that it `is_free`.
    """

    def __init__(self) -> None:
        self.is_changing = False
        self._changes = 0
        self._readers = 0
        self._waiting = 0
        self._condition = asyncio.Condition()

    @property
    def is_free(self) -> bool:
        """Return whether there are no readers and no changes."""
        return not (self._readers or self._changes)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Hold the gate for a read in another thread."""
        async with self._condition:
            await self._wait_until(lambda: not self._changes)
            self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            async with self._condition:
                self._condition.notify_all()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Hold the gate for a change of the pages."""
        if self._waiting:
            await asyncio.sleep(
                0
            )  # let readers that waited for the last change go first, or they could starve
        self._changes += 1
        try:
            async with self._condition:
                await self._condition.wait_for(lambda: not (self._readers or self.is_changing))
            self.is_changing = True
            try:
                yield
            finally:
                self.is_changing = False
        finally:
            self._changes -= 1
            async with self._condition:
                self._condition.notify_all()

    async def wait_until_unchanged(self) -> None:
        """Wait until no change is in progress."""
        async with self._condition:
            await self._wait_until(lambda: not self.is_changing)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._waiting += 1
        try:
            await self._condition.wait_for(condition)
        finally:
            self._waiting -= 1


class OtherReaders(Protocol):
    """The readers of a copy in other processes."""

    def try_exclude(self) -> bool:
        """Hold them off if none is reading. Return whether they are held off."""

    async def exclude(self, announce: Callable[[], None]) -> None:
        """Hold them off, once their reads have ended. `announce` asks them to begin no others."""

    def admit(self) -> None:
        """Let them read again."""


class NoOtherReaders:
    """A copy that belongs to one process."""

    def try_exclude(self) -> bool:
        """Return that there is nothing to hold off."""
        return True

    async def exclude(self, announce: Callable[[], None]) -> None:
        """Do nothing."""

    def admit(self) -> None:
        """Do nothing."""
