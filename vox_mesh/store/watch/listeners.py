"""Detect the commits of other processes, by polling or by file-system events."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self, TypeVar

from vox_mesh.errors import MeshError
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.watch.changes import Changes

T = TypeVar("T")

_MODIFY: Final = 0x2
_CREATE: Final = 0x100
_OVERFLOW: Final = 0x4000
_CLOSE_WRITE: Final = 0x8
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 65_536


def has_file_events() -> bool:
    """Return whether this system reports writes to files at once."""
    return sys.platform.startswith("linux")


class Inotify:
    """Reports writes to the file of that name, even if it does not exist yet.

    Unless `is_folder_watched`, only to the file that has the name now, and that a writer has closed it.
    """

    def __init__(self, path: Path, *, is_folder_watched: bool = True) -> None:
        if not has_file_events():
            raise OSError("there is no inotify on this system")
        import ctypes  # only needed by processes that wait for changes

        libc = ctypes.CDLL(None, use_errno=True)
        if is_folder_watched:
            watched, events, self._name = path.parent, _MODIFY | _CREATE, os.fsencode(path.name)
        else:
            watched, events, self._name = path, _MODIFY | _CLOSE_WRITE, b""
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        if libc.inotify_add_watch(self._descriptor, os.fsencode(watched), events) < 0:
            os.close(self._descriptor)
            raise OSError(ctypes.get_errno(), "inotify_add_watch failed")
        self._is_touched = self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def wait_for_event(self, timeout: float) -> bool:
        """Wait for an event for at most `timeout` seconds. Return whether there was one.

        Events that arrive between calls stay in the kernel, which merges a burst into one.
        """
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, self._wake)
        self._loop.add_reader(self._descriptor, self._read)
        try:
            await waiter
        finally:
            timer.cancel()
            self._loop.remove_reader(self._descriptor)
        was_touched, self._is_touched = self._is_touched, False
        return was_touched

    def take_closed(self) -> bool:
        """Return whether a writer has closed the file since the last call; it may have ended."""
        was_closed, self._is_closed = self._is_closed, False
        return was_closed

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _read(self) -> None:
        data = os.read(self._descriptor, _READ_BYTES)
        at = 0
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            if mask & _OVERFLOW or data[at - length : at].rstrip(b"\0") == self._name:
                self._is_touched = True
                self._is_closed |= bool(mask & _CLOSE_WRITE)
                self._wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


_POLL_INTERVAL_S: Final = 1.0
_MIN_RECHECK_S: Final = 0.001
_MAX_BURST_PAUSE_S: Final = 0.008
_NO_EVENTS_INTERVAL_S: Final = 0.01


class Listener(Protocol):
    """Raises the change count whenever there may have been a commit, until cancelled."""

    async def listen(self) -> None:
        """Listen for commits. The count rises at once, because earlier commits may have been missed."""

    async def own_commit(self, commit: Awaitable[T]) -> T:
        """Await a commit of this process, after which it raises the count itself."""


class FileEvents(Protocol):
    """Events of writes to a file."""

    async def wait_for_event(self, timeout: float) -> bool:
        """Wait for an event for at most `timeout` seconds. Return whether there was one."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class NoEvents:
    """A replacement for systems without file events: frequent polling."""

    def __init__(self, _: Path) -> None:
        pass

    async def wait_for_event(self, timeout: float) -> bool:
        """Wait for one polling interval."""
        await asyncio.sleep(min(timeout, _NO_EVENTS_INTERVAL_S))
        return False

    def take_closed(self) -> bool:
        """Return that this is not known."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class WalListener:
    """Listens to the file backend: every commit is first written to the write-ahead log.

    The event precedes the commit by the time that the disk takes. So a check that finds nothing is repeated,
    soon at first and then ever more rarely, down to once a second. During a burst of commits the pauses grow,
    and each check covers more commits.
    """

    def __init__(
        self,
        wal: Path,
        data_version: Callable[[], Awaitable[int]],
        changes: Changes,
        events: Callable[[Path], FileEvents] = Inotify,
    ) -> None:
        self._wal = wal
        self._data_version = data_version
        self._changes = changes
        self._open_events = events
        self._seen: int | None = None
        self._is_committing = False
        self._committed = asyncio.Event()

    async def listen(self) -> None:
        """Listen to the write-ahead log."""
        with self._events() as events:
            self._seen = await self._version()
            self._changes.bump()
            pause, rest = _POLL_INTERVAL_S, _MIN_RECHECK_S
            while True:
                touched = await events.wait_for_event(pause)
                if self._is_committing:
                    await self._wait_for_own_commit()
                version = await self._version()
                if version != self._seen:
                    self._seen = version
                    self._changes.bump()
                    await asyncio.sleep(rest)
                    rest = min(2 * rest, _MAX_BURST_PAUSE_S)
                elif not touched:  # the burst is over
                    rest = _MIN_RECHECK_S
                pause = _MIN_RECHECK_S if touched else min(2 * pause, _POLL_INTERVAL_S)

    async def own_commit(self, commit: Awaitable[T]) -> T:
        """Await the commit, and take it in; also one of another process is visible to all that read then.

        There is an event for each page that it writes. While one is under way, they are left to the end.
        """
        self._is_committing = True
        try:
            result = await commit
        finally:
            self._is_committing = False
            self._committed.set()
        if self._seen is not None:
            self._seen = await self._version()
        return result

    async def _wait_for_own_commit(self) -> None:
        """Wait until no commit of this process is under way, but not long: others may commit before it."""
        self._committed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_MAX_BURST_PAUSE_S):
                await self._committed.wait()

    async def _version(self) -> int | None:
        try:
            return await self._data_version()
        except MeshError:
            return None  # watches notice the failure when they read

    def _events(self) -> FileEvents:
        try:
            return self._open_events(self._wal)
        except OSError:  # inotify is not available, or its limit is reached
            return NoEvents(self._wal)


class ServerPoll:
    """Polls a server that does not push commits: one cheap query a second returns the end of its log."""

    def __init__(
        self,
        query: Callable[[], Awaitable[object]],
        is_pushed: Callable[[], bool],
        watermark: ReadWatermark,
        changes: Changes,
    ) -> None:
        self._query = query
        self._is_pushed = is_pushed
        self._watermark = watermark
        self._changes = changes
        self.is_away = False
        """Whether the last query was not answered."""

    async def listen(self) -> None:
        """Poll every second, except while commits are pushed or nothing waits for them."""
        seen: object = None
        while True:
            if self._changes.is_awaited and not self._is_pushed():
                seen = await self._poll(seen)
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def own_commit(self, commit: Awaitable[T]) -> T:
        """Await the commit: a poll notices it, too."""
        return await commit

    async def _poll(self, seen: object) -> object:
        if seen is not None and self._watermark.latest[0] is None:
            self._changes.bump()  # the server never reports the end of its log: each watch must read
            return seen
        try:
            await self._query()
        except MeshError:
            if not self.is_away:
                self.is_away = True
                self._changes.bump()
            return None  # so that its return counts as a change
        self.is_away = False
        latest = self._watermark.latest
        if latest != seen:
            self._changes.bump()
        return latest
