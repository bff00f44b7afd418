"""Detect the commits of other processes, by polling or by file-system events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from vox_mesh.errors import MeshError
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.watch.file_events import (
    MIN_RECHECK_S,
    RUNG_RECHECK_S,
    CommitEvents,
    NoSigns,
    Sign,
    WalAndBell,
)

T = TypeVar("T")

_POLL_INTERVAL_S: Final = 1.0
_BURST_GAP_S: Final = 0.002
_MIN_BURST_PAUSE_S: Final = 0.001
_MAX_BURST_PAUSE_S: Final = 0.008
_OWN_GAP_S: Final = 0.004
_OWN_BURST: Final = 8


class Listener(Protocol):
    """Raises the change count whenever there may have been a commit, until cancelled."""

    async def listen(self) -> None:
        """Listen for commits. The count rises at once, because earlier commits may have been missed."""

    async def own_commit(self, commit: Awaitable[T]) -> T:
        """Await a commit of this process, after which it raises the count itself."""


class _OwnCommits:
    """Tells from the last commits of this process whether they follow each other closely."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._in_row = 0
        self._is_under_way = False
        self._ended = 0.0

    def begin(self) -> None:
        """Note that one begins."""
        self._in_row = self._in_row + 1 if self._monotonic() - self._ended < _OWN_GAP_S else 0
        self._is_under_way = True

    def interrupt(self) -> None:
        """Note that another process has committed: this one may be waiting for the next such commit."""
        self._in_row = 0

    def end(self) -> None:
        """Note that it has ended."""
        self._ended = self._monotonic()
        self._is_under_way = False

    @property
    def are_burst(self) -> bool:
        """Return whether there were several in quick succession, and no others between them."""
        return self._in_row >= _OWN_BURST

    @property
    def are_over(self) -> bool:
        """Return whether the last one ended a while ago."""
        return not self._is_under_way and self._monotonic() - self._ended >= _OWN_GAP_S


class WalListener:
    """Listens to the file backend: a process of ours rings a bell after each commit.

    Programs that ring no bell, such as earlier versions, are noticed by their writes to the write-ahead log.
    Those precede the commit by the time that the disk takes. So a check that finds nothing is repeated, soon
    at first and then ever more rarely, down to once a second. During a burst of commits there are pauses that
    grow, and each check covers more commits.
    """

    def __init__(
        self,
        wal: Path,
        bell: Path,
        data_version: Callable[[], Awaitable[int]],
        changes: Changes,
        events: Callable[[Path, Path], CommitEvents] = WalAndBell,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wal = wal
        self._bell = bell
        self._data_version = data_version
        self._changes = changes
        self._open_events = events
        self._monotonic = monotonic
        self._seen: int | None = None
        self._events: CommitEvents | None = None
        self._own = _OwnCommits(monotonic)
        self._unmuting: asyncio.TimerHandle | None = None

    async def listen(self) -> None:
        """Listen to the bell and to the write-ahead log."""
        with self._open() as self._events:
            try:
                await self._listen(self._events)
            finally:
                self._events = None
                if self._unmuting is not None:
                    self._unmuting.cancel()
                    self._unmuting = None

    async def _listen(self, events: CommitEvents) -> None:
        self._seen = await self._version()
        self._changes.bump()
        pause, rest = _POLL_INTERVAL_S, 0.0
        while True:
            began = self._monotonic()
            sign = await events.wait(pause)
            if self._monotonic() - began > _BURST_GAP_S:  # the burst is over
                rest = 0.0
            version = await self._version()
            if version != self._seen:
                self._seen = version
                self._own.interrupt()
                self._changes.bump()
                if rest:
                    await asyncio.sleep(rest)
                rest = min(max(2 * rest, _MIN_BURST_PAUSE_S), _MAX_BURST_PAUSE_S)
            pause = _RECHECKS_S.get(sign) or min(2 * pause, _POLL_INTERVAL_S)

    async def own_commit(self, commit: Awaitable[T]) -> T:
        """Await the commit, and take it in; also one of another process is visible to all that read then.

        During a burst of such commits there are no events, only a look now and then: events of each commit
        cost as much as the commit.
        """
        events = self._events
        if events is None:
            return await commit
        self._own.begin()
        try:
            if self._unmuting is None and not self._own.are_burst:
                return await self._take_in(events, commit)
            if self._unmuting is None:
                events.mute()
                self._unmute_later(events)
            return await commit
        finally:
            self._own.end()

    async def _take_in(self, events: CommitEvents, commit: Awaitable[T]) -> T:
        """Await the commit without its events: there is one for each page that it writes."""
        events.hold()
        try:
            result = await commit
            events.forget()
            self._seen = await self._version()
            return result
        finally:
            events.release()

    def _unmute_later(self, events: CommitEvents) -> None:
        loop = asyncio.get_running_loop()
        self._unmuting = loop.call_later(_OWN_GAP_S, self._unmute_if_over, events)

    def _unmute_if_over(self, events: CommitEvents) -> None:
        """Report events again, also the ones of the burst, unless it goes on."""
        if not self._own.are_over:
            self._unmute_later(events)
            return
        self._unmuting = None
        events.release()

    async def _version(self) -> int | None:
        try:
            return await self._data_version()
        except MeshError:
            return None  # watches notice the failure when they read

    def _open(self) -> CommitEvents:
        try:
            return self._open_events(self._wal, self._bell)
        except OSError:  # inotify is not available, or its limit is reached
            return NoSigns(self._wal, self._bell)


_RECHECKS_S: Final = {Sign.WRITTEN: MIN_RECHECK_S, Sign.RUNG: RUNG_RECHECK_S}
"""When to check again after a sign."""


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
