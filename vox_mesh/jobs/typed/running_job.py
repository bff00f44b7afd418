"""The job that the present code runs in, if it is the function of a typed job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from vox_mesh.jobs.worker.context import JobContext

_RUNNING: Final[ContextVar[JobContext | None]] = ContextVar("vox_mesh_running_job", default=None)


def running_job() -> JobContext | None:
    """Return the context of the job whose function runs, or `None` outside of one."""
    return _RUNNING.get()


@contextmanager
def running(context: JobContext) -> Iterator[None]:
    """Run the code of the block as the function of a job."""
    token = _RUNNING.set(context)
    try:
        yield
    finally:
        _RUNNING.reset(token)
