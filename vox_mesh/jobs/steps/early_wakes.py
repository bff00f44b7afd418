"""Early wakes: what a suspended job waits for is over before its time, because an op says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from vox_mesh.errors import BadValue, IllegalTransition, Refused
from vox_mesh.jobs.job_ends import JobEnds
from vox_mesh.jobs.permitted import PermittedJobs, ended_item
from vox_mesh.jobs.steps.job_steps import JobSteps
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.records import HasJobId, Job, JobState
from vox_mesh.model.jobs.steps.early_wake import can_end_early, ended_rows
from vox_mesh.model.jobs.steps.step_row import by_place
from vox_mesh.model.jobs.steps.suspension import WAKE_EARLY
from vox_mesh.model.nodes.features import EARLY_WAKES
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import Features
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Statement, new_key
from vox_mesh.store.store import Store

_SQL: Final = named("job_waits")
_NOT_SUSPENDED: Final = "not_suspended"
_MAX_WAKES: Final = 100
"""The last ops that an attempt looks at: what earlier ones ended is stored."""


class EarlyWakes:
    """Wakes suspended jobs by hand, and finds what was so ended."""

    def __init__(
        self,
        store: Store,
        steps: JobSteps,
        find: Callable[[str | HasJobId], Awaitable[Job]],
        permitted: PermittedJobs,
        ends: JobEnds,
        clock: MeshClock,
        features: Features,
    ) -> None:
        """`find` is that of the jobs of the mesh."""
        self._store = store
        self._mesh = store.mesh_id
        self._steps = steps
        self._find = find
        self._permitted = permitted
        self._ends = ends
        self._clock = clock
        self._features = features

    async def wake(self, reference: str | HasJobId) -> Job:
        """Have a suspended job go on now: its sleeps are over, and its deadlines have passed.

        Raises `IllegalTransition` if the job is not suspended, or waits only for what has no time: an answer,
        or a job or message without a deadline.
        """
        job = await self._find(reference)
        rows = await self._ending_rows(job)
        if not await self._features.is_known_to_all(EARLY_WAKES):
            raise BadValue(
                "a live node does not know suspended jobs that are woken early",
                hint="upgrade all nodes first: `vox-mesh nodes` shows their versions",
            )
        try:
            await self._permitted.end([job], lambda permit: self._write(job, rows, permit))
        except Refused as refused:
            if refused.reason != _NOT_SUSPENDED:
                raise
            raise _refused(f"job {job.job_id} has gone on meanwhile") from None
        return await self._find(job.job_id)

    async def _ending_rows(self, job: Job) -> Sequence[int]:
        """Return the numbers of the rows whose waits end. Raises `IllegalTransition` if there are none."""
        if job.state != JobState.PENDING or not job.attempts:
            raise _refused(f"only a suspended job can be woken: job {job.job_id} is {job.state}")
        if (await self._store.read(_SQL["is_asking"], (*self._mesh, job.job_id), fresh=True)).value:
            raise _refused(f"the job waits for an answer: run `vox-mesh job answer {job.job_id}`")
        rows = by_place(await self._steps.verified(job.job_id)).values()
        found = [row.seq for row in rows if can_end_early(row, self._clock.now_ms)]
        if not found:
            raise _refused(
                "the job waits for no time: send the message it waits for, or abort the job it waits for"
                if job.waits
                else f"job {job.job_id} is not suspended"
            )
        return found

    async def _write(self, job: Job, rows: Sequence[int], permit: Permit) -> Outcome:
        now_ms, key = self._clock.now_ms, permit.key or new_key()
        item = {**ended_item(job, permit), "claim_token": job.claim_token, "rows": rows}
        of_job = (*self._mesh, job.job_id)
        return await self._store.write(
            permit.script(
                Statement(
                    _SQL["refuse_unless_suspended"], (*of_job, job.claim_token), refusal=_NOT_SUSPENDED
                ),
                Statement(_SQL["unlink_unmet"], of_job),
                Statement(_SQL["wake_early"], (*of_job, key, now_ms)),
                Statement(_SQL["link_early_wake"], (*of_job, key)),
                Statement(_SQL["forget"], of_job),
                op=Op(WAKE_EARLY, canonical({"jobs": [item], "at_ms": now_ms}), (job.last_op,)),
                key=key,
            )
        )

    async def ended_rows(self, job_id: str) -> frozenset[int]:
        """Return the numbers of the rows of a job whose waits signed ops have ended early."""
        found: set[int] = set()
        for row in await self._store.read(_SQL["early_wakes"], (*self._mesh, job_id, _MAX_WAKES), fresh=True):
            entry = await self._ends.find_op(str(row[0]))
            if entry is not None and entry.kind == WAKE_EARLY:
                found.update(ended_rows(entry.payload, job_id))
        return frozenset(found)


def _refused(hint: str) -> IllegalTransition:
    refused = IllegalTransition(IllegalTransition.code, statement=0)
    refused.hint = hint
    return refused
