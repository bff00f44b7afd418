"""Jobs with durable steps, some of which sleep or wait for another job."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.working import work
from vox_mesh import JobContext
from vox_mesh.errors import MeshError
from vox_mesh.model.jobs.records import ENDS, JobState

KINDS: Final = "step.*"
_JOB: Final = "step.job"
_CHILD: Final = "step.child"
_STEPS: Final = 5
_SUBMITS: Final = 0.25
_FORKS: Final = 0.3
_MAX_RETRIES: Final = 20


async def run(context: WorkloadContext) -> None:
    """Work on jobs with steps, and submit more."""
    await work(context, KINDS, _Handler(context))
    async for _ in context.rounds():
        if context.rng.random() < _SUBMITS:
            with context.recorder.operation("step.submit") as record:
                scheduled = await context.mesh.jobs.schedule(
                    _JOB, max_attempts=_MAX_RETRIES, max_interruptions=_MAX_RETRIES
                )
                record.ok(job=scheduled.job_id)
        elif context.rng.random() < _FORKS:
            await _fork(context)


async def _fork(context: WorkloadContext) -> None:
    """Fork an ended job from one of its steps."""
    jobs, place = context.mesh.jobs, context.rng.randint(2, _STEPS)
    with suppress(MeshError):
        for job in await jobs.queries.listed(state=JobState.SUCCEEDED, kind=_JOB, limit=1):
            with context.recorder.operation("step.fork", of=job.job_id, place=place) as record:
                record.ok(job=(await jobs.forks.fork(job, f"step {place}")).job_id)


class _Handler:
    """The handler: note each step's effect, and what the handler gets of it."""

    def __init__(self, context: WorkloadContext) -> None:
        self._context = context

    async def __call__(self, job_context: JobContext) -> None:
        context, rng, rest_s = self._context, self._context.rng, self._context.pace.rest_s
        about = {"job": job_context.job.job_id, "token": job_context.job.claim_token}
        if job_context.job.kind == _CHILD:
            await asyncio.sleep(rest_s * rng.random())
            context.recorder.note("job.done", **about)
            return
        context.recorder.note("step.began", **about)
        for place in range(1, _STEPS + 1):
            value = await job_context.step(f"step {place}", partial(self._effect, about, place))
            context.recorder.note("step.seen", place=place, value=value, **about)
        await job_context.gather(job_context.sleep(rest_s), job_context.run_job(_CHILD))
        context.recorder.note("job.done", **about)

    async def _effect(self, about: dict[str, object], place: int) -> int:
        context = self._context
        await asyncio.sleep(context.pace.ttl_s * context.rng.choice((0.1, 0.1, 0.1, 1.5)))
        value = context.rng.getrandbits(48)
        context.recorder.note("step.effect", place=place, value=value, **about)
        return value


async def drain(context: WorkloadContext) -> None:
    """Work until all jobs have ended."""
    await work(context, KINDS, _Handler(context))
    await settling.until(context, partial(_is_all_done, context))


async def _is_all_done(context: WorkloadContext) -> bool:
    counts = await context.mesh.jobs.queries.counts()
    return all(state in ENDS for kind in (_JOB, _CHILD) for state in counts.get(kind, {}))


STEPS: Final = FunctionWorkload("steps", run, drain)
