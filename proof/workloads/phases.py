"""Phases: each node notes the phase of each beat, and jobs are bound to phases and downbeats."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.working import work
from vox_mesh import JobContext
from vox_mesh.model.jobs.records import ENDS

_KIND: Final = "phases.ingest"
_PATTERN: Final = "phases.*"
_BINDINGS: Final = ({"during": "plan"}, {"during": "work"}, {"during": "review"}, {"at": "downbeat"})


async def run(context: WorkloadContext) -> None:
    """Listen to beats, work on jobs, and submit more."""
    await work(context, _PATTERN, partial(_ingest, context))
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(_listen(context))
        async for _ in context.rounds():
            await _submit(context)
        listening.cancel()


async def _listen(context: WorkloadContext) -> None:
    async with aclosing(context.mesh.rhythm.beats()) as beats:
        async for frame in beats:
            about = {"epoch_ms": frame.epoch_ms, "beat_ms": frame.beat_ms}
            context.recorder.note("beat.phase", phase=frame.phase, policy=frame.policy_hash, **about)


async def _submit(context: WorkloadContext) -> None:
    binding = context.rng.choice(_BINDINGS)
    with context.recorder.operation("phase.submit", **binding) as record:
        scheduled = await context.mesh.jobs.schedule(
            _KIND, at=binding.get("at"), during=binding.get("during")
        )
        record.ok(job=scheduled.job_id)


async def _ingest(context: WorkloadContext, job_context: JobContext) -> None:
    about = {"job": job_context.job.job_id, "token": job_context.job.claim_token}
    context.recorder.note("job.began", **about)
    context.recorder.note("job.done", **about)


async def drain(context: WorkloadContext) -> None:
    """Work until all jobs are terminal."""
    await work(context, _PATTERN, partial(_ingest, context))
    await settling.until(context, partial(_is_all_done, context))


async def _is_all_done(context: WorkloadContext) -> bool:
    counts = await context.mesh.jobs.queries.counts()
    return all(state in ENDS for state in counts.get(_KIND, {}))


PHASES: Final = FunctionWorkload("phases", run, drain)
