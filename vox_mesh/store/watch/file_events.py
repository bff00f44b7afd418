"""Events of files: that one was written, or that a commit to a database file has ended."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
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

MAX_HOLD_S: Final = 0.008
"""How long the events of others are left to the end of a commit of this process, or of a burst of them."""

RUNG_RECHECK_S: Final = 0.016
"""When to look again after a bell: a program without one may have written to the log just before."""

_NO_EVENTS_INTERVAL_S: Final = 0.01


def has_file_events() -> bool:
    """Return whether this system reports writes to files at once."""
    return sys.platform.startswith("linux")


class _Event(NamedTuple):
    """What has happened, and the name of the file in a watched folder."""

    mask: int
    name: bytes


class _Watch:
    """A file or folder that the kernel watches for this process. While it is on, events call `on_events`."""

    def __init__(self, path: Path, mask: int, on_events: Callable[[], None]) -> None:
        if not has_file_events():
            raise OSError("there is no inotify on this system")
        import ctypes  # only needed by processes that wait for changes

        self._loop = asyncio.get_running_loop()
        self._on_events = on_events
        self._is_on = False
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        if libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask) < 0:
            os.close(self._descriptor)
            raise OSError(ctypes.get_errno(), "inotify_add_watch failed")

    def turn_on(self) -> None:
        """Call `on_events` when there are events, also earlier ones."""
        if not self._is_on:
            self._is_on = True
            self._loop.add_reader(self._descriptor, self._on_events)

    def turn_off(self) -> None:
        """Leave events in the kernel, which merges a burst of equal ones."""
        if self._is_on:
            self._is_on = False
            self._loop.remove_reader(self._descriptor)

    def read(self) -> list[_Event]:
        """Return the events that have come."""
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _READ_BYTES)
        at, events = 0, list[_Event]()
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            events.append(_Event(mask, data[at - length : at].rstrip(b"\0")))
        return events

    def close(self) -> None:
        """Watch no longer."""
        self.turn_off()
        os.close(self._descriptor)


class Inotify:
    """Reports writes to a file, and that a writer has closed it; only to the file that has the name now."""

    def __init__(self, path: Path) -> None:
        self._watch = _Watch(path, _MODIFY | _CLOSE_WRITE, self._read)
        self._is_touched = self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def wait_for_event(self, timeout: float) -> bool:
        """Wait for an event for at most `timeout` seconds. Return whether there was one.

        Events that arrive between calls stay in the kernel.
        """
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, _wake, waiter)
        self._watch.turn_on()
        try:
            await waiter
        finally:
            timer.cancel()
            self._watch.turn_off()
        was_touched, self._is_touched = self._is_touched, False
        return was_touched

    def take_closed(self) -> bool:
        """Return whether a writer has closed the file since the last call; it may have ended."""
        was_closed, self._is_closed = self._is_closed, False
        return was_closed

    def _read(self) -> None:
        for event in self._watch.read():
            self._is_touched = True
            self._is_closed |= bool(event.mask & _CLOSE_WRITE)
        if self._is_touched:
            _wake(self._waiter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()


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
    """The bell rang: a commit can be seen."""


class CommitEvents(Protocol):
    """Signs of commits to a database file."""

    async def wait(self, timeout: float) -> Sign:
        """Wait for a sign for at most `timeout` seconds."""

    def hold(self) -> None:
        """Report nothing for a while: a commit of this process begins."""

    def mute(self) -> None:
        """Report nothing until `release`, at no cost for each event; the caller looks now and then."""

    def forget(self) -> None:
        """Forget the signs so far: the caller is about to look."""

    def release(self) -> None:
        """Report signs again, with the ones since `hold` or `mute`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class WalAndBell:
    """Signs from the write-ahead log, even if it does not exist yet, and from the bell next to it.

    A process of ours rings the bell, by reading from that file, when its commit can be seen. The log is
    written before that, and by programs that know of no bell. So a write to it is only reported when no bell
    has followed for a moment.
    """

    def __init__(self, wal: Path, bell: Path) -> None:
        self._wal = os.fsencode(wal.name)
        with ExitStack() as cleanup:
            self._log = cleanup.enter_context(closing(_Watch(wal.parent, _MODIFY | _CREATE, self._hear_log)))
            self._bell = _Watch(bell, _ACCESS, self._hear_bell)
            cleanup.pop_all()
        self._is_rung = self._is_written = self._is_held = self._is_muted = False
        self._waiter: asyncio.Future[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def wait(self, timeout: float) -> Sign:
        """Wait for a sign for at most `timeout` seconds. Events that arrive between calls are not lost."""
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, _wake, waiter)
        self._listen()
        try:
            await waiter
        finally:
            timer.cancel()
            self._cancel_soon()
            self._waiter = None
        sign = Sign.RUNG if self._is_rung else Sign.WRITTEN if self._is_written else Sign.NONE
        self._is_written = self._is_rung = False
        return sign

    def hold(self) -> None:
        """Report nothing for a while: a commit of this process begins."""
        self._is_held = True
        self._log.turn_off()
        self._wake_in(MAX_HOLD_S)

    def mute(self) -> None:
        """Report nothing until `release`: events stay in the kernel. A wait ends after a while."""
        self._is_muted = True
        self.hold()
        self._bell.turn_off()

    def forget(self) -> None:
        """Forget the signs so far: the caller is about to look."""
        self._bell.read()
        self._log.read()
        self._is_rung = self._is_written = False

    def release(self) -> None:
        """Report signs again, with the ones since `hold` or `mute`."""
        self._is_held = self._is_muted = False
        if self._waiter is not None:
            self._wake_in(RUNG_RECHECK_S)
            self._listen()

    def _listen(self) -> None:
        """Begin to wait, also for what has come before."""
        if not self._is_muted:
            self._bell.turn_on()
        if self._is_held:
            self._wake_in(MAX_HOLD_S)
        elif self._is_rung:
            _wake(self._waiter)
        elif self._is_written:
            self._wake_in(MIN_RECHECK_S)
        else:
            self._log.turn_on()

    def _hear_bell(self) -> None:
        """Note that the bell rang. Between waits, the next ones stay in the kernel."""
        self._is_rung |= bool(self._bell.read())
        if self._waiter is None:
            self._bell.turn_off()
        elif self._is_rung and not self._is_held:
            self._log.read()
            _wake(self._waiter)

    def _hear_log(self) -> None:
        """Note a write to the log. Until the wait is over, the next ones stay in the kernel."""
        if any(name == self._wal or mask & _OVERFLOW for mask, name in self._log.read()):
            self._is_written = True
            self._log.turn_off()
            self._wake_in(MIN_RECHECK_S)

    def _wake_in(self, seconds: float) -> None:
        """End the wait, if there is one, after this time."""
        self._cancel_soon()
        if self._waiter is not None:
            self._soon = self._loop.call_later(seconds, _wake, self._waiter)

    def _cancel_soon(self) -> None:
        soon, self._soon = self._soon, None
        if soon is not None:
            soon.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._bell.close()


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

    def mute(self) -> None:
        """Do nothing: there are no signs."""

    def forget(self) -> None:
        """Do nothing: there are no signs."""

    def release(self) -> None:
        """Do nothing: there are no signs."""


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
