"""Capacity: which kinds of jobs a worker runs, and how many at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.heartbeat.presence import Activity
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.handlers import Handler, HandlerSet
from vox_mesh.model.jobs.policy_roots import PolicyRoots
from vox_mesh.model.jobs.records import EXEC, NO_TAGS, checked_tags

DEFAULT_CONCURRENCY: Final = 8
MAX_CONCURRENCY: Final = 1_000

_MANY_DIVISOR: Final = 2  # "many" is at least one half of the total


class Capacity:
    """The capacity of one worker, in total and per handler. Heartbeats report it and its load."""

    def __init__(
        self,
        activity: Activity,
        policy: ExecPolicy | None = None,
        policy_roots: PolicyRoots | None = None,
    ) -> None:
        self._activity = activity
        self._node_policy = policy
        self._by_handler: dict[str, int] = {}
        self.handlers = HandlerSet()
        self.policy = policy
        """The commands this worker runs, or `None` if it runs no commands."""
        self.policy_roots = policy_roots
        """The policy roots that a job must have one of, or `None` if it needs none."""
        self.tags = NO_TAGS
        """The tags that a job may have."""
        self.total = 0
        """The maximum number of concurrent jobs, 0 while the worker is stopped."""
        self.taken = 0
        """The capacity used by running jobs, and by handler threads that outlast their attempts."""

    def open(self, total: int, kinds: Iterable[str] = (), tags: Iterable[str] = ()) -> None:
        """Allow `total` concurrent jobs of `kinds`, or of every kind that has a handler, without other tags.

        Raises `BadValue` if a kind has no handler, if a tag is malformed, or if nothing can run.
        """
        if not 1 <= total <= MAX_CONCURRENCY:
            raise BadValue(f"concurrency must be between 1 and {MAX_CONCURRENCY}, got {total}")
        wanted = list(kinds)
        self.policy = self._node_policy if not wanted or EXEC in wanted else None
        if wanted:
            self.handlers.only(each for each in wanted if each != EXEC or self.policy is None)
        if not self.kinds:
            raise BadValue(
                "the worker has no handlers and runs no commands",
                hint="register a handler with @mesh.worker.handles(KIND), or pass --exec",
            )
        self.tags = checked_tags(tags)
        self.total = total

    def close(self) -> None:
        """Allow no more jobs."""
        self.total = 0

    # --- kinds -----------------------------------------------------------------------------------

    @property
    def kinds(self) -> list[str]:
        """Return the kind patterns that this worker handles."""
        return self.handlers.patterns + ([EXEC] if self.policy is not None else [])

    def handles(self, kind: str) -> bool:
        """Return whether this worker handles a kind."""
        return self.policy is not None if kind == EXEC else self.handlers.of(kind) is not None

    def has_free(self, kind: str) -> bool:
        """Return whether this worker handles a kind and its handler has free capacity."""
        handler = self.handlers.of(kind)
        return self.handles(kind) and (handler is None or self._free_of(handler) > 0)

    # --- numbers ---------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Return how many more jobs may run."""
        return self.total - self.taken

    @property
    def has_many_free(self) -> bool:
        """Return whether enough capacity is free to be worth a claim request of its own."""
        return self.free * _MANY_DIVISOR >= self.total

    def _free_of(self, handler: Handler) -> int:
        most = self.total if handler.concurrency is None else handler.concurrency
        return most - self._by_handler.get(handler.pattern, 0)

    def within_limits(self, jobs: Iterable[Claimable]) -> list[Claimable]:
        """Return the jobs that fit into the free capacity of their handlers."""
        free: dict[str, int] = {}
        within = []
        for job in jobs:
            handler = self.handlers.of(job.kind)
            if handler is not None and handler.concurrency is not None:
                left = free.setdefault(handler.pattern, self._free_of(handler))
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

    def update_activity(self) -> None:
        """Set the kinds, capacity and load that the next heartbeat reports."""
        self._activity.kinds = self.kinds if self.total else []
        roots = self.policy_roots
        self._activity.policy_roots = None if roots is None else sorted(roots)
        self._activity.capacity, self._activity.load = self.total, self.taken
