"""Read a copy that another process keeps up to date."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.store.replica.copy_reader import CopyReader
from vox_mesh.store.replica.mark import read_record
from vox_mesh.store.replica.pages import time_of
from vox_mesh.store.replica.shared.published import Published
from vox_mesh.store.replica.shared.reader_lock import RETRY_S, ReaderLock
from vox_mesh.store.replica.wire import PAGE
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

_MAX_WAIT_S: Final = 0.05


class _FileState(NamedTuple):
    """A state of the file. Its time is its position in the log, or the present while it is written."""

    inode: int
    size: int
    time_ns: int


class SharedCopy(CopyReader):
    """A copy whose follower is another process. It is read only in a state that the mark confirms."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path
        self._lock = ReaderLock(path)
        self._published: Published | None = None
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
    async def _reading(self) -> AsyncIterator[bool]:
        lock = ReaderLock(self._path)  # reads in the event loop's thread hold and release another one
        try:
            may_read = False
            with suppress(TimeoutError):
                async with asyncio.timeout(_MAX_WAIT_S):
                    while not (may_read := lock.try_read() and self._is_confirmed()):
                        lock.release()
                        await asyncio.sleep(RETRY_S)
            yield may_read
        finally:
            lock.close()

    async def _wait_until_unchanged(self) -> None:
        while self.is_changing:  # noqa: ASYNC110 - by another process, there is no event
            await asyncio.sleep(RETRY_S)

    # --- trust -----------------------------------------------------------------------------------

    def _is_confirmed(self) -> bool:
        """Return whether the file is at a position that the mark confirms. Call it with the lock held."""
        found = self._file_state()
        return found is not None and (found == self._confirmed or self._confirm(found))

    def _confirm(self, found: _FileState) -> bool:
        published, record = self._published, read_record(self._path)
        if published is None or record is None:
            return False
        is_at_mark = found == (published.inode, record.pages * PAGE, time_of(record.next_frame))
        is_same_copy = (record.log_id, record.start_overs) == (published.log_id, published.start_overs)
        if not (is_at_mark and is_same_copy and record.next_frame >= published.next_frame):
            return False
        self._confirmed = found
        self._reader.invalidate()
        return True

    def _is_trusted(self, has_it_open: bool = False) -> bool:
        found, before = self._file_state(), self._confirmed
        # A nanosecond more announces a change, which waits for this read.
        if before is None or found not in (before, before._replace(time_ns=before.time_ns + 1)):
            self._forget_state()
            return False
        if self._reader.found_damage:
            self._is_damaged, self.is_readable = True, False
        return not self._is_damaged

    def _forget_state(self) -> None:
        """Drop all that was read: it may be of pages that were being written."""
        self._confirmed = None
        self._reader.close_connections()
        self._reader.found_damage = False

    def _file_state(self) -> _FileState | None:
        """Return the state of the file; `None` if there is none, or one of another user."""
        try:
            found = self._path.lstat()
        except OSError:
            return None
        if found.st_uid != os.geteuid():
            return None
        return _FileState(found.st_ino, found.st_size, found.st_mtime_ns)

    def close(self) -> None:
        """Close the file."""
        self.is_readable = False
        self._reader.close_connections()
        self._lock.close()
