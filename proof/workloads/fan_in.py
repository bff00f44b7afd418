"""Fan-in: one job that waits for more jobs than its row counts, and must begin after all of them."""

from __future__ import annotations

from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.numbered import key_of
from proof.workloads.working import work
from vox_mesh import JobContext
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import ENDS
from vox_mesh.model.jobs.scheduling.many_predecessors import MANY

_KINDS: Final = "fan.*"
_LEAF: Final = "fan.leaf"
_LAST: Final = "fan.last"
_LEAVES: Final = MANY + 4


async def run(context: WorkloadContext) -> None:
    """Work on jobs; the first node schedules one fan-in, the same in every incarnation."""
    await work(context, _KINDS, partial(_note, context))
    if context.who != context.nodes[0]:
        return
    async for _ in context.rounds():
        if await _schedule(context):
            return


async def _schedule(context: WorkloadContext) -> bool:
    """Schedule the fan-in, or find it scheduled, and return whether that is certain."""
    needs = [key_of(context.who, _LEAF, number) for number in range(_LEAVES)]
    last = key_of(context.who, _LAST, 0)
    manifests = [Manifest.of(kind=_LEAF, payload={"key": key}, ulid=key) for key in needs]
    manifests.append(Manifest.of(kind=_LAST, payload={"key": last}, ulid=last, after=needs))
    with context.recorder.operation("job.submit", key=last, needs=needs) as record:
        *_, scheduled = await context.mesh.jobs.schedule_all(manifests, new=False, spool=False)
        record.ok(job=scheduled.job_id, is_new=scheduled.is_new, spooled=False)
        return True
    return False


async def _note(context: WorkloadContext, job_context: JobContext) -> None:
    job = job_context.job
    about = {"job": job.job_id, "token": job.claim_token}
    context.recorder.note("job.began", **about)
    context.recorder.note("job.done", **about)


async def drain(context: WorkloadContext) -> None:
    """Work until all jobs have ended."""
    await work(context, _KINDS, partial(_note, context))
    await settling.until(context, partial(_are_all_done, context))


async def _are_all_done(context: WorkloadContext) -> bool:
    counts = await context.mesh.jobs.queries.counts()
    ours = [states for kind, states in counts.items() if kind in (_LEAF, _LAST)]
    return all(state in ENDS for states in ours for state, jobs in states.items() if jobs)


FAN_IN: Final = FunctionWorkload("fan-in", run, drain)
