"""The job that the present code runs in, if it is the function of a typed job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.handlers import HandlerSet


class _RunningJob(NamedTuple):
    context: JobContext
    handlers: HandlerSet | None
    """Where its function is registered."""


_RUNNING: Final[ContextVar[_RunningJob | None]] = ContextVar("vox_mesh_running_job", default=None)


def running_job() -> JobContext | None:
    """Return the context of the running job, or `None`."""
    running = _RUNNING.get()
    return None if running is None else running.context


def running_job_of(handlers: HandlerSet, *, is_open: bool) -> JobContext | None:
    """Return the context of the running job, if the jobs of an app are scheduled on its mesh, or `None`.

    The running job is one of the app with these handlers, or the app itself has no open mesh (`is_open`).
    """
    running = _RUNNING.get()
    if running is None or (is_open and running.handlers is not handlers):
        return None
    return running.context


@contextmanager
def running(context: JobContext, handlers: HandlerSet | None = None) -> Iterator[None]:
    """Run the code of the block as the function of a job, which is registered in `handlers`."""
    token = _RUNNING.set(_RunningJob(context, handlers))
    try:
        yield
    finally:
        _RUNNING.reset(token)
