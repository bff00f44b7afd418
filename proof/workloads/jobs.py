"""Jobs that depend on each other, fail, yield or outlast their leases; and crons."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.numbered import Numbers, key_of, rng_of
from proof.workloads.working import work
from vox_mesh import GiveUp, JobContext, Yield
from vox_mesh.errors import MeshError
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import ENDS, JobState

KINDS: Final = "proof.*"
_WORK: Final = "proof.work"
_TICK: Final = "proof.tick"
_JOB: Final = "job"
_WAYS: Final = ("well", "well", "well", "stubborn", "stubborn", "long", "fails", "back", "hopeless")
"""The ways an attempt can go."""

_CRONS: Final = ("proof-odd", "proof-even")
_EVERY_MINUTE: Final = "* * * * *"
EVERY_MS: Final = 60_000
"""The interval of crons."""
_SUBMITS: Final = 0.4
_ABORTS: Final = 0.05
_TAKES_BACK: Final = 0.1
_NEEDS: Final = 0.3
_AGENTS_TAKE: Final = 0.15
_LATE: Final = 0.3
"""How often an agent works on after its lease, and reports late."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A job as its node defines it, the same in every incarnation."""

    key: str
    way: str
    priority: int
    needs: tuple[str, ...]

    @classmethod
    def of(cls, who: str, number: int) -> _Plan:
        rng = rng_of(who, _JOB, number)
        before = range(max(0, number - 2), number)
        needs = tuple(key_of(who, _JOB, each) for each in before if rng.random() < _NEEDS)
        return cls(key_of(who, _JOB, number), rng.choice(_WAYS), rng.randrange(4), needs)


async def run(context: WorkloadContext) -> None:
    """Work on jobs, and submit more."""
    await work(context, KINDS, _Handler(context))
    for name in _CRONS:
        await _add_cron(context, name)
    numbers = Numbers(context)
    async for _ in context.rounds():
        if context.rng.random() < _SUBMITS:
            await _submit(context, _Plan.of(context.who, numbers.next()))
        if context.rng.random() < _ABORTS:
            await _abort(context, key_of(context.who, _JOB, numbers.earlier()))
        if context.rng.random() < _TAKES_BACK:
            await _take_back(context)
        if context.rng.random() < _AGENTS_TAKE:
            await _work_as_agent(context)


async def _submit(context: WorkloadContext, plan: _Plan) -> None:
    args = {"key": plan.key, "needs": plan.needs}
    with context.recorder.operation("job.submit", **args) as record:
        scheduled = await context.mesh.jobs.schedule(
            _WORK,
            {"key": plan.key, "way": plan.way},
            after=plan.needs,
            priority=plan.priority,
            backoff=timedelta(seconds=context.pace.rest_s),
            ulid=plan.key,
            new=False,
        )
        record.ok(job=scheduled.job_id, is_new=scheduled.is_new, spooled=scheduled.spooled)


async def _abort(context: WorkloadContext, key: str) -> None:
    with context.recorder.operation("job.abort", key=key) as record:
        record.ok(moved=await context.mesh.jobs.abort(key))


async def _take_back(context: WorkloadContext) -> None:
    """Release a running job, so that another worker takes it."""
    with suppress(MeshError):
        for job in await context.mesh.jobs.queries.listed(state=JobState.RUNNING, kind=_WORK, limit=1):
            with context.recorder.operation("job.take_back", job=job.job_id) as record:
                await context.mesh.jobs.yield_job(job)
                record.ok()


async def _add_cron(context: WorkloadContext, name: str) -> None:
    with context.recorder.operation("cron.add", name=name) as record:
        await context.mesh.crons.add(name, _EVERY_MINUTE, Manifest.of(kind=_TICK, payload={"cron": name}))
        record.ok()


# --- working --------------------------------------------------------------------------------------


async def _work_as_agent(context: WorkloadContext) -> None:
    """Take a job as an agent does, work on it, and report; now and then long after its lease."""
    pace, rng, agent_work = context.pace, context.rng, context.mesh.work
    with suppress(MeshError):
        for taken in await agent_work.take(f"agent-{context.who}", [_WORK], lease=max(1.0, pace.ttl_s)):
            about = {"job": taken.job.job_id, "token": taken.claim_token}
            context.recorder.note("job.began", **about)
            await asyncio.sleep(pace.rest_s * rng.random())
            if rng.random() < _LATE:
                await asyncio.sleep(taken.lease_ms / 1_000 * 1.5)
            else:
                await agent_work.renew(taken.job, taken.claim_token)
            context.outside.effect(context.recorder, attempt_key(taken.job.job_id, taken.claim_token))
            context.recorder.note("job.done", **about)
            await agent_work.report(taken.job, taken.claim_token, succeeded())


def attempt_key(job_id: str, claim_token: int) -> str:
    """Return the key of the effect that an attempt at a job has outside of the mesh."""
    return f"job {job_id} attempt {claim_token}"


class _Handler:
    """The handler: note each attempt, and have an effect outside of the mesh if it completes."""

    def __init__(self, context: WorkloadContext) -> None:
        self._context = context

    async def __call__(self, job_context: JobContext) -> None:
        context, job = self._context, job_context.job
        about = {"job": job.job_id, "token": job.claim_token}
        context.recorder.note("job.began", **about)
        try:
            await self._do(job_context)
        except asyncio.CancelledError:
            context.recorder.note("job.stopped", **about)
            if job_context.payload.get("way") != "stubborn":  # which completes as if it still held the job
                raise
        context.outside.effect(context.recorder, attempt_key(job.job_id, job.claim_token))
        context.recorder.note("job.done", **about)

    async def _do(self, job_context: JobContext) -> None:
        pace, rng, job = self._context.pace, self._context.rng, job_context.job
        way = job_context.payload.get("way")
        await asyncio.sleep(pace.rest_s * rng.random())
        if way == "long":
            await asyncio.sleep(pace.ttl_s * 1.5)
        elif way == "stubborn":
            await asyncio.sleep(pace.ttl_s / 3)
        elif way == "fails" and job.failures == 0:
            raise RuntimeError("the first attempt fails")
        elif way == "back" and job.attempts == 1:
            raise Yield(delay=pace.rest_s)
        elif way == "hopeless":
            raise GiveUp("it can't be done")


# --- the end --------------------------------------------------------------------------------------


async def drain(context: WorkloadContext) -> None:
    """Let crons catch up and end, and work until all jobs are terminal."""
    await work(context, KINDS, _Handler(context))
    for name in _CRONS:
        await settling.until(context, partial(_is_cron_gone, context, name))
    await settling.until(context, partial(_is_all_done, context))


async def _is_cron_gone(context: WorkloadContext, name: str) -> bool:
    mesh = context.mesh
    for cron in await mesh.crons.listed():
        if cron.name == name:
            if cron.next_ms > mesh.clock.now_ms:
                with context.recorder.operation("cron.remove", name=name) as record:
                    await mesh.crons.remove(name)
                    record.ok()
            return False
    return True


async def _is_all_done(context: WorkloadContext) -> bool:
    counts = await context.mesh.jobs.queries.counts()
    ours = [states for kind, states in counts.items() if kind in (_WORK, _TICK)]
    return all(state in ENDS for states in ours for state in states)


JOBS: Final = FunctionWorkload("jobs", run, drain)
