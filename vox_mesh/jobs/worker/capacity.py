"""Places: how many jobs a worker has room for, in all and of each handler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vox_mesh.heartbeat.presence import Activity
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.handlers import Handler, HandlerSet

_MANY: Final = 2  # at least this part of all: a half


class Capacity:
    """The places of one worker; how many are taken is what the others are told."""

    def __init__(self, handlers: HandlerSet, activity: Activity) -> None:
        self._handlers = handlers
        self._activity = activity
        self._by_handler: dict[str, int] = {}
        self.capacity = 0
        """How many there are; none while the worker does not run."""
        self.taken = 0
        """By jobs in hand, and by calls of handlers in threads that go on though nobody waits for them."""

    @property
    def free(self) -> int:
        """How many are free."""
        return self.capacity - self.taken

    @property
    def has_many_free(self) -> bool:
        """Whether so many are free that it is worth a request of its own to fill them."""
        return self.free * _MANY >= self.capacity

    def free_of(self, handler: Handler) -> int:
        """How many jobs a handler has room for."""
        most = self.capacity if handler.concurrency is None else handler.concurrency
        return most - self._by_handler.get(handler.pattern, 0)

    def within_limits(self, jobs: Iterable[Claimable]) -> list[Claimable]:
        """As many of each kind as its handler has places."""
        free: dict[str, int] = {}
        within = []
        for job in jobs:
            handler = self._handlers.of(job.kind)
            if handler is not None and handler.concurrency is not None:
                left = free.setdefault(handler.pattern, self.free_of(handler))
                if not left:
                    continue
                free[handler.pattern] = left - 1
            within.append(job)
        return within

    def take(self, handler: Handler | None) -> None:
        """Take a place; commands have no handler."""
        self._count(handler, 1)

    def leave(self, handler: Handler | None) -> None:
        """Leave a place that was taken."""
        self._count(handler, -1)

    def _count(self, handler: Handler | None, more: int) -> None:
        if handler is not None:
            self._by_handler[handler.pattern] = self._by_handler.get(handler.pattern, 0) + more
        self.taken += more
        self._activity.load = self.taken
