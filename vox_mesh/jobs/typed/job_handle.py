"""Handles of scheduled jobs, whose results have the type that the function declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from vox_mesh.errors import BadValue, IllegalTransition
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.typed.job_signature import JobSignature
from vox_mesh.model.base.durations import Duration
from vox_mesh.model.jobs.records import Job, Scheduled

R = TypeVar("R")

FindJobs = Callable[[], Jobs]
"""Returns the jobs of the mesh that is open. Raises `BadValue` if none is."""


class JobHandle(Generic[R]):
    """A job of a typed function, scheduled now or before. It may be named in `after` of other jobs."""

    def __init__(
        self,
        find_jobs: FindJobs,
        signature: JobSignature,
        job_id: str,
        scheduled: Scheduled | None = None,
    ) -> None:
        self._find_jobs = find_jobs
        self._signature = signature
        self.kind: Final = signature.kind
        self.job_id: Final = job_id
        self.scheduled: Final = scheduled
        """How the job was scheduled, or `None` if this handle was made from its id."""

    async def wait(self, *, timeout: Duration | None = None) -> Job:
        """Wait until the job is terminal. Raises `TimeoutError` after `timeout` seconds."""
        job = await self._find_jobs().wait(self.job_id, timeout=timeout)
        if job.kind != self.kind:
            raise BadValue(f"job {job.job_id} must be of kind {self.kind}, got {job.kind}")
        return job

    async def result(self, *, timeout: Duration | None = None) -> R:
        """Wait until the job is terminal, and return what its function returned.

        Raises `JobNotSucceeded` if it did not succeed, and `TimeoutError` after `timeout` seconds.
        """
        job = await self.wait(timeout=timeout)
        return cast(R, self._signature.result(await self._find_jobs().result_of(job)))

    async def abort(self, reason: str = "aborted") -> bool:
        """Abort the job, and return whether it was not terminal yet."""
        try:
            return bool(await self._find_jobs().abort(self.job_id, reason=reason))
        except IllegalTransition:
            return False

    def __repr__(self) -> str:
        return f"<job {self.job_id} of kind {self.kind}>"
