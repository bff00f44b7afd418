"""Limits: an agent schedules and sends more than its grant has a budget and a rate for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.grants import is_owner
from proof.workloads.spending import complete
from vox_mesh import acting_as
from vox_mesh.errors import MeshError
from vox_mesh.jobs.work.reports import failed, succeeded
from vox_mesh.model.jobs.records import JobState

AGENT: Final = "limited"
KIND: Final = "limits.job"
"""No worker has a handler for it."""

_RECEIVER: Final = "limits-inbox"
_MOST_BU: Final = 4
_BUDGET_BU: Final = 10 * _MOST_BU
_SENDS: Final = 5
_WINDOW: Final = 12
"""The window of the rate, as a multiple of the rest between operations."""
_WORKS: Final = 3
"""How long an attempt takes at most, as a multiple of the rest."""
_ABORTS: Final = 0.1
_TAKES: Final = 0.4
_FAILS: Final = 0.3


async def run(context: WorkloadContext) -> None:
    """Have the agent do more than its grant allows, and work on its jobs."""
    is_granted = False
    async for _ in context.rounds():
        if not is_granted and await is_owner(context):
            is_granted = await _grant(context)
        await _send(context)
        await _schedule(context)
        if context.rng.random() < _TAKES:
            await _work(context)
        if context.rng.random() < _ABORTS:
            await _abort(context)


async def _grant(context: WorkloadContext) -> bool:
    grants, window_ms = context.mesh.grants, round(_WINDOW * context.pace.rest_s * 1_000)
    with context.recorder.operation("limits.grant") as record:
        if not await grants.in_force(AGENT):
            await grants.admit(AGENT)
            lines = [f"message.send to {_RECEIVER} rate {_SENDS}/{window_ms}ms", f"job.schedule kind {KIND}"]
            await grants.issue(AGENT, lines, budget=_BUDGET_BU)
        record.ok()
        return True
    return False


async def _send(context: WorkloadContext) -> None:
    with context.recorder.operation("limits.send") as record:
        await context.mesh.messages.send(_RECEIVER, {}, sender=AGENT, ttl=context.pace.ttl_s)
        record.ok()


async def _schedule(context: WorkloadContext) -> None:
    with context.recorder.operation("limits.schedule") as record:
        with acting_as(AGENT):
            budget = {"max_bu": _MOST_BU, "thresholds": {"work": 1}}
            await context.mesh.jobs.schedule(KIND, budget=budget, max_attempts=2, backoff="10ms")
        record.ok()


async def _work(context: WorkloadContext) -> None:
    pace, rng, agent_work = context.pace, context.rng, context.mesh.work
    with suppress(MeshError):
        for taken in await agent_work.take(f"worker-{context.who}", [KIND], lease=max(1.0, pace.ttl_s)):
            context.recorder.note("job.began", job=taken.job.job_id, token=taken.claim_token)
            await asyncio.sleep(_WORKS * pace.rest_s * rng.random())
            complete(context, taken.job)
            report = failed("as planned") if rng.random() < _FAILS else succeeded()
            await agent_work.report(taken.job, taken.claim_token, report)


async def _abort(context: WorkloadContext) -> None:
    with context.recorder.operation("limits.abort") as record:
        state = context.rng.choice((JobState.PENDING, JobState.RUNNING))
        found = await context.mesh.jobs.queries.listed(state=state, kind=KIND, limit=1)
        if found:
            await context.mesh.jobs.abort(*found)
        record.ok()


async def drain(context: WorkloadContext) -> None:
    """End the jobs that are left."""
    await settling.abort_jobs(context, KIND)


LIMITS: Final = FunctionWorkload("limits", run, drain)
