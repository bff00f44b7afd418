"""Capacity: the number of jobs a worker may run, in total and per handler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vox_mesh.heartbeat.presence import Activity
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.handlers import Handler, HandlerSet

_MANY_DIVISOR: Final = 2  # "many" is at least one half of the total


class Capacity:
    """The capacity of one worker. The used part is the load that heartbeats report."""

    def __init__(self, handlers: HandlerSet, activity: Activity) -> None:
        self._handlers = handlers
        self._activity = activity
        self._by_handler: dict[str, int] = {}
        self.total = 0
        """The maximum number of concurrent jobs, 0 while the worker is stopped."""
        self.taken = 0
        """The capacity used by running jobs, and by handler threads that outlast their attempts."""

    @property
    def free(self) -> int:
        """Return how many more jobs may run."""
        return self.total - self.taken

    @property
    def has_many_free(self) -> bool:
        """Return whether enough capacity is free to be worth a claim request of its own."""
        return self.free * _MANY_DIVISOR >= self.total

    def free_of(self, handler: Handler) -> int:
        """Return how many more jobs a handler may run."""
        most = self.total if handler.concurrency is None else handler.concurrency
        return most - self._by_handler.get(handler.pattern, 0)

    def within_limits(self, jobs: Iterable[Claimable]) -> list[Claimable]:
        """Return the jobs that fit into the free capacity of their handlers."""
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
        """Use capacity for one job; commands have no handler."""
        self._count(handler, 1)

    def release(self, handler: Handler | None) -> None:
        """Free the capacity of one job."""
        self._count(handler, -1)

    def _count(self, handler: Handler | None, change: int) -> None:
        if handler is not None:
            self._by_handler[handler.pattern] = self._by_handler.get(handler.pattern, 0) + change
        self.taken += change
        self._activity.load = self.taken
