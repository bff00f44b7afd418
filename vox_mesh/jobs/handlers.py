"""Handlers: which function of this process works on which kinds of job."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from vox_mesh.errors import BadValue
from vox_mesh.model.jobs import most_specific

if TYPE_CHECKING:
    from vox_mesh.jobs.context import JobContext

Function = Callable[["JobContext"], Any]
"""A handler: it may be async, or not; then it runs in a thread. What it returns is the job's result."""

F = TypeVar("F", bound=Callable[..., Any])

_PATTERN: Final = re.compile(r"\*|[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*(\.\*)?")
_MAX_LENGTH: Final = 128


class Handler(NamedTuple):
    """A function, the kinds it is for, how many of them at a time, and how long a lease they get."""

    pattern: str
    function: Function
    concurrency: int | None = None
    lease_ms: int | None = None

    @property
    def is_async(self) -> bool:
        """Whether it runs in the event loop."""
        return inspect.iscoroutinefunction(self.function)


class Handlers:
    """The handlers of a worker."""

    def __init__(self) -> None:
        self._by_pattern: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Have a function work on the kinds of a pattern."""
        if not _PATTERN.fullmatch(handler.pattern) or len(handler.pattern) > _MAX_LENGTH:
            raise BadValue(
                f"{handler.pattern!r} is no kind of job",
                hint="for example cortex.extract, cortex.extract.* or *",
            )
        if self._by_pattern.setdefault(handler.pattern, handler) is not handler:
            raise BadValue(f"there are two handlers for {handler.pattern}")

    def of(self, kind: str) -> Handler | None:
        """The handler for a kind: that of the pattern which says most."""
        pattern = most_specific(self._by_pattern, kind)
        return None if pattern is None else self._by_pattern[pattern]

    @property
    def patterns(self) -> list[str]:
        """The kinds that are worked on."""
        return sorted(self._by_pattern)

    def only(self, patterns: Iterable[str]) -> None:
        """Forget the handlers for other kinds than these."""
        wanted = list(patterns)
        if unknown := [each for each in wanted if self.of(each) is None]:
            raise BadValue(
                f"no handler is for {', '.join(unknown)}", hint=f"there is one for {', '.join(self.patterns)}"
            )
        self._by_pattern = {
            each: handler._replace(pattern=each) for each in wanted if (handler := self.of(each)) is not None
        }
