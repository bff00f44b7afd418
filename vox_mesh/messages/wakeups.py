"""Wake-ups: after a commit, wake the receivers whose inboxes have something to claim, and no others.

One task asks for all waiting receivers of the process. A commit does not say what it changed, so the task
asks which inboxes have a message that can be claimed now, and when the next one of the others can be. It does
not matter why a message becomes claimable: it was stored, its claim was released or has expired, its retry
time has come, or the message before it has ended.

A wake-up may be needless, but none is missed: it follows from the state of the database alone whether an
inbox has something, never from an earlier answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final, Protocol

from vox_mesh.errors import StaleIncarnation, StoreClosed
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability.log_context import detached_context
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

CHECK_S: Final = 30.0
"""How often the database itself is asked, regardless of this process's copy of it."""

FEW: Final = 8
"""Up to this many waiting receivers are woken without asking: each asks for itself."""

_RETRY_DELAY_S: Final = 1.0
_RAMP_S: Final = 0.1
_PAUSE_FACTOR: Final = 4  # times the duration of the last look passes before the next
_MAX_PAUSE_S: Final = 0.05
_MARGIN_S: Final = 0.002
_GOLDEN: Final = 0.618_034  # multiples of it lie evenly between whole numbers
_LOOK_PAUSE_S: Final = 0.002  # a busy mesh commits all the time
_SERIES_GAP_S: Final = 2 * _LOOK_PAUSE_S  # longer than the pause, also where timers are rounded up
_FREE_LOOKS: Final = 3
"""For a message, with its ack under way, and when that is committed: the next message finds no pause."""


class InboxReceiver(Protocol):
    """A receiver that looks for messages in its inboxes when it is woken."""

    names: tuple[str, ...]

    def wake(self) -> None:
        """Look for messages: something was committed."""

    def mark_checked(self) -> None:
        """Note that the database itself was asked on this receiver's behalf."""


class Inboxes(Protocol):
    """Answer questions about many inboxes at once."""

    async def nonempty_inboxes(self, limit: int, *, fresh: bool = False) -> list[str]:
        """Return the inboxes of the mesh that hold a message which has not ended, up to `limit`."""

    async def free_times(self, names: Sequence[str]) -> Mapping[str, int]:
        """Return when each inbox has something to claim, or an earlier time; empty inboxes are left out."""


