"""Jobs: scheduling and reading."""

from __future__ import annotations

from asyncio import timeout
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import orjson
from pydantic import Field, WithJsonSchema

from vox_mesh.http.access import Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.api.jobs.manifests import GivenManifests
from vox_mesh.http.api.jobs.workflows import RunId
from vox_mesh.http.api.operations import CALL_S, MAX_WAIT_S, AgentName, Operations, RequestModel, Text, Wait
from vox_mesh.http.api.pages import MAX_SCANNED, Page, PageQuery, read_first, read_page
from vox_mesh.http.principals.needs import OWNER, READS_JOB, READS_OUTPUTS, writes
from vox_mesh.http.principals.outputs import refuse_unread_predecessors
from vox_mesh.http.problems import Problem
from vox_mesh.model.jobs.job_filter import JobFilter
from vox_mesh.model.jobs.records import SCHEDULE, Job, JobState
from vox_mesh.model.jobs.scheduling.workflow_run import ulids_of_run
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.views.job_rows import (
    JobRowView,
    JobTotalView,
    ListedJob,
    count_selected,
    job_rows,
    merge_states,
)
from vox_mesh.views.job_steps import StepView, page_of_steps
from vox_mesh.views.jobs import (
    CountView,
    JobView,
    PieceView,
    ProofView,
    RebuildView,
    ScheduledView,
    SpooledJobView,
    WholeJobView,
    bundle_proof,
    job_counts,
    ready_jobs,
    rebuild_roster,
    show_whole_job,
    verify_proof,
)

JOBS: Final = Operations("jobs")

JobName = Annotated[str, Field(pattern="^([0-9a-f]{6,64}|[0-7][0-9A-Za-z]{25})$")]
"""A job's id, at least its first 6 digits, or its ULID."""

_WAIT_TIMEOUT_S: Final = MAX_WAIT_S + CALL_S
_DEBOUNCE_S: Final = 0.25
"""How late a waiting read looks at a commit: each looks for itself, and there may be many."""

_MAX_PIECES: Final = 64
"""The number of pieces of a job's log per page: each may have 16 KiB."""

READ_ALL_TIMEOUT_S: Final = 120.0
"""The timeout of operations that read everything."""


def one_or_several(*states: str) -> str:
    """Return the pattern of one or several of these states, separated by commas."""
    state = f"({'|'.join(states)})"
    return f"^{state}(,{state}){{0,{len(states) - 1}}}$"


States = Annotated[str, Field(pattern=one_or_several(*JobState), examples=["failed,aborted"])]
"""One or several states, separated by commas."""

_ROW_BYTES: Final = 1_024
"""About the largest size of a row."""


# --- scheduling ----------------------------------------------------------------------------------


class ScheduleRequest(RequestModel):
    """The jobs to schedule; with `new`, also if jobs with the same manifests exist.

    With `defer`, `after` may name jobs by full ids that are not scheduled yet.
    """

    manifests: GivenManifests
    new: bool = False
    defer: bool = False

    @property
    def item_count(self) -> int:
        """The number of jobs."""
        return len(self.manifests)


@JOBS.post("/v1/jobs", needs=writes(SCHEDULE), opens="jobs")
async def schedule_jobs(mesh: MeshServices, body: ScheduleRequest) -> list[ScheduledView]:
    """Schedule jobs, all or none; predecessors come first in the answer."""
    await refuse_unread_predecessors(mesh, body.manifests)
    scheduled = await mesh.jobs.schedule_all(body.manifests, new=body.new, defer=body.defer)
    return [ScheduledView.from_record(each) for each in scheduled]


# --- many jobs -----------------------------------------------------------------------------------------


class JobsFilter(RequestModel):
    """A filter of jobs: `state` may be several, `kind` a pattern such as `cortex.*`.

    `agent` holds them now, and `run` is a run of a workflow.
    """

    state: States | None = None
    kind: Text | None = None
    node: Text | None = None
    agent: AgentName | None = None
    run: RunId | None = None

    @property
    def states(self) -> list[JobState]:
        """The states, none for any."""
        return [] if self.state is None else [JobState(each) for each in self.state.split(",")]

    @property
    def where(self) -> JobFilter:
        """The filter but for the states."""
        ulids = None if self.run is None else ulids_of_run(self.run)
        return JobFilter(self.kind, self.node, self.agent, ulids)


