"""Handlers: which function of this process works on which kinds of job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from vox_mesh.errors import BadValue
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.records import EXEC, checked_pattern, matches, most_specific

if TYPE_CHECKING:
    from vox_mesh.jobs.worker.context import JobContext

Function = Callable[["JobContext"], Any]
"""A handler: it may be async, or not; then it runs in a thread. What it returns is the job's result."""

F = TypeVar("F", bound=Callable[..., Any])


_MAX_KNOWN: Final = 1_024


class Handler(NamedTuple):
    """A function, the kinds it is for, how many of them at a time, and how long a lease they get."""

    pattern: str
    function: Function
    concurrency: int | None = None
    lease_ms: int | None = None

    @property
    def is_async(self) -> bool:
        """Whether it runs in the event loop."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class HandlerSet:
    """Handlers, as a module has them that knows of no mesh, or a worker.

    `handlers = HandlerSet()`, and then `@handlers.handles("cortex.extract.*")` on each function.
    """

    def __init__(self) -> None:
        self._by_pattern: dict[str, Handler] = {}
        self._only: tuple[str, ...] | None = None
        self._known: Recent[str, Handler | None] = Recent(_MAX_KNOWN)

    def handles(
        self, pattern: str, *, concurrency: int | None = None, lease: float | None = None
    ) -> Callable[[F], F]:
        """Have a function work on the kinds of a pattern; so many at a time, under leases of so many s."""

        def register(function: F) -> F:
            lease_ms = None if lease is None else round(lease * 1_000)
            self.add(Handler(pattern, function, concurrency, lease_ms))
            return function

        return register

    def add(self, handler: Handler) -> None:
        """Have a function work on the kinds of a pattern."""
        pattern = checked_pattern(handler.pattern)
        if pattern == EXEC:
            raise BadValue(f"{EXEC} is the kind of commands, which need no handler", hint="name another kind")
        if not callable(handler.function):
            raise BadValue(f"the handler for {pattern} is no function")
        if handler.concurrency is not None and handler.concurrency < 1:
            raise BadValue(f"the handler for {pattern} has no place", hint="a concurrency is at least 1")
        if handler.lease_ms is not None and handler.lease_ms < 1:
            raise BadValue(
                f"the lease of the handler for {pattern} is over at once", hint="for example lease=60"
            )
        if pattern in self._by_pattern:
            raise BadValue(f"there are two handlers for {pattern}")
        self._by_pattern[pattern] = handler
        self._known.clear()

    def include(self, others: HandlerSet) -> None:
        """Have these handlers, too."""
        for handler in others._by_pattern.values():
            self.add(handler)

    def of(self, kind: str) -> Handler | None:
        """The handler for a kind: that of the pattern which says most. Commands have none."""
        if kind not in self._known:
            self._known[kind] = self._find(kind)
        return self._known[kind]

    def _find(self, kind: str) -> Handler | None:
        if kind == EXEC or (self._only is not None and most_specific(self._only, kind) is None):
            return None
        pattern = most_specific(self._by_pattern, kind)
        return None if pattern is None else self._by_pattern[pattern]

    @property
    def patterns(self) -> list[str]:
        """The kinds that are worked on."""
        if self._only is None:
            return sorted(self._by_pattern)
        return sorted({each for wanted in self._only for each in self._within(wanted)})

    def _within(self, wanted: str) -> list[str]:
        """The kinds of a pattern that are worked on."""
        below = [each for each in self._by_pattern if matches(wanted, each)]
        return [wanted] if any(matches(each, wanted) for each in self._by_pattern) else below

    def only(self, patterns: Iterable[str]) -> None:
        """Work on no other kinds than these."""
        wanted = tuple(checked_pattern(each) for each in patterns)
        if unknown := [each for each in wanted if not self._within(each)]:
            there = ", ".join(sorted(self._by_pattern))
            raise BadValue(
                f"no handler is for {', '.join(unknown)}",
                hint=f"there is one for {there}" if there else "there are none at all",
            )
        self._only = wanted
        self._known.clear()
