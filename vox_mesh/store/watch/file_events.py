"""Events of files: that one was written, or that a commit to a database file has ended."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

_ACCESS: Final = 0x1
_MODIFY: Final = 0x2
_CLOSE_WRITE: Final = 0x8
_CREATE: Final = 0x100
_OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 65_536

MIN_RECHECK_S: Final = 0.001
"""How long after a write to the log its commit is looked for, unless the bell rings before."""

RUNG_RECHECK_S: Final = 0.016
"""How long after a bell a commit is looked for that a program without one had just begun to write."""

MAX_HOLD_S: Final = 0.008
"""How long the events of others are left to the end of a commit of this process."""

_NO_EVENTS_INTERVAL_S: Final = 0.01


def has_file_events() -> bool:
    """Return whether this system reports writes to files at once."""
    return sys.platform.startswith("linux")


class _Event(NamedTuple):
    """An event: the watch that it belongs to, its kinds, and the name in a watched folder."""

    watch: int
    mask: int
    name: bytes


class _Watches:
    """Files and folders that the kernel watches for this process."""

    def __init__(self) -> None:
        if not has_file_events():
            raise OSError("there is no inotify on this system")
        import ctypes  # only needed by processes that wait for changes

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(self._errno(), "inotify_init1 failed")

    def add(self, path: Path, mask: int) -> int:
        """Watch a file or folder, and return the number of the watch. If that fails, all is closed."""
        watch: int = self._libc.inotify_add_watch(self.descriptor, os.fsencode(path), mask)
        if watch < 0:
            error = self._errno()
            self.close()
            raise OSError(error, "inotify_add_watch failed")
        return watch

    def read(self) -> Iterator[_Event]:
        """Return the events that have come. The kernel merges a burst of equal ones."""
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self.descriptor, _READ_BYTES)
        at = 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            yield _Event(watch, mask, data[at - length : at].rstrip(b"\0"))

    def close(self) -> None:
        """Watch no longer."""
        os.close(self.descriptor)


class Inotify:
    """Reports writes to a file, and that a writer has closed it; only to the file that has the name now."""

    def __init__(self, path: Path) -> None:
        self._watches = _Watches()
        self._watches.add(path, _MODIFY | _CLOSE_WRITE)
        self._is_touched = self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def wait_for_event(self, timeout: float) -> bool:
        """Wait for an event for at most `timeout` seconds. Return whether there was one.

        Events that arrive between calls stay in the kernel.
        """
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, _wake, waiter)
        self._loop.add_reader(self._watches.descriptor, self._read)
        try:
            await waiter
        finally:
            timer.cancel()
            self._loop.remove_reader(self._watches.descriptor)
        was_touched, self._is_touched = self._is_touched, False
        return was_touched

    def take_closed(self) -> bool:
        """Return whether a writer has closed the file since the last call; it may have ended."""
        was_closed, self._is_closed = self._is_closed, False
        return was_closed

    def _read(self) -> None:
        for event in self._watches.read():
            self._is_touched = True
            self._is_closed |= bool(event.mask & _CLOSE_WRITE)
        if self._is_touched:
            _wake(self._waiter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watches.close()


class NoEvents:
    """A replacement for systems without file events: frequent polling."""

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


class Sign(Enum):
    """A sign of a commit."""

    NONE = auto()
    """No sign: the time is over."""

    WRITTEN = auto()
    """The log was written: a commit can be seen, or can be soon."""

    RUNG = auto()
    """The bell rang: what was written before can be seen."""


class CommitEvents(Protocol):
    """Signs of commits to a database file."""

    async def wait(self, timeout: float) -> Sign:
        """Wait for a sign for at most `timeout` seconds."""

    def hold(self) -> None:
        """Report nothing for a while: a commit of this process begins."""

    def forget(self) -> None:
        """Forget the bell that has rung so far, but for a late recheck: the caller is about to look."""

    def release(self) -> None:
        """Report signs again, with the ones since `hold`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class WalAndBell:
    """Signs from the write-ahead log, even if it does not exist yet, and from the bell next to it.

    A process of ours rings the bell, by reading from that file, when its commit can be seen. The log is
    written before that, and by programs that know of no bell. So a write to it is only reported when no bell
    has followed for a moment.
    """

    def __init__(self, wal: Path, bell: Path) -> None:
        self._watches = _Watches()
        self._watches.add(wal.parent, _MODIFY | _CREATE)
        self._bell = self._watches.add(bell, _ACCESS)
        self._wal = os.fsencode(wal.name)
        self._is_rung = False
        self._is_written = False  # since the bell rang
        self._is_recheck_due = False  # what was written before the bell that was forgotten is not all visible
        self._is_held = False
        self._waiter: asyncio.Future[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def wait(self, timeout: float) -> Sign:
        """Wait for a sign for at most `timeout` seconds.

        Events that arrive between calls stay in the kernel.
        """
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, _wake, waiter)
        self._loop.add_reader(self._watches.descriptor, self._read)
        self._note()
        try:
            await waiter
        finally:
            timer.cancel()
            self._cancel_soon()
            self._waiter = None
            self._loop.remove_reader(self._watches.descriptor)
        is_rung = self._is_rung or self._is_recheck_due
        sign = Sign.WRITTEN if self._is_written else Sign.RUNG if is_rung else Sign.NONE
        self._is_written = self._is_rung = self._is_recheck_due = False
        return sign

    def hold(self) -> None:
        """Report nothing for a while: a commit of this process begins."""
        self._is_held = True

    def forget(self) -> None:
        """Forget the bell that has rung so far, but for a late recheck: the caller is about to look."""
        self._take_in()
        self._is_recheck_due |= self._is_rung
        self._is_rung = False

    def release(self) -> None:
        """Report signs again, with the ones since `hold`."""
        self._is_held = False
        self._cancel_soon()
        self._note()

    def _read(self) -> None:
        self._take_in()
        self._note()

    def _take_in(self) -> None:
        for watch, mask, name in self._watches.read():
            if mask & _OVERFLOW:
                self._is_rung = self._is_written = True
            elif watch == self._bell:
                self._is_rung, self._is_written = True, False
            elif name == self._wal:
                self._is_written = True
                if self._is_recheck_due:  # it is looked for sooner than that
                    self._is_recheck_due = False
                    self._cancel_soon()

    def _note(self) -> None:
        """End the wait, if there is one, now or soon after a sign."""
        if self._waiter is None:
            return
        if self._is_rung and not self._is_held:
            _wake(self._waiter)
        elif (self._is_rung or self._is_written) and self._soon is None:
            delay_s = MAX_HOLD_S if self._is_held else MIN_RECHECK_S
            self._soon = self._loop.call_later(delay_s, _wake, self._waiter)
        elif self._is_recheck_due and self._soon is None:
            self._soon = self._loop.call_later(RUNG_RECHECK_S, _wake, self._waiter)

    def _cancel_soon(self) -> None:
        soon, self._soon = self._soon, None
        if soon is not None:
            soon.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watches.close()


class NoSigns(NoEvents):
    """A replacement for systems without file events: frequent polling."""

    def __init__(self, wal: Path, bell: Path) -> None:
        pass

    async def wait(self, timeout: float) -> Sign:
        """Wait for one polling interval."""
        await self.wait_for_event(timeout)
        return Sign.NONE

    def hold(self) -> None:
        """Do nothing: there are no signs."""

    def forget(self) -> None:
        """Do nothing: there are no signs."""

    def release(self) -> None:
        """Do nothing: there are no signs."""


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