class JobsQuery(JobsFilter, PageQuery):
    """The filter of a page of jobs."""

    async def bounds(self, mesh: MeshServices) -> tuple[int, int]:
        """Return the positions before which and down to which jobs are looked for."""
        newest = mesh.jobs.queries.newest_position
        start = await newest() + 1 if self.number is None else self.number
        is_short = self.agent is not None or self.run is not None  # few jobs are looked at
        return start, 0 if is_short else max(0, start - MAX_SCANNED)


@JOBS.get("/v1/jobs")
async def list_jobs(mesh: MeshServices, query: JobsQuery) -> Page[JobView]:
    """List jobs, newest first."""
    start, down_to = await query.bounds(mesh)
    where = query.where._asdict()

    async def listed(before: int, limit: int) -> list[Job]:
        def read(state: JobState | None) -> Awaitable[list[Job]]:
            found = mesh.jobs.queries.listed
            return found(state=state, **where, before=before, down_to=down_to, limit=limit)

        return await merge_states(query.states, read, limit, is_cut=True)

    page = await _job_page(query, listed, start, down_to, _size_of)
    return Page(await in_slices(JobView.of(job) for job in page.items), page.next)


@JOBS.get("/v1/jobs/rows")
async def list_job_rows(mesh: MeshServices, query: JobsQuery) -> Page[JobRowView]:
    """List jobs as rows of a table, newest first and without manifests."""
    start, down_to = await query.bounds(mesh)
    read = partial(job_rows, mesh, query.states, query.where, down_to=down_to)
    return await _job_page(
        query, lambda before, limit: read(before=before, limit=limit), start, down_to, lambda _: _ROW_BYTES
    )


async def _job_page(
    query: JobsQuery,
    read: Callable[[int, int], Awaitable[list[ListedJob]]],
    start: int,
    down_to: int,
    size: Callable[[ListedJob], int],
) -> Page[ListedJob]:
    found, goes_on = await read_page(read, start, query.limit, lambda job: job.id, size)
    if not goes_on and found:  # the answer may have fewer than there are
        goes_on = bool(await read(found[-1].id, 1))
    return query.page(found, lambda job: job.id, goes_on=goes_on, scanned_to=down_to or None)


@JOBS.get("/v1/jobs/count")
async def count_selected_jobs(mesh: MeshServices, query: JobsFilter) -> JobTotalView:
    """Count the jobs that a filter selects, as actions on many jobs take it."""
    return await count_selected(mesh, query.states, query.where)


def _size_of(job: Job) -> int:
    return len(job.manifest) + len(job.output_artifacts)


class CountsQuery(PageQuery):
    """The filter of job counts."""

    kind: Text | None = None


@JOBS.get("/v1/jobs/counts")
async def count_jobs(mesh: MeshServices, query: CountsQuery) -> Page[CountView]:
    """Count the jobs of each kind, by state."""
    return query.page_of(await job_counts(mesh, query.kind), lambda count: count.kind)


class ReadyQuery(RequestModel):
    """The limit, and the kinds."""

    kind: Text | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 100


@JOBS.get("/v1/jobs/ready")
async def list_ready_jobs(mesh: MeshServices, query: ReadyQuery) -> list[JobView]:
    """List the first ready jobs by priority, then age; large ones make the list shorter."""
    jobs = await read_first(partial(ready_jobs, mesh, query.kind), query.limit, _size_of)
    return await in_slices(JobView.of(job) for job in jobs)


@JOBS.get("/v1/jobs/spooled")
async def list_spooled_jobs(mesh: MeshServices, query: ReadyQuery) -> list[SpooledJobView]:
    """List the jobs in this node's spool: refused ones, then those to replay, in order."""
    return [
        SpooledJobView.from_record(each) for each in await mesh.jobs.spooled.listed(query.kind, query.limit)
    ]


@JOBS.get("/v1/jobs/rebuild", takes_s=READ_ALL_TIMEOUT_S, load=Load.SCAN)
async def check_roster(mesh: MeshServices) -> RebuildView:
    """Replay the op log and compare it with the job tables."""
    return await rebuild_roster(mesh)


@JOBS.post("/v1/jobs/rebuild", needs=OWNER, takes_s=READ_ALL_TIMEOUT_S, load=Load.SCAN)
async def repair_roster(mesh: MeshServices) -> RebuildView:
    """Rewrite the job tables from the op log."""
    return await rebuild_roster(mesh, repair=True)


# --- one job -------------------------------------------------------------------------------------------


