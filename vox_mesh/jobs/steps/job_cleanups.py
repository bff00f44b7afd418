"""Cleanups: what the abort of a job concerns besides the job itself.

A job notes with its steps that there is something to do. After an abort, any node does it: it aborts the jobs
that the steps wait for, and schedules a job that runs the compensations. Its id follows from the aborted job
and the rows of its steps, so that two nodes schedule the same.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import DatabaseUnavailable, IllegalTransition, MeshError, StaleIncarnation, StoreClosed
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.jobs.steps.step_row import StepKind, StepRow, StepState, by_place
from vox_mesh.model.nodes.features import CLEANUPS_KNOWN
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.jobs.jobs import Jobs

_log = logging.getLogger(__name__)

_SQL: Final = named("job_cleanups")
_MAX_BATCH: Final = 100
_MAX_BATCHES: Final = 10
_MAX_KEPT: Final = 16_384  # of which it is known that they were logged


class JobCleanups:
    """Notes jobs whose abort concerns others, and does what is to be done."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        is_known_to_all: Callable[[int], Awaitable[bool]],
        on_note: Callable[[], None],
    ) -> None:
        """`is_known_to_all`: whether all live nodes know a schema version. `on_note`: called before
        a note is written.
        """
        self._store = store
        self._mesh = store.mesh_id
        self._jobs = jobs
        self._is_known_to_all = is_known_to_all
        self._on_note = on_note
        self._after = ""  # the job from which on the next batch is
        self._kept = Recent[str, None](_MAX_KEPT)
        self._log = ThrottledLogger(_log)

    def note(self, job_id: str) -> Statement:
        """Return the statement that notes a job, together with the row of its step."""
        self._on_note()
        return Statement(_SQL["note"], (*self._mesh, job_id))

    async def run_due(self) -> None:
        """Clean up after the jobs that were aborted. Any node may call this.

        Notes that can't be followed are kept: their jobs may go on once the database is repaired. A batch
        begins after the one before it, so that they hold up no others.
        """
        for _ in range(_MAX_BATCHES):
            job_ids = await self._next()
            if not job_ids or not await self._is_known_to_all(CLEANUPS_KNOWN):
                return
            ends = await self._jobs.authorship.ends.find(job_ids)
            for job_id in job_ids:
                end = ends.get(job_id)
                if end is not None and end.state is JobState.ABORTED:
                    await self._try_to_clean_up(job_id)
                else:
                    self._keep("cleanup refused, no signed op shows the abort: job_id=%s", job_id)
            if not self._after:
                return

    async def _next(self) -> list[str]:
        """Return the next aborted jobs, and after the last one the first ones again."""
        rows = await self._store.read(_SQL["aborted"], (*self._mesh, self._after, _MAX_BATCH))
        job_ids = [row[0] for row in rows]
        self._after = job_ids[-1] if len(job_ids) == _MAX_BATCH else ""
        return job_ids

    async def _try_to_clean_up(self, job_id: str) -> None:
        try:
            await self._clean_up(await self._jobs.find(job_id))
        except (DatabaseUnavailable, StaleIncarnation, StoreClosed):
            raise  # it is the same with all others
        except MeshError as error:
            self._keep("cleanup failed: job_id=%s error=%s", job_id, error.line)

    def _keep(self, text: str, job_id: str, *values: object) -> None:
        """Log why a note is kept, the first time."""
        if job_id not in self._kept:
            self._log(logging.ERROR, text, job_id, *values)
        self._kept[job_id] = None

    async def forget(self) -> None:
        """Remove the notes of jobs that have ended otherwise."""
        if (await self._store.read(_SQL["is_any_over"], self._mesh)).value:
            await self._store.write(Script(Statement(_SQL["forget_over"], self._mesh)))

    async def _clean_up(self, job: Job) -> None:
        rows = await self._jobs.steps.verified(job.job_id)
        await self._abort_children(job, rows)
        forget = Statement(_SQL["forget"], (*self._mesh, job.job_id))
        if not any(row.kind == StepKind.CANCEL for row in rows):
            await self._store.write(Script(forget))
            return
        (item,) = await self._jobs.items_for([self._jobs.forks.cleanup_of(job, rows)], new=False)
        await self._store.write(self._jobs.transitions.schedule([item], forget, causes=[job.last_op]))
        _log.info("compensations scheduled: job_id=%s by=%s", job.job_id, item["job_id"])

    async def _abort_children(self, job: Job, rows: Sequence[StepRow]) -> None:
        waiting = [
            row.document["job_id"]
            for row in by_place(rows).values()
            if row.kind == StepKind.JOB and row.state == StepState.WAITING
        ]
        if waiting:
            with suppress(IllegalTransition):  # all of them have ended
                await self._jobs.abort_for_mesh(waiting, f"job {job.job_id}, which waits for it, is aborted")
