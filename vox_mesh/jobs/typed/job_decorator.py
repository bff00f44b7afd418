"""The decorator that makes a typed job of a function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from vox_mesh.errors import BadValue
from vox_mesh.jobs.typed.job_function import JobFunction
from vox_mesh.jobs.typed.job_handle import FindJobs
from vox_mesh.jobs.typed.job_options import manifest_of
from vox_mesh.jobs.typed.typed_job import TypedJob
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.handlers import Handler, HandlerSet

P = ParamSpec("P")
R = TypeVar("R")


class JobDecorator:
    """Makes a typed job of a function, and registers it as the handler of its kind."""

    def __init__(
        self,
        kind: str,
        options: Mapping[str, Any],
        find_jobs: FindJobs,
        handlers: HandlerSet | None,
        *,
        concurrency: int | None = None,
        max_running: int | None = None,
    ) -> None:
        """`handlers`: where it is registered, `None` in a process that only schedules. Raises `BadValue`."""
        manifest_of(kind, options, {}, 0)  # raises what is wrong with them
        if max_running is not None and (type(max_running) is not int or max_running < 1):
            raise BadValue(f"max_running of {kind} must be an integer of at least 1, got {max_running!r}")
        self._kind = kind
        self._options = options
        self._find_jobs = find_jobs
        self._handlers = handlers
        self._limits = {"concurrency": concurrency, "max_running": max_running}

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]
    ) -> TypedJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R]) -> TypedJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> TypedJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> TypedJob[P, R]: ...

    def __call__(self, function: Callable[..., Any]) -> TypedJob[..., Any]:
        """Return the function as a typed job. Raises `BadValue` if a job can't have its parameters."""
        called = JobFunction(self._kind, function, self._handlers)
        if self._handlers is not None:
            self._handlers.add(Handler(self._kind, called.handler, **self._limits))
        return TypedJob(called, self._options, self._find_jobs)
