"""Views of runs of workflows."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.jobs.scheduling.workflows import RunSummary, WorkflowRun
from vox_mesh.views.record_view import RecordView


@dataclass(frozen=True)
class RunView(RecordView, record=RunSummary):
    """A run, and how many of its jobs are in which state."""


@dataclass(frozen=True)
class RunJobView:
    """A job of a run, by its name in the workflow."""

    name: str
    job_id: str
    kind: str
    state: str
    reason: str | None


@dataclass(frozen=True)
class WholeRunView(RunView):
    """A run and its jobs."""

    items: list[RunJobView]

    @classmethod
    def of(cls, run: WorkflowRun) -> WholeRunView:
        """Return the view of a run."""
        items = [
            RunJobView(name, job.job_id, job.kind, job.state, job.reason) for name, job in run.named().items()
        ]
        return cls.from_record(run.summary, items=items)
