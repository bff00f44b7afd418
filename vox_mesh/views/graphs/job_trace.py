"""Views of traces."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.jobs.job_trace import MAX_JOBS, JobTrace, TracedJob, attempt_outcome, causes_of, trace_job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class TracedOpView:
    """An op of a traced job, without its payload.

    `outcome` and `detail` say how the op ended an attempt at the job, and why, if it did.
    """

    op_id: str
    kind: str
    hlc: str
    node_id: str
    agent: str | None
    accepted: bool
    reason: str | None
    causal_deps: list[str]
    outcome: str | None
    detail: str | None

    @classmethod
    def of(cls, entry: LogEntry, job_id: str) -> TracedOpView:
        """Return the view of an entry as an op of this job."""
        return cls(
            entry.op_id,
            entry.kind,
            entry.hlc,
            entry.node_id,
            entry.agent,
            bool(entry.accepted),
            entry.reason,
            causes_of(entry),
            *attempt_outcome(entry.kind, entry.payload, job_id),
        )


@dataclass(frozen=True)
class TracedJobView:
    """A job with its ops, oldest first, and the jobs that it waited for."""

    job_id: str
    kind: str
    state: str
    predecessors: list[str]
    ops: list[TracedOpView]

    @classmethod
    def of(cls, job: TracedJob) -> TracedJobView:
        """Return the view of a traced job."""
        ops = [TracedOpView.of(entry, job.job_id) for entry in job.ops]
        return cls(job.job_id, job.kind, job.state, list(job.predecessors), ops)


@dataclass(frozen=True)
class TraceView:
    """The job that was asked for, and all that it waited for; `is_cut` if there are more."""

    jobs: list[TracedJobView]
    is_cut: bool

    @classmethod
    def of(cls, trace: JobTrace) -> TraceView:
        """Return the view of a trace."""
        return cls([TracedJobView.of(job) for job in trace.jobs], trace.is_cut)


async def find_trace(mesh: MeshServices, reference: str, limit: int = MAX_JOBS) -> JobTrace:
    """Return the trace of a job and its predecessors, `limit` jobs at most."""
    return await trace_job(mesh.store, (await mesh.jobs.find(reference)).job_id, limit)
