"""Spending: jobs that use tokens, of workers and of agents, on an account with a budget."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.jobs import attempt_key
from proof.workloads.working import work
from vox_mesh import JobContext
from vox_mesh.errors import MeshError
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.rhythm.budgets import Budget

ACCOUNT: Final = "spending"
MOST: Final = 60
RESERVED: Final = 10
KIND: Final = "spending.job"

_MODEL: Final = "model"
_USED: Final = (0, 3, 10, 10, 14)
_WORKS: Final = 6
"""How long an attempt takes at most, as a multiple of the rest between operations."""
_SUBMITS: Final = 0.4
_TAKES: Final = 0.2
_REPORTS_BEFORE: Final = 0.5


async def run(context: WorkloadContext) -> None:
    """Set the budget, work on jobs, and submit more than it allows."""
    with context.recorder.operation("budget.set") as record:
        limits = Budget(max_tokens=MOST, reserve={"tokens": RESERVED})
        await context.mesh.rhythm.budgets.set(f"account:{ACCOUNT}", limits)
        record.ok()
    await work(context, "spending.*", partial(_handle, context))
    async for _ in context.rounds():
        if context.rng.random() < _SUBMITS:
            with context.recorder.operation("spending.submit") as record:
                await context.mesh.jobs.schedule(KIND, budget={"charge_to": ACCOUNT})
                record.ok()
        if context.rng.random() < _TAKES:
            await _work_as_agent(context)


async def _handle(context: WorkloadContext, job: JobContext) -> None:
    used = context.rng.choice(_USED)
    context.recorder.note("job.began", job=job.job.job_id, token=job.job.claim_token)
    job.charge(input_tokens=used // 2, model=_MODEL)
    await asyncio.sleep(_WORKS * context.pace.rest_s * context.rng.random())
    job.charge(output_tokens=used - used // 2, model=_MODEL)
    complete(context, job.job)


def complete(context: WorkloadContext, job: Job) -> None:
    """Have the effect of an attempt that completes, as other workloads do."""
    context.outside.effect(context.recorder, attempt_key(job.job_id, job.claim_token))
    context.recorder.note("job.done", job=job.job_id, token=job.claim_token)


async def _work_as_agent(context: WorkloadContext) -> None:
    pace, rng, agent_work = context.pace, context.rng, context.mesh.work
    with suppress(MeshError):
        for taken in await agent_work.take(f"spender-{context.who}", [KIND], lease=max(1.0, pace.ttl_s)):
            context.recorder.note("job.began", job=taken.job.job_id, token=taken.claim_token)
            usage = {"input_tokens": rng.choice(_USED) // 2, "model": _MODEL}
            await asyncio.sleep(_WORKS * pace.rest_s * rng.random())
            if rng.random() < _REPORTS_BEFORE:
                await agent_work.progress(taken.job, taken.claim_token, usage=usage)
            complete(context, taken.job)
            await agent_work.report(taken.job, taken.claim_token, succeeded(usage=usage))


async def drain(context: WorkloadContext) -> None:
    """Abort the jobs for which nothing is left."""
    await settling.abort_jobs(context, KIND)


SPENDING: Final = FunctionWorkload("spending", run, drain)
