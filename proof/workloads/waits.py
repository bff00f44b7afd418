"""Jobs that wait for a time, a message and another job, and jobs that are aborted and compensated.

They are few: jobs that wait hold up the end of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.working import work
from vox_mesh import JobContext
from vox_mesh.errors import MeshError, StepTimedOut
from vox_mesh.model.jobs.records import ENDS, JobState
from vox_mesh.model.jobs.steps.step_origin import StepOrigin

Note = Callable[..., None]

_KINDS: Final = "wait.*"
_JOB: Final = "wait.job"
_CHILD: Final = "wait.child"
_SAGA: Final = "wait.saga"
_ALL: Final = (_JOB, _CHILD, _SAGA)
_SUBMITS: Final = 0.2
_SENDS: Final = 0.3
_ABORTS: Final = 0.2
_MAX_OPEN: Final = 4
"""The open jobs of a kind from which on no more are submitted."""

_MAX_RETRIES: Final = 20
_PLACES: Final = 3


async def run(context: WorkloadContext) -> None:
    """Work on jobs that wait, submit more, send them messages, and abort some."""
    await work(context, _KINDS, _Handler(context))
    async for _ in context.rounds():
        chance = context.rng.random()
        if chance < _SUBMITS:
            await _submit(context, context.rng.choice((_JOB, _SAGA)))
        elif chance < _SUBMITS + _SENDS:
            await _send(context)
        elif chance < _SUBMITS + _SENDS + _ABORTS:
            await _abort(context)


async def _submit(context: WorkloadContext, kind: str) -> None:
    with suppress(MeshError):
        counts = (await context.mesh.jobs.queries.counts()).get(kind, {})
        if sum(jobs for state, jobs in counts.items() if state not in ENDS) >= _MAX_OPEN:
            return
        with context.recorder.operation("wait.submit", kind=kind) as record:
            scheduled = await context.mesh.jobs.schedule(
                kind,
                {"key": f"{context.rng.getrandbits(64):016x}"},
                max_attempts=_MAX_RETRIES,
                max_interruptions=_MAX_RETRIES,
            )
            record.ok(job=scheduled.job_id)


async def _send(context: WorkloadContext) -> None:
    """Send a message to a job that may wait for it."""
    with suppress(MeshError):
        for job in await context.mesh.jobs.queries.listed(state=JobState.PENDING, kind=_JOB, limit=1):
            value = context.rng.getrandbits(48)
            with context.recorder.operation("wait.send", job=job.job_id, value=value) as record:
                await context.mesh.messages.send(f"job:{job.ulid}", value)
                record.ok()


async def _abort(context: WorkloadContext) -> None:
    with suppress(MeshError):
        for job in await context.mesh.jobs.queries.listed(
            state=JobState.PENDING, kind=_SAGA, limit=_MAX_OPEN
        ):
            core = (await context.mesh.jobs.find(job)).core
            if StepOrigin.in_core(core) is not None:
                continue  # it undoes another one
            key = core["payload"]["key"]
            with context.recorder.operation("wait.abort", key=key) as record:
                record.ok(moved=await context.mesh.jobs.abort(job))


# --- working --------------------------------------------------------------------------------------


class _Handler:
    """The handler: note what each wait was for, when it was over, and each compensation."""

    def __init__(self, context: WorkloadContext) -> None:
        self._context = context

    async def __call__(self, job_context: JobContext) -> int | None:
        result: int | None = None
        about: dict[str, Any] = {"job": job_context.job.job_id, "token": job_context.job.claim_token}
        note: Note = partial(self._context.recorder.note, **about)
        if job_context.job.kind == _SAGA:
            await self._take_part(job_context, note)
        elif job_context.job.kind == _JOB:
            await self._wait(job_context, note)
        else:
            await asyncio.sleep(self._context.pace.rest_s * self._context.rng.random())
            result = self._context.rng.getrandbits(48)
            note("wait.result", value=result)
        note("job.done")
        return result

    async def _wait(self, job_context: JobContext, note: Note) -> None:
        ttl_s = self._context.pace.ttl_s
        began_ms = await job_context.step("begin", lambda: job_context.now_ms)
        waited = await job_context.gather(
            self._sleep(job_context, note, began_ms, 2 * ttl_s),
            self._receive(job_context, note, began_ms, 4 * ttl_s),
        )
        result = await job_context.run_job(_CHILD, {"of": waited[1]})
        note("wait.returned", value=result)

    async def _sleep(self, job_context: JobContext, note: Note, began_ms: int, least_s: float) -> None:
        await job_context.sleep(least_s)
        note("wait.over", waited_ms=job_context.now_ms - began_ms, least_s=least_s)

    async def _receive(self, job_context: JobContext, note: Note, began_ms: int, least_s: float) -> Any:
        try:
            message = await job_context.wait_message(deadline=least_s)
        except StepTimedOut:
            note("wait.over", waited_ms=job_context.now_ms - began_ms, least_s=least_s)
            note("wait.received", value=None)
            return None
        note("wait.received", value=message.body)
        return message.body

    async def _take_part(self, job_context: JobContext, note: Note) -> None:
        key = job_context.payload["key"]
        if job_context.steps.is_cleanup:
            note("job.done")  # it ends when its compensations have run
        for place in range(1, _PLACES + 1):
            undo = partial(self._undo, note, key, place)
            await job_context.on_cancel(undo, name=f"undo {place}")
            note("wait.registered", key=key, place=place)
        with suppress(StepTimedOut):
            await job_context.wait_message(deadline=4 * self._context.pace.ttl_s)

    async def _undo(self, note: Note, key: str, place: int) -> None:
        note("wait.undone", key=key, place=place)
        await asyncio.sleep(self._context.pace.rest_s * self._context.rng.random())


async def drain(context: WorkloadContext) -> None:
    """Work until all jobs have ended, and the jobs that undo others."""
    await work(context, _KINDS, _Handler(context))
    await settling.until(context, partial(_is_all_done, context))


async def _is_all_done(context: WorkloadContext) -> bool:
    mesh = context.mesh
    counts = await mesh.jobs.queries.counts()
    are_open = any(state not in ENDS for kind in _ALL for state in counts.get(kind, {}))
    to_clean_up = "SELECT count(*) FROM job_cleanups WHERE scope_id = ? AND repository_id = ?"
    return not are_open and not (await mesh.store.read(to_clean_up, mesh.store.mesh_id, fresh=True)).value


WAITS: Final = FunctionWorkload("waits", run, drain)
