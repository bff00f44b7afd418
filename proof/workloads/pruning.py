"""Pruning: chains of jobs that end, of which only a few are to be kept, and nodes that prune the others."""

from __future__ import annotations

from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from vox_mesh.model.jobs.records import JobState

KIND: Final = "pruning.job"
"""No worker has a handler for it."""
_KEPT: Final = 2
_SCHEDULES: Final = 0.4
_ENDS: Final = 0.7


async def run(context: WorkloadContext) -> None:
    """Set the policy, schedule chains, end their jobs, and prune."""
    jobs, retention = context.mesh.jobs, context.mesh.retention
    with context.recorder.operation("retention.set") as record:
        await retention.set("jobs", kind=KIND, age_ms=None, max_rows=_KEPT)
        record.ok()
    async for _ in context.rounds():
        chance = context.rng.random()
        if chance < _SCHEDULES:
            with context.recorder.operation("pruning.schedule") as record:
                first = await jobs.schedule(KIND)
                second = await jobs.schedule(KIND, after=[{"job": first.job_id, "when": "end"}])
                record.ok(jobs=[first.job_id, second.job_id])
        elif chance < _ENDS:
            with context.recorder.operation("pruning.end") as record:
                waiting = await jobs.queries.listed(state=JobState.PENDING, kind=KIND, limit=20)
                if waiting:
                    await jobs.abort(context.rng.choice(waiting))
                record.ok()
        else:
            with context.recorder.operation("pruning.pass") as record:
                done = await retention.prune_some()
                record.ok(pruned=sum(each.pruned for each in done))


async def drain(context: WorkloadContext) -> None:
    """End all jobs: those without a policy of their own are all looked at."""
    await settling.until(context, partial(_are_all_ended, context))


async def _are_all_ended(context: WorkloadContext) -> bool:
    waiting = await context.mesh.jobs.queries.listed(state=JobState.PENDING, kind=KIND, limit=100)
    if waiting:
        await context.mesh.jobs.abort(*waiting)
    return not waiting


PRUNING: Final = FunctionWorkload("pruning", run, drain)
