"""Answer queries from a copy: fast ones in the event loop's thread, slow ones in another."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Final

from vox_mesh.store.engines.reader import QUICK_S, SLOW_S, LoopTurn, Reader, TooLong
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

_SLOW_READS: Final = 2
"""The number of slow queries that may delay changes at the same time."""

_MAX_WAIT_S: Final = 0.05


class CopyReader(ABC):
    """Reads a copy, and never while its pages change."""

    def __init__(self, path: Path) -> None:
        self._reader = Reader(path)
        self._slow = asyncio.Semaphore(_SLOW_READS)
        self._loop_turn = LoopTurn()
        self.is_readable = False
        """Whether it holds a consistent state of the primary."""

    @property
    @abstractmethod
    def is_changing(self) -> bool:
        """Return whether pages are being written."""

    @abstractmethod
    def _begin_read(self) -> bool:
        """Begin a read in the event loop's thread. Return whether that is possible now."""

    @abstractmethod
    def _end_read(self) -> None:
        """End that read."""

    @abstractmethod
    def _reading(self) -> AbstractAsyncContextManager[Callable[[], bool] | None]:
        """Hold off changes during a read in another thread.

        The value returns whether the file did not change since; it is `None` if the copy can't be read.
        """

    @abstractmethod
    async def _wait_until_unchanged(self) -> None:
        """Wait until no change is in progress."""

    @abstractmethod
    def _is_trusted(self, has_it_open: bool = False) -> bool:
        """Return whether the file did not change during a read; with `has_it_open`, it may have moved."""

    def read_now(self, statement: Statement) -> Rows | None:
        """Run a query without waiting; `None` if that is not possible."""
        reader = self._reader
        if not self.is_readable or not self._loop_turn.has_time or reader.is_slow(statement):
            return None
        if not self._begin_read():
            return None
        try:
            reader.revalidate()
            was_open = reader.is_open
            try:
                rows = reader.query_inline(statement, QUICK_S)
            except TooLong:
                rows = None
            return rows if self._is_trusted(was_open) else None
        finally:
            self._end_read()

    async def read(self, statement: Statement) -> Rows | None:
        """Run a query on complete transactions; `None` if the primary must answer."""
        if not self.is_readable:
            return None
        try:
            while not self._loop_turn.has_time or self.is_changing:
                async with asyncio.timeout(_MAX_WAIT_S):
                    await (self._wait_until_unchanged() if self.is_changing else asyncio.sleep(0))
            rows = self.read_now(statement)
            if rows is not None or not self._reader.is_worth_a_thread(statement):
                return rows
            async with asyncio.timeout(_MAX_WAIT_S):
                await self._slow.acquire()
        except TimeoutError:
            return None
        try:
            if not self._reader.is_slow(statement):  # another caller may have found it fast meanwhile
                rows = self.read_now(statement)
            return await self._read_in_thread(statement) if rows is None else rows
        finally:
            self._slow.release()

    async def _read_in_thread(self, statement: Statement) -> Rows | None:
        async with self._reading() as is_unchanged:
            if is_unchanged is None or not self.is_readable:
                return None
            reading = asyncio.to_thread(self._reader.query_in_thread, statement, SLOW_S)
            rows: Rows | None = None
            with suppress(TooLong):
                rows = await to_the_end(asyncio.ensure_future(reading))
            return rows if is_unchanged() else None
