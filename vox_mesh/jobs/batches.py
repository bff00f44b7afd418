"""Batches: select many jobs by reference or by filter, and act on as many at a time as fit into one op."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue, IllegalTransition, StaleClaim, TooLarge
from vox_mesh.jobs.jobs import MAX_AT_ONCE, Jobs, Scheduled
from vox_mesh.model.base.durations import Duration
from vox_mesh.model.jobs.job_filter import NO_FILTER, JobFilter
from vox_mesh.model.jobs.records import ENDS, Job, JobState

OPEN: Final = tuple(state for state in JobState if state not in ENDS)
"""The states that are not terminal."""

RETRIED: Final = (JobState.FAILED, JobState.ABORTED, JobState.SUCCEEDED)
"""The states from which a job can be retried."""


# --- selecting -----------------------------------------------------------------------------------


async def find_named(jobs: Jobs, references: Iterable[str]) -> list[Job]:
    """Return the jobs of these references, each once."""
    jobs_found = [await jobs.find(each) for each in references]
    return list({job.job_id: job for job in jobs_found}.values())


async def find_existing(jobs: Jobs, job_ids: Iterable[str]) -> list[Job]:
    """Return the jobs that exist, in this order and read from the database."""
    pages = jobs.queries.pages(job_ids, fresh=True, size=MAX_AT_ONCE)
    return [job async for page in pages for job in page.values()]


async def list_pages(
    jobs: Jobs,
    states: Sequence[JobState | None],
    where: JobFilter = NO_FILTER,
    *,
    before: int | None = None,
    limit: int | None = None,
) -> AsyncIterator[list[Job]]:
    """Yield pages of jobs, state by state (`None` for any state) and newest first.

    `before` excludes the jobs of the first state that are not older than this row id.
    """
    left = limit
    for state in states:
        while left is None or left > 0:
            wanted = MAX_AT_ONCE if left is None else min(MAX_AT_ONCE, left)
            page = await jobs.queries.listed(state=state, **where._asdict(), before=before, limit=wanted)
            if not page:
                break
            yield page
            before = page[-1].id
            left = None if left is None else left - len(page)
        before = None


class JobSelection(NamedTuple):
    """The jobs to act on: those with these references, or all that match the filter."""

    references: Sequence[str]
    states: Sequence[JobState]
    where: JobFilter = NO_FILTER

    @property
    def is_by_name(self) -> bool:
        """Return whether jobs are selected by reference."""
        return bool(self.references)

    async def batches(self, jobs: Jobs) -> AsyncIterator[list[Job]]:
        """Yield the jobs, as many at a time as fit into one op."""
        if not self.references:
            async for page in list_pages(jobs, self.states, self.where):
                yield page
            return
        selected = await find_named(jobs, self.references)
        for start in range(0, len(selected), MAX_AT_ONCE):
            yield selected[start : start + MAX_AT_ONCE]

    async def all(self, jobs: Jobs) -> list[Job]:
        """Return all selected jobs."""
        return [job async for batch in self.batches(jobs) for job in batch]

    async def some(self, jobs: Jobs, after: tuple[JobState, int] | None, limit: int) -> list[Job]:
        """Return up to `limit` jobs that match, after the job with this state and row id."""
        state, before = after or (None, None)
        states = self.states if state is None else self.states[self.states.index(state) :]
        pages = list_pages(jobs, states, self.where, before=before, limit=limit)
        return [job async for page in pages for job in page]


# --- acting --------------------------------------------------------------------------------------


async def abort(jobs: Jobs, batch: Sequence[Job], reason: str) -> set[str]:
    """Abort the jobs that are not terminal, and return their ids."""
    try:
        return set(await jobs.abort(*batch, reason=reason))
    except IllegalTransition:
        return set()  # all were terminal


async def retry(jobs: Jobs, batch: Sequence[Job]) -> list[tuple[Job, Scheduled]]:
    """Retry terminal jobs, and return each with its new job."""
    try:
        return list(zip(batch, await jobs.retry_all(batch), strict=True))
    except (TooLarge, BadValue):  # they may not fit into one script
        if len(batch) == 1:
            raise
    half = len(batch) // 2
    return [*await retry(jobs, batch[:half]), *await retry(jobs, batch[half:])]


def refuse_open(batch: Iterable[Job]) -> None:
    """Raise `IllegalTransition` unless all jobs are terminal."""
    for job in batch:
        if not job.has_ended:
            refused = IllegalTransition(IllegalTransition.code, statement=0)
            refused.hint = f"wait until job {job.job_id} has ended: it is {job.state}"
            raise refused


async def yield_job(jobs: Jobs, reference: str, delay: Duration, reason: str) -> Job:
    """Return a running job to the queue, stop its worker, and return the updated job."""
    try:
        job = await jobs.yield_job(reference, delay=delay, reason=reason)
    except IllegalTransition as refused:
        refused.hint = "only a claimed or running job can be yielded: run `vox-mesh job show`"
        raise
    except StaleClaim as refused:
        refused.hint = "its state has changed meanwhile: run `vox-mesh job show`"
        raise
    return await jobs.find(job.job_id)