@JOBS.get("/v1/jobs/{job}", needs=READS_JOB)
async def show_job(mesh: MeshServices, job: JobName) -> WholeJobView:
    """Show a job: state, manifest, attempts, progress, predecessors, successors and outputs."""
    return await show_whole_job(mesh, job)


class WaitQuery(RequestModel):
    """How long to wait."""

    timeout: Wait = 30.0

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.timeout


@JOBS.get("/v1/jobs/{job}/wait", needs=READS_JOB, takes_s=_WAIT_TIMEOUT_S, load=Load.WAIT)
async def wait_for_job(mesh: MeshServices, job: JobName, query: WaitQuery) -> JobView:
    """Wait until a job has ended, or for `timeout`; return its current state."""
    found = await mesh.jobs.find(job)
    with suppress(TimeoutError):
        return JobView.of(await mesh.jobs.wait(found, timeout=query.timeout))
    return JobView.of(await mesh.jobs.find(found))


class LogsQuery(PageQuery):
    """The part of the log; `wait` is how long to wait if there is nothing yet and the job is not terminal.

    With `tail`, and without a cursor, it begins with the last pieces.
    """

    wait: Wait = 0.0
    tail: Annotated[int, Field(ge=1, le=_MAX_PIECES)] | None = None

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.wait


@JOBS.get(
    "/v1/jobs/{job}/logs", needs=READS_OUTPUTS, scope=Scope.WRITE, takes_s=_WAIT_TIMEOUT_S, load=Load.WAIT
)
async def read_job_logs(mesh: MeshServices, job: JobName, query: LogsQuery) -> Page[PieceView]:
    """Read the output and log of a job; until it has ended, there is always a next page."""
    found = await mesh.jobs.find(job)
    job_id, notes, after = found.job_id, mesh.jobs.notes, query.number or 0
    limit = min(query.limit, _MAX_PIECES)
    if query.tail is not None and query.cursor is None:
        views = [PieceView.from_record(piece) for piece in await notes.logged_last(job_id, query.tail)]
        return query.page(views, lambda piece: piece.n, goes_on=not found.has_ended)
    pieces = await notes.logged(job_id, after=after, limit=limit)
    if not pieces and query.wait and not found.has_ended:
        with suppress(TimeoutError):
            coming = notes.follow(job_id, after=after, debounce_s=_DEBOUNCE_S)
            async with timeout(query.wait), aclosing(coming):
                async for _ in coming:
                    break
        found = await mesh.jobs.find(job_id)
        pieces = await notes.logged(job_id, after=after, limit=limit)
    views = [PieceView.from_record(piece) for piece in pieces]
    goes_on = not found.has_ended or len(pieces) == limit
    return query.page(views, lambda piece: piece.n, goes_on=goes_on)


@JOBS.get("/v1/jobs/{job}/steps", needs=READS_OUTPUTS)
async def list_steps(mesh: MeshServices, job: JobName, query: PageQuery) -> Page[StepView]:
    """List the durable steps of a job, with their results, in the order of its handler."""
    steps = await page_of_steps(mesh, await mesh.jobs.find(job), query.number or 0, query.limit)
    return query.page(steps, lambda each: each.place)


# --- proofs --------------------------------------------------------------------------------------------

Bundle = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": "object",
            "description": "A bundle for `vox-mesh job verify --file`; it must not be changed by a byte.",
        }
    ),
]


@JOBS.get(
    "/v1/jobs/{job}/bundle",
    needs=READS_OUTPUTS,
    scope=Scope.WRITE,
    takes_s=READ_ALL_TIMEOUT_S,
    load=Load.SCAN,
)
async def bundle_job(mesh: MeshServices, job: JobName) -> Bundle:
    """Return a bundle to verify a job's proof elsewhere; it must not be changed by a byte."""
    bundle = await bundle_proof(mesh, job)
    if bundle.faults:
        raise Problem(
            HTTPStatus.CONFLICT,
            "no_proof",
            "; ".join(bundle.faults),
            "see GET /v1/jobs/{job}/verify",
            faults=bundle.faults,
        )
    return orjson.Fragment(bundle.text)


@JOBS.get("/v1/jobs/{job}/verify", takes_s=READ_ALL_TIMEOUT_S, load=Load.SCAN)
async def verify_job(mesh: MeshServices, job: JobName) -> ProofView:
    """Verify the proof of a job and its outputs."""
    return await verify_proof(mesh, job)
