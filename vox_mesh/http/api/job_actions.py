"""Actions on jobs: by id, or on all that match, a page at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from vox_mesh.http.api.jobs import JobName
from vox_mesh.http.api.operations import Asked, Operations, Seconds, Text
from vox_mesh.http.api.pages import MAX_LIMIT, Page, PageAsked, bad_cursor
from vox_mesh.jobs import batches
from vox_mesh.jobs.batches import OPEN, JobSelection
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.jobs import AbortedView, JobView, RetriedView

ACTIONS: Final = Operations("jobs")

Reason = Annotated[str, Field(min_length=1, max_length=1_024, pattern=r"^[^\x00]*$")]
"""A reason for the log."""

_BATCH_TIMEOUT_S: Final = 120.0
_ABORTED: Final = "aborted by hand"
_GIVEN_BACK: Final = "given back by hand"


# --- one job -------------------------------------------------------------------------------------


class ToAbort(Asked):
    """Why a job is to end."""

    reason: Reason = _ABORTED


@ACTIONS.post("/v1/jobs/{job}/abort")
async def abort_job(mesh: MeshServices, job: JobName, body: ToAbort) -> AbortedView:
    """End a job that has not ended; whoever works on it stops, and what waits for its success fails."""
    found = await mesh.jobs.find(job)
    aborted = await batches.abort(mesh.jobs, [found], body.reason)
    return AbortedView.ended(await mesh.jobs.find(found), aborted=found.job_id in aborted)


@ACTIONS.post("/v1/jobs/{job}/retry")
async def retry_job(mesh: MeshServices, job: JobName) -> RetriedView:
    """Have a job that has ended done again, as a new one; asked for twice, it is the same new one."""
    found = await mesh.jobs.find(job)
    batches.refuse_open([found])
    ((_, scheduled),) = await batches.retry(mesh.jobs, [found])
    return RetriedView.again(found, scheduled)


class ToYield(Asked):
    """How long nobody is to claim a job, and why it goes back."""

    delay: Seconds = 0.0
    reason: Reason = _GIVEN_BACK


@ACTIONS.post("/v1/jobs/{job}/yield")
async def yield_job(mesh: MeshServices, job: JobName, body: ToYield) -> JobView:
    """Have a job that somebody works on go back to those that wait; it does not count as a failure."""
    return JobView.of(await batches.yield_job(mesh.jobs, job, timedelta(seconds=body.delay), body.reason))


# --- many jobs -----------------------------------------------------------------------------------


class _Chosen(PageAsked):
    """A selection of jobs by id or filter, a page at a time; with `dry_run` nothing is changed."""

    jobs: Annotated[list[JobName], Field(min_length=1, max_length=MAX_LIMIT)] | None = None
    state: str | None = None
    kind: Text | None = None
    dry_run: bool = False
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = MAX_LIMIT

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        by_filter = self.kind is not None or self.state is not None
        if (self.jobs is not None) == by_filter:
            raise ValueError("name jobs, or say which by state and kind")
        if self.jobs is not None and self.cursor is not None:
            raise ValueError("jobs that are named come on one page")
        return self

    def choice(self, default: tuple[JobState, ...]) -> JobSelection:
        """Return the selection; by default, of jobs in these states."""
        states = default if self.state is None else (JobState(self.state),)
        return JobSelection(self.jobs or (), states, self.kind)

    async def batch(self, mesh: MeshServices, choice: JobSelection) -> Page[Job]:
        """Return the jobs of this page."""
        if choice.is_by_name:
            return Page(await choice.all(mesh.jobs), None)
        found = await choice.some(mesh.jobs, self._after(choice), self.limit)
        return self.page(found, lambda job: (job.state, job.id))

    def _after(self, choice: JobSelection) -> tuple[JobState, int] | None:
        match self.position:
            case None:
                return None
            case [str(state), int(place)] if state in choice.states and 0 <= place < 2**63:
                return JobState(state), place
        raise bad_cursor()


class ToAbortMany(_Chosen):
    """Jobs that are to end, and why."""

    state: Literal["pending", "claimed", "running"] | None = None
    reason: Reason = _ABORTED


@ACTIONS.post("/v1/jobs/abort", takes_s=_BATCH_TIMEOUT_S)
async def abort_jobs(mesh: MeshServices, body: ToAbortMany) -> Page[AbortedView] | Page[JobView]:
    """End jobs that have not ended, by name or all that fit; a dry run tells which it would be."""
    choice = body.choice(OPEN)
    page = await body.batch(mesh, choice)
    if body.dry_run:
        return Page([JobView.of(job) for job in page.items], page.next)
    aborted = await batches.abort(mesh.jobs, page.items, body.reason)
    wanted = [job.job_id for job in page.items if choice.is_by_name or job.job_id in aborted]
    found = await batches.find_existing(mesh.jobs, wanted)
    return Page([AbortedView.ended(job, aborted=job.job_id in aborted) for job in found], page.next)


class ToRetryMany(_Chosen):
    """Jobs that are to be done again; by default, those that have failed."""

    state: Literal["failed", "aborted", "succeeded"] | None = None


@ACTIONS.post("/v1/jobs/retry", takes_s=_BATCH_TIMEOUT_S)
async def retry_jobs(mesh: MeshServices, body: ToRetryMany) -> Page[RetriedView] | Page[JobView]:
    """Have jobs that have ended done again, each as a new one; a dry run tells which it would be."""
    page = await body.batch(mesh, body.choice((JobState.FAILED,)))
    if body.dry_run:
        return Page([JobView.of(job) for job in page.items], page.next)
    batches.refuse_open(page.items)
    retried = await batches.retry(mesh.jobs, page.items) if page.items else []
    return Page([RetriedView.again(*each) for each in retried], page.next)