class Wakeups:
    """Wake the receivers of one process."""

    def __init__(
        self, store: Store, inboxes: Inboxes, clock: MeshClock, kept_names: Callable[[], Iterable[str]]
    ) -> None:
        self._store = store
        self._changes = store.but_heartbeats
        self._inboxes = inboxes
        self._clock = clock
        self._kept_names = kept_names
        self._waiting: dict[InboxReceiver, None] = {}
        self._is_needed = asyncio.Event()  # a receiver waits, or the task is to end
        self._by_name: dict[str, dict[InboxReceiver, None]] = {}
        self._woken: dict[str, int] = {}  # receivers woken for an inbox since it was last empty
        self._joined = 0
        self._seen = 0  # the change count before the last look
        self._look_in_s: float | None = None
        self._check_at = 0.0
        self._timeout: asyncio.Timeout | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    # --- receivers -------------------------------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        """Return whether there are enough receivers that one query should serve all of them."""
        return self._joined > FEW

    def spread(self, longest_s: float) -> float:
        """Return a time from half of this to all of it, so that receivers look at different times."""
        return longest_s * (0.5 + 0.5 * (self._joined * _GOLDEN % 1))

    def join(self) -> None:
        """Listen for commits on behalf of one more receiver."""
        self._joined += 1
        if self._task is None or self._task.done():
            self._seen, self._look_in_s = self._changes.change_count, None
            running = self._store.faults.keep_running("inboxes", self._run)
            self._task = asyncio.create_task(running, name="vox-mesh-inboxes", context=detached_context())
        if self.is_crowded:  # its messages may be stored already, and not yet in our copy
            self._check_at = 0.0
            if self._timeout is not None and not self._timeout.expired():
                self._timeout.reschedule(0.0)

    def leave(self) -> None:
        """Stop listening on behalf of a receiver; without any, the task ends."""
        self._joined -= 1
        if not self._joined:
            self._is_needed.set()

    @contextmanager
    def waking(self, receiver: InboxReceiver) -> Iterator[None]:
        """Wake this receiver within the block. It looks by itself at the beginning, and on its timers."""
        if not self._waiting:
            self._seen = self._changes.change_count  # the receiver itself looks for what came before
            self._is_needed.set()
        self._waiting[receiver] = None
        for name in receiver.names:
            self._by_name.setdefault(name, {})[receiver] = None
        try:
            yield
        finally:
            del self._waiting[receiver]
            if not self._waiting and self._joined:
                self._is_needed.clear()
            for name in receiver.names:
                others = self._by_name[name]
                del others[receiver]
                if not others:
                    del self._by_name[name]

    # --- waking ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Wake receivers after each commit, and when a retry or expiry time has come."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._is_needed.wait()
                if not self._joined:
                    return
                await self._wait_for_change()
                count, began = self._changes.change_count, loop.time()
                self._look_in_s = await self.run_once()
            except (StaleIncarnation, StoreClosed):
                self._wake(self._waiting)  # each finds out for itself
                return
            self._seen = count  # only now: after a fault, look again
            took = loop.time() - began
            await asyncio.sleep(min(_PAUSE_FACTOR * took, _MAX_PAUSE_S))  # a busy mesh commits all the time

    async def _wait_for_change(self) -> None:
        """Wait for a commit, for one more receiver, or until the next look is due."""
        until: float | None = None
        if self._look_in_s is not None:
            until = asyncio.get_running_loop().time() + self._look_in_s
        if self.is_crowded:
            until = self._check_at if until is None else min(until, self._check_at)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until) as self._timeout:
                    await self._changes.changed(self._seen)
        finally:
            self._timeout = None

    async def run_once(self) -> float | None:
        """Wake the receivers that may have something to claim. Return the seconds until the next look."""
        now = asyncio.get_running_loop().time()
        is_check = self.is_crowded and now >= self._check_at
        if len(self._waiting) <= FEW and not is_check:
            self._wake(self._waiting)
            return None
        if is_check:
            self._check_at = now + CHECK_S  # before asking: who joins meanwhile needs another
        try:
            pause = await self._wake_ready(is_check=is_check)
        except (StaleIncarnation, StoreClosed):
            raise
        except Exception as error:  # no receiver may be left waiting
            if not self._is_away:
                _log.warning("inbox query failed, each receiver looks by itself: %s", error)
                self._wake(self._waiting)
            self._is_away = True
            self._check_at = min(self._check_at, now + _RETRY_DELAY_S)
            return _RETRY_DELAY_S
        if self._is_away:
            self._is_away = False
            self._wake(self._waiting)
        return pause

    async def _wake_ready(self, *, is_check: bool) -> float | None:
        asked_for = list(self._waiting) if is_check else []
        names = await self._nonempty_names(fresh=is_check)
        free = await self._inboxes.free_times(names) if names else {}
        now_ms = self._clock.now_ms
        ready = [name for name, free_ms in free.items() if free_ms <= now_ms]
        self._woken = {name: self._woken.get(name, 0) for name in ready}
        is_ramping = [self._wake_some(name) for name in ready]
        for name in self._kept_names():  # relayed messages are compared with the database
            self._wake(self._by_name.get(name, ()))
        for receiver in asked_for:
            receiver.mark_checked()
        due_ms = min((free_ms for free_ms in free.values() if free_ms > now_ms), default=None)
        due_s = None if due_ms is None else (due_ms - now_ms) / 1_000 + _MARGIN_S
        if any(is_ramping):
            return _RAMP_S if due_s is None else min(due_s, _RAMP_S)
        return due_s

    async def _nonempty_names(self, *, fresh: bool) -> list[str]:
        """Return the inboxes waited for here that are not empty; all, if the mesh has more than these."""
        ours = list(self._by_name)
        found = await self._inboxes.nonempty_inboxes(len(ours) + 1, fresh=fresh)
        return ours if len(found) > len(ours) else [name for name in found if name in self._by_name]

    def _wake_some(self, name: str) -> bool:
        """Wake a few receivers of an inbox, twice as many each time. Return whether others still sleep.

        A role may have a thousand receivers, and most of them would come too late for a single message.
        """
        receivers = self._by_name.get(name, {})
        woken = self._woken[name]
        some = list(islice(receivers, max(FEW, woken)))
        for receiver in some:  # next time the others are first
            del receivers[receiver]
            receivers[receiver] = None
        self._woken[name] = woken + len(some)
        self._wake(some)
        return len(some) < len(receivers)

    def _wake(self, receivers: Iterable[InboxReceiver]) -> None:
        for receiver in receivers:
            receiver.wake()

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class LookPace:
    """Decides how long a receiver rests after a look: a few may follow each other at once."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._in_series = 0

    def note(self, now: float) -> None:
        """Note a look."""
        is_in_series = now - self._looked_at < _SERIES_GAP_S
        self._in_series = self._in_series + 1 if is_in_series else 1
        self._looked_at = now

    def rest_s(self, now: float) -> float:
        """Return how many seconds to rest before the next look; 0 if the last ones were few."""
        if self._in_series <= _FREE_LOOKS:
            return 0.0
        return max(0.0, self._looked_at + _LOOK_PAUSE_S - now)
