"""Views of traces."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.jobs.job_trace import JobTrace, TracedJob, causes_of, trace_job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class TracedOpView:
    """An op of a traced job, without its payload."""

    op_id: str
    kind: str
    hlc: str
    node_id: str
    agent: str | None
    accepted: bool
    reason: str | None
    causal_deps: list[str]

    @classmethod
    def of(cls, entry: LogEntry) -> TracedOpView:
        """Return the view of an entry."""
        return cls(
            entry.op_id,
            entry.kind,
            entry.hlc,
            entry.node_id,
            entry.agent,
            bool(entry.accepted),
            entry.reason,
            causes_of(entry),
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
        ops = [TracedOpView.of(entry) for entry in job.ops]
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


async def find_trace(mesh: MeshServices, reference: str) -> JobTrace:
    """Return the trace of a job."""
    return await trace_job(mesh.store, (await mesh.jobs.find(reference)).job_id)
