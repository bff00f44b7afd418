"""Batches: many jobs at once, by name or all that fit, as many at a time as go into one op or answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue, IllegalTransition, StaleClaim, TooLarge
from vox_mesh.jobs.jobs import MAX_AT_ONCE, Jobs, Scheduled
from vox_mesh.model.jobs.records import ENDS, Job, JobState

OPEN: Final = tuple(state for state in JobState if state not in ENDS)
"""The states of jobs that are still to be done."""

RETRIED: Final = (JobState.FAILED, JobState.ABORTED, JobState.SUCCEEDED)
"""The states of jobs that can be done again."""


# --- which ---------------------------------------------------------------------------------------


async def named(jobs: Jobs, references: Iterable[str]) -> list[Job]:
    """The jobs that are named, each once."""
    named = [await jobs.find(each) for each in references]
    return list({job.job_id: job for job in named}.values())


async def found(jobs: Jobs, job_ids: Iterable[str]) -> list[Job]:
    """Those of the jobs that are there, as they stand at the database and in this order."""
    rest, most = list(job_ids), MAX_AT_ONCE
    there: list[Job] = []
    while rest:
        try:
            page = await jobs.roster.find_all(rest[:most], fresh=True)
        except TooLarge:
            if most == 1:
                raise
            most //= 2
        else:
            there += [page[job_id] for job_id in rest[:most] if job_id in page]
            rest = rest[most:]
    return there


async def listed(
    jobs: Jobs,
    states: Sequence[JobState | None],
    *,
    kind: str | None = None,
    claimer: str | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> AsyncIterator[list[Job]]:
    """Jobs in these states, or in any, in batches: state by state, the newest first.

    `before`: only those in the first state that are older than this one.
    """
    left = limit
    for state in states:
        while left is None or left > 0:
            wanted = MAX_AT_ONCE if left is None else min(MAX_AT_ONCE, left)
            page = await jobs.roster.listed(
                state=state, kind=kind, claimer=claimer, before=before, limit=wanted
            )
            if not page:
                break
            yield page
            before = page[-1].id
            left = None if left is None else left - len(page)
        before = None


class JobSelection(NamedTuple):
    """The jobs that something is done to: those that are named, or all that fit."""

    references: Sequence[str]
    states: Sequence[JobState]
    kind: str | None

    @property
    def is_by_name(self) -> bool:
        """Whether they are named."""
        return bool(self.references)

    async def batches(self, jobs: Jobs) -> AsyncIterator[list[Job]]:
        """The jobs, as many at a time as go into one op."""
        if not self.references:
            async for page in listed(jobs, self.states, kind=self.kind):
                yield page
            return
        there = await named(jobs, self.references)
        for start in range(0, len(there), MAX_AT_ONCE):
            yield there[start : start + MAX_AT_ONCE]

    async def all(self, jobs: Jobs) -> list[Job]:
        """All of them."""
        return [job async for batch in self.batches(jobs) for job in batch]

    async def some(self, jobs: Jobs, after: tuple[JobState, int] | None, limit: int) -> list[Job]:
        """So many of those that fit, after the one that was in this state and at this place."""
        state, before = after or (None, None)
        states = self.states if state is None else self.states[self.states.index(state) :]
        pages = listed(jobs, states, kind=self.kind, before=before, limit=limit)
        return [job async for page in pages for job in page]


# --- what is done to them ------------------------------------------------------------------------


async def abort(jobs: Jobs, batch: Sequence[Job], reason: str) -> set[str]:
    """End those that have not ended; their ids."""
    try:
        return set(await jobs.abort(*batch, reason=reason))
    except IllegalTransition:
        return set()  # all of them had ended


async def retry(jobs: Jobs, batch: Sequence[Job]) -> list[tuple[Job, Scheduled]]:
    """Have jobs that have ended done again, each as a new one; what became of each."""
    try:
        return list(zip(batch, await jobs.retry_all(batch), strict=True))
    except (TooLarge, BadValue):  # together they may be more than fits into a script
        if len(batch) == 1:
            raise
    half = len(batch) // 2
    return [*await retry(jobs, batch[:half]), *await retry(jobs, batch[half:])]


def refuse_open(batch: Iterable[Job]) -> None:
    """Raise unless all of them have ended."""
    for job in batch:
        if not job.has_ended:
            refused = IllegalTransition(IllegalTransition.code, statement=0)
            refused.hint = f"job {job.job_id} is {job.state}: only one that has ended is retried"
            raise refused


async def give_back(jobs: Jobs, reference: str, delay: timedelta, reason: str) -> Job:
    """Have a job that somebody works on go back to those that wait; how it stands then."""
    try:
        job = await jobs.give_back(reference, delay=delay, reason=reason)
    except IllegalTransition as refused:
        refused.hint = "only a job that is claimed or running can go back: see `vox-mesh job show`"
        raise
    except StaleClaim as refused:
        refused.hint = "it has moved meanwhile: see `vox-mesh job show`"
        raise
    return await jobs.find(job.job_id)
