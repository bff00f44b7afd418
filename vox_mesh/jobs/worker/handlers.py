"""Handlers: the functions of this process that run jobs, by kind, and how they are loaded from modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from vox_mesh.errors import BadSettings, BadValue, MeshError
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.records import EXEC, check_pattern, matches, most_specific

if TYPE_CHECKING:
    from vox_mesh.jobs.worker.context import JobContext

Function = Callable[["JobContext"], Any]
"""A handler function. If it is not async, it runs in a thread. Its return value is the job's result."""

F = TypeVar("F", bound=Callable[..., Any])


_MAX_CACHED_KINDS: Final = 1_024


class Handler(NamedTuple):
    """A function, the pattern of its kinds, its maximum concurrency, and the lease of its jobs in ms."""

    pattern: str
    function: Function
    concurrency: int | None = None
    lease_ms: int | None = None
    max_running: int | None = None
    """How many jobs of its kind may run in the whole mesh, which its workers set when they start."""

    @property
    def is_async(self) -> bool:
        """Return whether the function runs in the event loop."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class HandlerSet:
    """Handlers by pattern, of a worker or of a module that does not depend on a mesh.

    Use `handlers = HandlerSet()`, then `@handlers.handles("cortex.extract.*")` on each function.
    """

    def __init__(self) -> None:
        self._by_pattern: dict[str, Handler] = {}
        self._only: tuple[str, ...] | None = None
        self._by_kind: Recent[str, Handler | None] = Recent(_MAX_CACHED_KINDS)

    def handles(
        self, pattern: str, *, concurrency: int | None = None, lease: Duration | None = None
    ) -> Callable[[F], F]:
        """Register a handler for the kinds of a pattern; `lease` is in seconds."""

        def register(function: F) -> F:
            lease_ms = None if lease is None else round(seconds_of("lease", lease) * 1_000)
            self.add(Handler(pattern, function, concurrency, lease_ms))
            return function

        return register

    def add(self, handler: Handler) -> None:
        """Add a handler. Raises `BadValue` if it is invalid or its pattern has one already."""
        pattern = check_pattern(handler.pattern)
        if pattern == EXEC:
            raise BadValue(
                f"{EXEC} can't have a handler: it is the kind of commands", hint="choose another kind"
            )
        if not callable(handler.function):
            raise BadValue(
                f"the handler for {pattern} must be callable, got {type(handler.function).__name__}"
            )
        if handler.concurrency is not None and handler.concurrency < 1:
            raise BadValue(f"concurrency of {pattern} must be at least 1, got {handler.concurrency}")
        if handler.lease_ms is not None and handler.lease_ms < 1:
            raise BadValue(
                f"lease of {pattern} must be at least 1 ms, got {handler.lease_ms} ms", hint="try lease=60"
            )
        if pattern in self._by_pattern:
            raise BadValue(f"{pattern} has two handlers", hint="register one handler per pattern")
        self._by_pattern[pattern] = handler
        self._by_kind.clear()

    def include(self, others: HandlerSet) -> None:
        """Add all handlers of another set."""
        for handler in others._by_pattern.values():
            self.add(handler)

    def of(self, kind: str) -> Handler | None:
        """Return the handler with the most specific pattern for a kind. Commands have none."""
        if kind not in self._by_kind:
            self._by_kind[kind] = self._find(kind)
        return self._by_kind[kind]

    def _find(self, kind: str) -> Handler | None:
        if kind == EXEC or (self._only is not None and most_specific(self._only, kind) is None):
            return None
        pattern = most_specific(self._by_pattern, kind)
        return None if pattern is None else self._by_pattern[pattern]

    @property
    def max_running(self) -> dict[str, int]:
        """Return how many jobs of a kind may run in the whole mesh, for each handled kind that says so."""
        limits = {
            each.pattern: each.max_running for each in self._by_pattern.values() if self.of(each.pattern)
        }
        return {kind: limit for kind, limit in limits.items() if limit is not None}

    @property
    def patterns(self) -> list[str]:
        """Return the patterns of the handled kinds."""
        if self._only is None:
            return sorted(self._by_pattern)
        return sorted({each for wanted in self._only for each in self._within(wanted)})

    def _within(self, wanted: str) -> list[str]:
        """Return the handled patterns within a pattern."""
        below = [each for each in self._by_pattern if matches(wanted, each)]
        return [wanted] if any(matches(each, wanted) for each in self._by_pattern) else below

    def only(self, patterns: Iterable[str]) -> None:
        """Restrict the set to these patterns. Raises `BadValue` if one has no handler."""
        wanted = tuple(check_pattern(each) for each in patterns)
        if unknown := [each for each in wanted if not self._within(each)]:
            registered = ", ".join(sorted(self._by_pattern))
            raise BadValue(
                f"no handler for {', '.join(unknown)}",
                hint=f"choose among {registered}" if registered else "register a handler first",
            )
        self._only = wanted
        self._by_kind.clear()


# --- loading -------------------------------------------------------------------------------------


def load_handlers(names: Iterable[str]) -> HandlerSet:
    """Return all handlers of the objects named `module:object`; the current folder is searched too.

    An object is a `HandlerSet`, something that has one as `handlers`, such as a `MeshApp`, or a function that
    takes one and registers its handlers.
    Raises `BadSettings` for an object that can't be loaded or has no handlers.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = HandlerSet()
    for name in names:
        handlers = _load(name)
        if not handlers.patterns:
            raise BadSettings(f"{name} has no handlers", hint="register them with @handlers.handles(KIND)")
        try:
            loaded.include(handlers)
        except MeshError as error:
            raise BadSettings(f"{name}: {error}", hint="name each handler once") from None
    return loaded


def _load(name: str) -> HandlerSet:
    target = _import_object(name)
    target = getattr(target, "handlers", target)
    if isinstance(target, HandlerSet):
        return target
    if not callable(target) or isinstance(target, type) or inspect.iscoroutinefunction(target):
        raise BadSettings(
            f"{name} must be a HandlerSet, a MeshApp or a function, got {_describe_type(target)}",
            hint="name a HandlerSet, a MeshApp, or a function that takes one and registers its handlers",
        )
    handlers = HandlerSet()
    try:
        target(handlers)
    except (Exception, SystemExit) as error:
        raise BadSettings(
            f"{name} failed: {_describe(error)}", hint="fix the function: it is called with a HandlerSet"
        ) from error
    return handlers


def _import_object(name: str) -> Any:
    module, _, path = name.partition(":")
    if not all(each.isidentifier() for each in (*module.split("."), *path.split("."))):
        raise BadSettings(
            f"handlers must be given as module:object, got {name!r}", hint="for example my_handlers:handlers"
        )
    target: Any = _import_module(module)
    for each in path.split("."):
        try:
            target = getattr(target, each)
        except AttributeError:
            raise BadSettings(f"module {module} has no {path}", hint="name one of its HandlerSets") from None
    return target


def _import_module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failure(name, error) from error
        raise BadSettings(f"module {error.name} not found", hint="add its folder to PYTHONPATH") from None
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _import_failure(name: str, error: BaseException) -> BadSettings:
    return BadSettings(
        f"module {name} can't be imported: {_describe(error)}",
        hint="set VOX_DEBUG=1 to see the traceback",
    )


def _describe_type(target: Any) -> str:
    if inspect.iscoroutinefunction(target):
        return "an async function"
    return "a class" if isinstance(target, type) else f"type {type(target).__name__}"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
