"""Leases: renew in time what this process holds in the database, and notice what is lost.

All times are seconds of our own monotonic clock. A lease counts from when its last request was sent: so this
process gives it up before the database does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from vox_mesh.observability.log_context import detached_context
from vox_mesh.store.background import BackgroundFaults

_RENEW_FRACTION: Final = 1 / 3  # of the TTL
_MAX_RETRY_DELAY_S: Final = 0.5
_RETRY_FRACTION: Final = 1 / 10  # of the TTL
_MIN_PAUSE_S: Final = 0.001
_NEVER: Final = float("inf")
_AT_ONCE: Final = float("-inf")


class Lease(Protocol):
    """Something that is held until `deadline`, and for `ttl` seconds after each renewal."""

    @property
    def ttl(self) -> float:
        """The length of the lease."""

    @property
    def deadline(self) -> float:
        """When the lease ends unless it is renewed."""


L = TypeVar("L", bound=Lease)

Renew = Callable[[Sequence[L]], Awaitable[Collection[L]]]
"""Renew leases by moving their deadlines. Return the lost ones; any other is retried soon."""


class LeaseRenewer(Generic[L]):
    """Renew each lease when a third of its TTL has passed, and give it up when it ends.

    One timer serves all leases: most are released before they are renewed.
    """

    def __init__(
        self,
        renew: Renew[L],
        on_lost: Callable[[L], object],
        monotonic: Callable[[], float],
        faults: BackgroundFaults,
        *,
        task_name: str,
    ) -> None:
        self._renew_leases = renew
        self._on_lost = on_lost
        self._monotonic = monotonic
        self._faults = faults
        self._task_name = task_name
        self._not_before: dict[L, float] = {}  # the leases, and when each may be renewed next
        self._renewing: set[L] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def leases(self) -> Iterable[L]:
        """Return the leases that are held."""
        return tuple(self._not_before)

    def hold(self, lease: L, *, is_renewed: bool = True) -> None:
        """Renew a lease from now on, or only watch its end, until it is released or lost."""
        self._not_before[lease] = _AT_ONCE if is_renewed else _NEVER
        self._set_timer(self._next_at(lease))

    def release(self, lease: L) -> None:
        """Leave a lease alone from now on."""
        self._not_before.pop(lease, None)

    async def renew_all(self) -> None:
        """Renew all leases now, due or not, and give up the expired ones."""
        if leases := [each for each, at in self._not_before.items() if at < _NEVER]:
            await self._renew(leases)
        self._lose_expired()

    async def renew_due(self) -> None:
        """Give up the expired leases and renew the due ones, without waiting for the timer."""
        self._lose_expired()
        if due := self._due(self._monotonic()):
            await self._renew(due)

    def close(self) -> None:
        """Leave all leases alone from now on."""
        self._not_before.clear()
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, _NEVER

    # --- the loop --------------------------------------------------------------------------------

    def _next_at(self, lease: L) -> float:
        """Return when there is something to do for a lease."""
        if lease in self._renewing:
            return lease.deadline
        renew_at = lease.deadline - (1 - _RENEW_FRACTION) * lease.ttl
        return min(lease.deadline, max(renew_at, self._not_before[lease]))

    def _due(self, now: float) -> list[L]:
        """Return the leases to renew now."""
        return [
            lease
            for lease, not_before in self._not_before.items()
            if not_before < _NEVER and lease not in self._renewing and self._next_at(lease) <= now
        ]

    def _set_timer(self, at: float) -> None:
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        pause_s = max(_MIN_PAUSE_S, at - self._monotonic())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause_s, self._wake, context=detached_context())

    def _wake(self) -> None:
        now = max(self._monotonic(), self._timer_at)  # timers may be a little early
        self._timer, self._timer_at = None, _NEVER
        self._lose_expired()
        if due := self._due(now):
            self._start(self._renew(due))
        self._set_timer(min(map(self._next_at, self._not_before), default=_NEVER))

    def _start(self, renewal: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(renewal, name=self._task_name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, leases: Sequence[L]) -> None:
        self._renewing.update(leases)
        before = [each.deadline for each in leases]
        lost: Collection[L] = ()
        try:
            lost = await self._renew_leases(leases)
        except Exception as error:  # the renewal must go on after any failure
            self._faults.note(self._task_name, error)
        finally:
            self._renewing.difference_update(leases)
        now = self._monotonic()
        for lease, deadline in zip(leases, before, strict=True):
            if lease in lost:
                self._lose(lease)
            elif lease in self._not_before:
                if lease.deadline == deadline:
                    self._not_before[lease] = now + min(_MAX_RETRY_DELAY_S, _RETRY_FRACTION * lease.ttl)
                self._set_timer(self._next_at(lease))

    def _lose_expired(self) -> None:
        now = self._monotonic()
        for lease in [each for each in self._not_before if each.deadline <= now]:
            self._lose(lease)

    def _lose(self, lease: L) -> None:
        if self._not_before.pop(lease, None) is not None:
            self._on_lost(lease)
