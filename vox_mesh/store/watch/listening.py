"""Getting to know of commits that nobody tells us about: by a look now and then, or by an event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, Self

from vox_mesh.errors import MeshError
from vox_mesh.store.replica.floor import ReadWatermark
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.watch.inotify import Inotify

_LOOK_S: Final = 1.0
_FIRST_LOOK_S: Final = 0.001
_BUSY_S: Final = 0.008
_POLL_S: Final = 0.01


class Listener(Protocol):
    """Bumps the count of changes whenever there may have been one, until it is cancelled."""

    async def listen(self) -> None:
        """Listen. The count rises at once: what happened before now may have been missed."""


class FileEvents(Protocol):
    """Signs that a file is being written to."""

    async def touched(self, timeout: float) -> bool:
        """Wait for a sign, so long at the most; whether there was one."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class NoEvents:
    """Where a file system gives no signs, one has to look often."""

    def __init__(self, _: Path) -> None:
        pass

    async def touched(self, timeout: float) -> bool:
        """Wait for a moment."""
        await asyncio.sleep(min(timeout, _POLL_S))
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class WalListener:
    """The file home: whoever commits writes to the write-ahead log first.

    The event comes before the commit can be seen, by as long as the disk takes; so a look that shows nothing
    is repeated, soon at first and ever more rarely, down to once a second. Those that commit in a burst are
    seen together: the longer it goes on, the more of them.
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

    async def listen(self) -> None:
        """Listen to the log."""
        with self._events() as events:
            seen = await self._version()
            self._changes.bump()
            pause, rest = _LOOK_S, _FIRST_LOOK_S
            while True:
                touched = await events.touched(pause)
                version = await self._version()
                if version != seen:
                    seen = version
                    self._changes.bump()
                    await asyncio.sleep(rest)
                    rest = min(2 * rest, _BUSY_S)
                elif not touched:  # it is over
                    rest = _FIRST_LOOK_S
                pause = _FIRST_LOOK_S if touched else min(2 * pause, _LOOK_S)

    async def _version(self) -> int | None:
        try:
            return await self._data_version()
        except MeshError:
            return None  # those who watch are to find out for themselves

    def _events(self) -> FileEvents:
        try:
            return self._open_events(self._wal)
        except OSError:  # no such thing here, or no more of it to be had
            return NoEvents(self._wal)


class ServerPoll:
    """A server that pushes nothing: one cheap question a second, whose answer says where its log ends."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        is_pushed: Callable[[], bool],
        floor: ReadWatermark,
        changes: Changes,
    ) -> None:
        self._ask = ask
        self._is_pushed = is_pushed
        self._floor = floor
        self._changes = changes
        self.is_away = False
        """Whether the last question was not answered."""

    async def listen(self) -> None:
        """Ask every second, but not while commits come by themselves or nobody waits for them."""
        seen: object = None
        while True:
            if self._changes.is_awaited and not self._is_pushed():
                seen = await self._look(seen)
            await asyncio.sleep(_LOOK_S)

    async def _look(self, seen: object) -> object:
        if seen is not None and self._floor.latest[0] is None:
            self._changes.bump()  # it never says where its log ends: whoever watches asks for himself
            return seen
        try:
            await self._ask()
        except MeshError:
            if not self.is_away:
                self.is_away = True
                self._changes.bump()
            return None  # and its return will be a change
        self.is_away = False
        latest = self._floor.latest
        if latest != seen:
            self._changes.bump()
        return latest
