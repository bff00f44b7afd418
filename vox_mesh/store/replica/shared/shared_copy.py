"""Read a copy that another process keeps up to date."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from vox_mesh.store.replica.copy_reader import CopyReader
from vox_mesh.store.replica.mark import read_record
from vox_mesh.store.replica.pages import is_size_of, time_of
from vox_mesh.store.replica.shared.published import Published
from vox_mesh.store.replica.shared.reader_lock import RETRY_S, ReaderLock
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

_MAX_WAIT_S: Final = 0.05


_FileState = tuple[int, int, int]
"""The inode, size and time of the file: its time is its position in the log, or that of a write."""


class SharedCopy(CopyReader):
    """A copy whose follower is another process. It is read only in a state that the mark confirms."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path
        self._lock = ReaderLock(path)
        self._published: Published | None = None
        self._descriptor: int | None = None
        self._confirmed: _FileState | None = None
        self._is_damaged = False

    def follow(self, published: Published | None) -> None:
        """Take over what the follower has published."""
        before, self._published = self._published, published
        if published is None or before is None or published.copy_id != before.copy_id:
            self._forget_state()
            self._is_damaged = False
        self.is_readable = published is not None and published.is_readable and not self._is_damaged

    @property
    def is_changing(self) -> bool:
        """Return whether pages are being written, or must be completed by the next follower."""
        if not self._begin_read():
            return True
        self._end_read()
        return False

    async def read(self, statement: Statement) -> Rows | None:
        """Run a query on complete transactions; `None` if the primary must answer."""
        rows = await super().read(statement)
        if rows is None and self.is_readable and self.is_changing:
            self.is_readable = False  # until the follower reports again: other reads need not wait, too
        return rows

    def _begin_read(self) -> bool:
        if not self._lock.try_read():
            return False
        if self._is_confirmed():
            return True
        self._lock.release()
        return False

    def _end_read(self) -> None:
        self._lock.release()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Callable[[], bool] | None]:
        lock = ReaderLock(self._path)  # reads in the event loop's thread hold and release another one
        try:
            may_read = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_MAX_WAIT_S):
                    while not (may_read := lock.try_read() and self._is_confirmed()):
                        lock.release()
                        await asyncio.sleep(RETRY_S)
            confirmed = self._confirmed  # another read may find a later state meanwhile
            yield (lambda: self._confirmed is confirmed and self._is_trusted()) if may_read else None
        finally:
            lock.close()

    async def _wait_until_unchanged(self) -> None:
        while self.is_changing:  # noqa: ASYNC110 - by another process, there is no event
            await asyncio.sleep(RETRY_S)

    # --- trust -----------------------------------------------------------------------------------

    def _is_confirmed(self) -> bool:
        """Return whether the file is at a position that the mark confirms. Call it with the lock held.

        A file that is replaced, not written, is read until its follower reports that.
        """
        if self._descriptor is not None and _state(os.fstat(self._descriptor)) == self._confirmed:
            return True
        return self._confirm()

    def _confirm(self) -> bool:
        published, record = self._published, read_record(self._path)
        if published is None or record is None:
            return False
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        found = os.fstat(descriptor)
        is_at_mark = (found.st_ino, found.st_mtime_ns) == (
            published.inode,
            time_of(record.next_frame),
        ) and is_size_of(record.pages, found.st_size)
        is_same_copy = (record.log_id, record.start_overs) == (published.log_id, published.start_overs)
        is_new = record.next_frame >= published.next_frame
        if not (is_at_mark and is_same_copy and is_new and found.st_uid == os.geteuid()):
            os.close(descriptor)
            return False
        self._drop_state()
        self._descriptor, self._confirmed = descriptor, _state(found)
        self._reader.invalidate()
        return True

    def _is_trusted(self, has_it_open: bool = False) -> bool:
        if not self._is_unchanged(has_it_open):
            self._forget_state()
            return False
        if self._reader.found_damage:
            self._is_damaged, self.is_readable = True, False
        return not self._is_damaged

    def _is_unchanged(self, has_it_open: bool) -> bool:
        before, descriptor = self._confirmed, self._descriptor
        if before is None or descriptor is None:
            return False
        try:
            found = _state(os.fstat(descriptor) if has_it_open else self._path.lstat())
        except OSError:
            return False
        # A nanosecond more announces a change, which waits for this read.
        return found == before or found == (*before[:2], before[2] + 1)

    def _forget_state(self) -> None:
        """Drop all that was read: it may be of pages that were being written."""
        self._drop_state()
        self._reader.close_connections()
        self._reader.found_damage = False

    def _drop_state(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._confirmed = None

    def close(self) -> None:
        """Close the file."""
        self.is_readable = False
        self._forget_state()
        self._lock.close()


def _state(found: os.stat_result) -> _FileState:
    return found.st_ino, found.st_size, found.st_mtime_ns
