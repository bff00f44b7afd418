"""Count the commits that this process learns of, and repeat work after each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Protocol, Self

from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.store.rows import Rows

_RETRY_DELAY_S: Final = 1.0


class Change(NamedTuple):
    """A watched query's current answer. Not `in_touch`: the database is unreachable, it may be outdated."""

    rows: Rows
    in_touch: bool


class ChangeCount:
    """A change counter. Waiters see only the latest count, so nothing is queued."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Return whether anything waits for a change."""
        return self._waiting > 0

    def bump(self) -> None:
        """Raise the count, because something was committed or may have been."""
        self.count += 1
        if self._waiting:
            event, self._next = self._next, asyncio.Event()
            event.set()

    async def after(self, seen: int) -> int:
        """Wait until the count differs from `seen`, and return it."""
        self._waiting += 1
        try:
            while self.count == seen:
                await self._next.wait()
        finally:
            self._waiting -= 1
        return self.count


class Changes(ChangeCount):
    """Counts all commits, and apart from them the ones that changed more than the heartbeats of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.watches = 0
        """The number of watches, which must notice within 5 s that the database is unreachable."""
        self.but_heartbeats = ChangeCount()
        """A commit counts here, too, unless it is known to be nothing but a heartbeat."""

    @property
    def is_awaited(self) -> bool:
        """Return whether anything waits for a change."""
        return super().is_awaited or self.but_heartbeats.is_awaited

    def bump(self, *, is_heartbeat: bool = False) -> None:
        """Raise the count, because something was committed or may have been."""
        super().bump()
        if not is_heartbeat:
            self.but_heartbeats.bump()


class ChangeSource(Protocol):
    """Counts commits, as a store does."""

    @property
    def change_count(self) -> int:
        """Return a number that rises with every known commit."""

    @property
    def is_in_touch(self) -> bool:
        """Return whether current committed data can be read, as far as is known."""

    async def changed(self, since: int) -> int:
        """Wait until the count differs from `since`, and return it."""


class SomeChanges:
    """Some of the commits of a source, which are counted apart."""

    def __init__(
        self,
        source: ChangeSource,
        counted: ChangeCount,
        changed: Callable[[int, ChangeCount], Awaitable[int]],
    ) -> None:
        """`changed` waits for the given count."""
        self._source = source
        self._counted = counted
        self._changed = changed

    @property
    def change_count(self) -> int:
        """Return a number that rises with every such commit."""
        return self._counted.count

    @property
    def is_in_touch(self) -> bool:
        """Return whether current committed data can be read, as far as is known."""
        return self._source.is_in_touch

    async def changed(self, since: int) -> int:
        """Wait until the count differs from `since`, and return it."""
        return await self._changed(since, self._counted)

    def changes(self, *, interval_s: float | None = None, debounce_s: float = 0.0) -> ChangeLoop:
        """Repeat work after each such commit, as `Store.changes` does after all."""
        return ChangeLoop(self, interval_s=interval_s, debounce_s=debounce_s)


class ChangeLoop:
    """Runs the body of an `async for` now, and again after commits.

    A commit during the body starts the next turn, so none is missed; commits in quick succession share a
    turn. A turn also starts without a commit: after `interval_s`, and every second while the database is out
    of touch. Leaving or cancelling the loop needs no clean-up.
    """

    def __init__(
        self,
        source: ChangeSource,
        *,
        since: int | None = None,
        interval_s: float | None = None,
        debounce_s: float = 0.0,
    ) -> None:
        self._source = source
        self._interval_s = interval_s
        self.debounce_s = debounce_s
        """The time from the commit, or whatever else starts a turn but the first, to the turn."""
        self._seen = source.change_count if since is None else since
        self._is_first = since is None
        self._is_woken = False
        self._not_before = 0.0
        self._limit_s: float | None = None
        self._timeout: asyncio.Timeout | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Self:
        if not self._is_first:
            if not self._is_woken:
                await self._wait()
            if self.debounce_s:
                await asyncio.sleep(self.debounce_s)
            if (rest_s := self._not_before - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(rest_s)
        self._is_first = self._is_woken = False
        self._limit_s = None
        self._seen = self._source.change_count  # before the body reads
        return self

    async def _wait(self) -> None:
        limit_s = self._interval_s if self._limit_s is None else self._limit_s
        if limit_s is None and not self._source.is_in_touch:
            limit_s = _RETRY_DELAY_S
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s) as self._timeout:
                    await self._source.changed(self._seen)
        finally:
            self._timeout = None

    def wake(self) -> None:
        """Start the next turn without waiting for a commit."""
        if self._timeout is None:
            self._is_woken = True
        elif not self._timeout.expired():
            self._timeout.reschedule(0.0)

    async def pause(self, seconds: float) -> None:
        """Sleep, and start the next turn without waiting for a commit."""
        await asyncio.sleep(seconds)
        self.wake()

    def rest(self, seconds: float) -> None:
        """Start the next turn after this time at the earliest: a busy mesh commits all the time.

        A commit after a longer time without any still starts a turn at once.
        """
        self._not_before = asyncio.get_running_loop().time() + seconds

    def wait_at_most(self, seconds: float) -> None:
        """Start the next turn after this time even without a commit."""
        self._limit_s = seconds

    @contextmanager
    def retry_if_unavailable(self) -> Iterator[None]:
        """End the block without an error if the database is unavailable; the next turn comes in a second."""
        try:
            yield
        except DatabaseUnavailable:
            self.wait_at_most(_RETRY_DELAY_S)
