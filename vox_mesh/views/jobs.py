"""Views of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from vox_mesh.errors import NotKnown
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.progress import Note, Piece
from vox_mesh.jobs.queries import Predecessor
from vox_mesh.model.jobs.records import Job, matches
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.rhythm import stamp_of


@dataclass(frozen=True)
class JobView:
    """A job by column; its manifest and its outputs are the values themselves."""

    job_id: str
    ulid: str
    kind: str
    state: str
    priority: int
    waits: int
    not_before_ms: int
    max_attempts: int
    backoff_ms: int
    lease_ms: int | None
    claimer: str | None
    claim_token: int
    lease_until_ms: int | None
    attempts: int
    failures: int
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    exit_code: int | None
    reason: str | None
    output_artifacts: list[dict[str, Any]]
    retry_of: str | None
    scheduled_by: str
    last_op: str
    manifest: dict[str, Any]

    @classmethod
    def of(cls, job: Job) -> JobView:
        """Return the view of a job."""
        return JobView(**_columns(job))


def _columns(job: Job) -> dict[str, Any]:
    row = job._asdict()
    del row["id"], row["seed"]  # internal columns
    return row | {"manifest": orjson.loads(job.manifest), "output_artifacts": job.outputs}


@dataclass(frozen=True)
class PredecessorView:
    """What a job waits for: another job, or an op, whose id it then is."""

    job_id: str
    awaited: str
    state: str
    kind: str

    @classmethod
    def of(cls, edge: Predecessor) -> PredecessorView:
        """Return the view of a predecessor."""
        return cls(edge.predecessor, edge.awaited, edge.state, edge.kind)


@dataclass(frozen=True)
class WholeJobView(JobView):
    """All that is known of a job: also what it waits for, what waits for it, and what it said last.

    Each of its outputs has the time at which it was kept, `hlc`, and the bar and the beat of that.
    """

    predecessors: list[PredecessorView]
    successors: list[str]
    progress: float | None
    message: str | None
    checkpoint: Any
    noted_ms: int | None

    @classmethod
    def whole(
        cls, job: Job, predecessors: Sequence[Predecessor], successors: Sequence[str], note: Note
    ) -> WholeJobView:
        """Return the view of a job with its predecessors, successors and last note."""
        return cls(
            **_columns(job),
            predecessors=[PredecessorView.of(each) for each in predecessors],
            successors=[*successors],
            progress=note.progress,
            message=note.message,
            checkpoint=None if note.checkpoint is None else orjson.loads(note.checkpoint),
            noted_ms=note.noted_ms,
        )


async def show_whole_job(mesh: MeshServices, reference: str) -> WholeJobView:
    """Return all details of the job with this id, id prefix or ULID."""
    job = await mesh.jobs.find(reference)
    roster, names = mesh.jobs.roster, [job.job_id]
    note = await mesh.jobs.notes.of(job.job_id, fresh=True)
    whole = WholeJobView.whole(job, await roster.predecessors(names), await roster.successors(names), note)
    stamp = await _stamp_of_outputs(mesh, job) if whole.output_artifacts else {}
    return replace(whole, output_artifacts=[{**each, **stamp} for each in whole.output_artifacts])


async def _stamp_of_outputs(mesh: MeshServices, job: Job) -> dict[str, Any]:
    """Return the timestamp of a job's outputs: that of the op that ended it."""
    with suppress(NotKnown):
        await mesh.rhythm.look()
        hlc = (await mesh.oplog.find(job.last_op)).hlc
        return {**stamp_of(mesh, hlc)._asdict(), "hlc": hlc}
    return {}


# --- results of actions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduledView:
    """A job that was scheduled, now or before."""

    job_id: str
    ulid: str
    kind: str
    is_new: bool

    @classmethod
    def of(cls, scheduled: Scheduled) -> ScheduledView:
        """Return the view of a scheduled job."""
        return cls(*scheduled)


@dataclass(frozen=True)
class RetriedView(ScheduledView):
    """The job that does another one again."""

    retry_of: str

    @classmethod
    def again(cls, job: Job, scheduled: Scheduled) -> RetriedView:
        """Return the view of a retried job."""
        return cls(*scheduled, job.job_id)


@dataclass(frozen=True)
class AbortedView(JobView):
    """A job that was to be ended; `aborted` if it had not ended before."""

    aborted: bool

    @classmethod
    def ended(cls, job: Job, *, aborted: bool) -> AbortedView:
        """Return the view of an aborted job."""
        return cls(**_columns(job), aborted=aborted)


# --- many jobs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountView:
    """How many jobs of a kind are in each state, and since when the longest waiting could be claimed."""

    kind: str
    pending: int
    claimed: int
    running: int
    succeeded: int
    failed: int
    aborted: int
    oldest_ms: int | None


_NONE = dict.fromkeys(("pending", "claimed", "running", "succeeded", "failed", "aborted"), 0)


async def job_counts(mesh: MeshServices, pattern: str | None = None) -> list[CountView]:
    """Return the number of jobs by kind and state, optionally of kinds that match a pattern."""
    counts, oldest = await mesh.jobs.roster.counts(), await mesh.jobs.roster.oldest_pending()
    return [
        CountView(kind, **_NONE | of_kind, oldest_ms=oldest.get(kind))
        for kind, of_kind in counts.items()
        if pattern is None or matches(pattern, kind)
    ]


async def ready_jobs(mesh: MeshServices, pattern: str | None, limit: int) -> list[Job]:
    """Return the first jobs that could be claimed now."""
    roster = mesh.jobs.roster
    kinds = [each for each in (await roster.situation()).kinds if pattern is None or matches(pattern, each)]
    return await roster.ready(kinds, limit)


@dataclass(frozen=True)
class PieceView:
    """A piece of what a job has printed or logged."""

    n: int
    claim_token: int
    stream: str
    text: str
    logged_ms: int

    @classmethod
    def of(cls, piece: Piece) -> PieceView:
        """Return the view of a piece of output."""
        return cls(*piece)
