"""Actions on jobs: by id, or on all that match, a page at a time."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from vox_mesh.http.api.jobs.jobs import JobName, JobsFilter, one_or_several
from vox_mesh.http.api.operations import Operations, RequestModel, Seconds
from vox_mesh.http.api.pages import MAX_LIMIT, Page, PageQuery, bad_cursor
from vox_mesh.http.principals.needs import writes
from vox_mesh.http.principals.ownership import has_scheduled_job, has_scheduled_jobs
from vox_mesh.jobs import batches
from vox_mesh.jobs.batches import OPEN, JobSelection
from vox_mesh.model.jobs.job_filter import NO_FILTER
from vox_mesh.model.jobs.records import ABORT, SCHEDULE, YIELD, Job, JobState
from vox_mesh.model.jobs.steps.step_row import MAX_NAME
from vox_mesh.model.jobs.steps.suspension import WAKE_EARLY
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.jobs import AbortedView, JobView, RetriedView, ScheduledView

ACTIONS: Final = Operations("jobs")

Reason = Annotated[str, Field(min_length=1, max_length=1_024, pattern=r"^[^\x00]*$")]
"""A reason for the log."""

_BATCH_TIMEOUT_S: Final = 120.0
_MAX_STEP: Final = MAX_NAME + 8
_ABORTED: Final = "aborted by hand"
_YIELDED: Final = "yielded by hand"


# --- one job -------------------------------------------------------------------------------------


class AbortRequest(RequestModel):
    """The reason of an abort."""

    reason: Reason = _ABORTED


@ACTIONS.post("/v1/jobs/{job}/abort", needs=writes(ABORT, unless=has_scheduled_job))
async def abort_job(mesh: MeshServices, job: JobName, body: AbortRequest) -> AbortedView:
    """Abort an open job; its worker stops, and jobs that wait for its success fail."""
    found = await mesh.jobs.find(job)
    aborted = await batches.abort(mesh.jobs, [found], body.reason)
    return AbortedView.ended(await mesh.jobs.find(found), aborted=found.job_id in aborted)


@ACTIONS.post("/v1/jobs/{job}/retry", needs=writes(SCHEDULE), opens="jobs")
async def retry_job(mesh: MeshServices, job: JobName) -> RetriedView:
    """Retry an ended job as a new job; retrying it twice returns the same new job."""
    found = await mesh.jobs.find(job)
    batches.refuse_open([found])
    ((_, scheduled),) = await batches.retry(mesh.jobs, [found])
    return RetriedView.again(found, scheduled)


class YieldRequest(RequestModel):
    """The time until a job can be claimed again, and the reason."""

    delay: Seconds = 0.0
    reason: Reason = _YIELDED


@ACTIONS.post("/v1/jobs/{job}/yield", needs=writes(YIELD, unless=has_scheduled_job))
async def yield_job(mesh: MeshServices, job: JobName, body: YieldRequest) -> JobView:
    """Return a running job to the queue and stop its worker; it does not count as a failure."""
    return JobView.of(await batches.yield_job(mesh.jobs, job, body.delay, body.reason))


class ForkRequest(RequestModel):
    """The step that runs again, by its name or number."""

    step: Annotated[str, Field(min_length=1, max_length=_MAX_STEP, pattern=r"^[^\x00]*$")]


@ACTIONS.post("/v1/jobs/{job}/fork", needs=writes(SCHEDULE), opens="jobs")
async def fork_job(mesh: MeshServices, job: JobName, body: ForkRequest) -> ScheduledView:
    """Schedule a new job with the stored results of a job before a step."""
    return ScheduledView.from_record(await mesh.jobs.forks.fork(job, body.step))


@ACTIONS.post("/v1/jobs/{job}/resume", needs=writes(SCHEDULE), opens="jobs")
async def resume_job(mesh: MeshServices, job: JobName) -> ScheduledView:
    """Go on with a failed or aborted job as a new job; resuming it twice returns the same new job."""
    return ScheduledView.from_record(await mesh.jobs.forks.resume(job))


@ACTIONS.post("/v1/jobs/{job}/wake", needs=writes(WAKE_EARLY, unless=has_scheduled_job))
async def wake_job(mesh: MeshServices, job: JobName) -> JobView:
    """Have a suspended job go on now: its sleeps are over, and its deadlines have passed."""
    return JobView.of(await mesh.jobs.wakes.wake(job))


# --- many jobs -----------------------------------------------------------------------------------


class _SelectionRequest(JobsFilter, PageQuery):
    """A selection of jobs by id or filter, a page at a time; with `dry_run` nothing is changed."""

    jobs: Annotated[list[JobName], Field(min_length=1, max_length=MAX_LIMIT)] | None = None
    dry_run: bool = False
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = MAX_LIMIT

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        by_filter = self.state is not None or self.where != NO_FILTER
        if (self.jobs is not None) == by_filter:
            raise ValueError("either jobs or a filter must be given: state, kind, node, agent or run")
        if self.jobs is not None and self.cursor is not None:
            raise ValueError("cursor must not be given with jobs")
        return self

    @property
    def item_count(self) -> int:
        """The maximum number of jobs that it changes."""
        return 1 if self.dry_run else len(self.jobs or range(self.limit))

    def choice(self, default: tuple[JobState, ...]) -> JobSelection:
        """Return the selection; by default, of jobs in these states."""
        return JobSelection(self.jobs or (), [*dict.fromkeys(self.states or default)], self.where)

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


class AbortManyRequest(_SelectionRequest):
    """The jobs to abort, and the reason."""

    state: Annotated[str, Field(pattern=one_or_several("pending", "claimed", "running"))] | None = None
    reason: Reason = _ABORTED


@ACTIONS.post("/v1/jobs/abort", needs=writes(ABORT, unless=has_scheduled_jobs), takes_s=_BATCH_TIMEOUT_S)
async def abort_jobs(mesh: MeshServices, body: AbortManyRequest) -> Page[AbortedView] | Page[JobView]:
    """Abort open jobs, by id or by filter; a dry run lists them only."""
    choice = body.choice(OPEN)
    page = await body.batch(mesh, choice)
    if body.dry_run:
        return Page([JobView.of(job) for job in page.items], page.next)
    aborted = await batches.abort(mesh.jobs, page.items, body.reason)
    wanted = [job.job_id for job in page.items if choice.is_by_name or job.job_id in aborted]
    found = await batches.find_existing(mesh.jobs, wanted)
    return Page([AbortedView.ended(job, aborted=job.job_id in aborted) for job in found], page.next)


class RetryManyRequest(_SelectionRequest):
    """The jobs to retry; by default, failed ones."""

    state: Annotated[str, Field(pattern=one_or_several("failed", "aborted", "succeeded"))] | None = None


@ACTIONS.post("/v1/jobs/retry", needs=writes(SCHEDULE), takes_s=_BATCH_TIMEOUT_S, opens="jobs")
async def retry_jobs(mesh: MeshServices, body: RetryManyRequest) -> Page[RetriedView] | Page[JobView]:
    """Retry ended jobs as new jobs, by id or by filter; a dry run lists them only."""
    page = await body.batch(mesh, body.choice((JobState.FAILED,)))
    if body.dry_run:
        return Page([JobView.of(job) for job in page.items], page.next)
    batches.refuse_open(page.items)
    retried = await batches.retry(mesh.jobs, page.items) if page.items else []
    return Page([RetriedView.again(*each) for each in retried], page.next)
