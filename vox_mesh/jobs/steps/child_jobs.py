"""Child jobs: the jobs that a step schedules, and whose end it waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from vox_mesh.errors import JobNotSucceeded
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import Job, JobState

if TYPE_CHECKING:
    from vox_mesh.jobs.jobs import Jobs

CHILDREN_KNOWN: Final = 47
"""Since this schema version, nodes know jobs that go on when jobs end which they have scheduled meanwhile."""


class ChildJobs:
    """Schedules the children of jobs, each once, and reads their results."""

    def __init__(self, jobs: Jobs, is_known_to_all: Callable[[int], Awaitable[bool]]) -> None:
        """`is_known_to_all`: whether all live nodes know a schema version."""
        self._jobs = jobs
        self._is_known_to_all = is_known_to_all

    async def can_wait(self) -> bool:
        """Return whether all live nodes know jobs that wait for their children."""
        return await self._is_known_to_all(CHILDREN_KNOWN)

    async def schedule(
        self, job: Job, place: int, kind: str, payload: Any, options: Mapping[str, Any]
    ) -> str:
        """Schedule the child of a step and return its id.

        An attempt after an interruption schedules the same job, one after a failure another one.
        """
        given = {**options, "payload": payload} if payload is not None else options
        manifest = Manifest.of(kind=kind, nonce=f"{job.job_id}/{place}/{job.failures}", **given)
        (scheduled,) = await self._jobs.schedule_all([manifest], new=False)
        return scheduled.job_id

    async def find(self, job_id: str) -> Job:
        """Return the present row of a child."""
        return await self._jobs.find(job_id)

    async def result(self, job: Job) -> Any:
        """Return the result of a child that has ended, as its worker has signed it.

        Raises `JobNotSucceeded` if it did not succeed, and `NotAuthentic` if no signed op says so.
        """
        if job.state != JobState.SUCCEEDED:
            reason = f": {job.reason}" if job.reason else ""
            raise JobNotSucceeded(f"job {job.job_id} is {job.state}{reason}", hint="see `vox-mesh job logs`")
        return await self._jobs.predecessor_results.result_of(job)
