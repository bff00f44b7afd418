"""Forks: a new job begins with the stored steps of another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from vox_mesh.errors import BadValue, IllegalTransition, NotKnown
from vox_mesh.jobs.steps.job_steps import JobSteps
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.manifest_fields import EPOCH, MILLISECOND
from vox_mesh.model.jobs.records import DEFAULT_LEASE_MS, UNSUCCESSFUL, HasJobId, Job, Scheduled
from vox_mesh.model.jobs.retry import retry_manifest
from vox_mesh.model.jobs.steps.step_origin import StepOrigin
from vox_mesh.model.jobs.steps.step_row import MAX_STEPS, StepRow, by_place, occurrence_names
from vox_mesh.model.nodes.features import CLEANUPS_KNOWN
from vox_mesh.nodes.nodes import Features
from vox_mesh.store.script import new_key

_CLEANUP_ATTEMPTS: Final = 20
_CLEANUP_INTERRUPTIONS: Final = 100


class JobForks:
    """Schedules jobs that begin with the steps of others, and goes on with jobs that have failed."""

    def __init__(
        self,
        steps: JobSteps,
        find: Callable[[str | HasJobId], Awaitable[Job]],
        schedule_all: Callable[..., Awaitable[list[Scheduled]]],
        features: Features,
    ) -> None:
        """`find` and `schedule_all` are those of the jobs of the mesh."""
        self._steps = steps
        self._find = find
        self._schedule_all = schedule_all
        self._features = features

    async def fork(self, reference: str | HasJobId, step: str | int) -> Scheduled:
        """Schedule a new job with the stored steps of a job before a step, which it runs again.

        The step is given by its name, as `vox-mesh job steps` shows it, or its number. Raises `NotKnown` if
        the job has no such step.
        """
        job = await self._find(reference)
        rows = await self._steps.verified(job.job_id)
        origin = StepOrigin.of(job.job_id, rows, _place_of(rows, step))
        return await self._schedule(_manifest(job, origin, retry_of=None, nonce=new_key()))

    async def resume(self, reference: str | HasJobId) -> Scheduled:
        """Schedule a job that did not succeed again, as a new job that goes on after its stored steps.

        A second call returns the same new job. Raises `IllegalTransition` if the job has not failed.
        """
        job = await self._find(reference)
        if job.state not in UNSUCCESSFUL:
            refused = IllegalTransition(IllegalTransition.code, statement=0)
            refused.hint = (
                f"only a failed or aborted job can be resumed: job {job.job_id} is {job.state};"
                " a suspended one goes on now with `vox-mesh job wake`"
            )
            raise refused
        rows = await self._steps.verified(job.job_id)
        return await self._schedule(_manifest(job, StepOrigin.of(job.job_id, rows, MAX_STEPS + 1)))

    async def _schedule(self, manifest: Manifest) -> Scheduled:
        if not await self._features.is_known_to_all(CLEANUPS_KNOWN):
            raise BadValue(
                "a live node does not know jobs that begin with the steps of others",
                hint="upgrade all nodes first: `vox-mesh nodes` shows their versions",
            )
        return (await self._schedule_all([manifest], new=False))[0]

    def cleanup_of(self, job: Job, rows: Sequence[StepRow]) -> Manifest:
        """Return the manifest of the job that runs the compensations of an aborted one.

        If a worker ran that one, it may do so until its lease ends: the compensations wait for that.
        """
        lease_ms = 0 if job.claimer is None else job.lease_ms or DEFAULT_LEASE_MS
        origin = StepOrigin.of(job.job_id, rows, MAX_STEPS + 1, cancels=True)
        return _manifest(
            job,
            origin,
            retry_of=None,
            run_at=EPOCH + ((job.ended_ms or 0) + lease_ms) * MILLISECOND,
            max_attempts=_CLEANUP_ATTEMPTS,
            max_interruptions=_CLEANUP_INTERRUPTIONS,
        )

    async def taken_over(self, origin: StepOrigin) -> list[StepRow]:
        """Return the rows that a job takes over. Raises `BadValue` if they can't be believed any more."""
        rows = origin.rows_of(await self._steps.verified(origin.job_id))
        if rows is None:
            raise BadValue(
                f"the steps of job {origin.job_id}, with which this job begins, are not there as they were"
            )
        return rows


def _manifest(job: Job, origin: StepOrigin | None, **options: Any) -> Manifest:
    manifest = retry_manifest(job)
    inputs = manifest.inputs or ()
    given = None if origin is None else tuple(origin.added_to(inputs))
    return manifest.model_copy(update={"inputs": given or manifest.inputs, **options})


def _place_of(rows: Sequence[StepRow], step: str | int) -> int:
    """Return the place of a step, given by its name or number."""
    names = occurrence_names(rows)
    if isinstance(step, str) and step not in names.values() and step.isdecimal():
        step = int(step)
    for place in by_place(rows):
        if step in (place, names[place]):
            return place
    raise NotKnown(f"step {step} not found", hint="list the steps: `vox-mesh job steps JOB`")
