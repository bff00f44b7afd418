"""Runs of workflows: started from files, shown and listed. A run is the set of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.jobs.scheduling.workflow import parse_workflow, workflow_of
from vox_mesh.model.jobs.scheduling.workflow_run import (
    NewRun,
    name_in_workflow,
    new_run_id,
    ulids_of_run,
    workflow_name,
)
from vox_mesh.store.script import new_key

MAX_SCANNED: Final = 10_000
"""How many of the newest jobs are searched for runs."""


class RunSummary(NamedTuple):
    """A run, and how many of its jobs are in which state."""

    run_id: str
    workflow: str
    state: str
    jobs: int
    succeeded: int
    unsuccessful: int
    created_ms: int
    ended_ms: int | None


class WorkflowRun(NamedTuple):
    """A run and its jobs, in the order of the file."""

    summary: RunSummary
    jobs: Sequence[Job]

    def named(self) -> dict[str, Job]:
        """Return the jobs by name."""
        return {name_in_workflow(job.core) or job.job_id: job for job in self.jobs}


class Workflows:
    """Starts and finds runs of workflows."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def run(
        self,
        workflow: Mapping[str, Any],
        params: Mapping[str, str] | None = None,
        *,
        folder: str | None = None,
    ) -> WorkflowRun:
        """Start a new run of a workflow. Commands without `cwd` run in `folder`, or in empty folders.

        Raises `BadWorkflow` with all faults, and `BadValue` for unknown or missing parameters.
        """
        return await self._start(workflow_of(dict(workflow), params or {}, new_run_id(new_key()), folder))

    async def run_text(
        self, text: str | bytes, name: str, params: Mapping[str, str], *, folder: str | None = None
    ) -> WorkflowRun:
        """Start a new run of a workflow in YAML or JSON; `name` is that of its file."""
        return await self._start(parse_workflow(text, name, params, new_run_id(new_key()), folder))

    async def _start(self, run: NewRun) -> WorkflowRun:
        await self._jobs.schedule_all(run.manifests, spool=False)  # its jobs are read right away
        return await self.find(run.run_id)

    async def find(self, run_id: str) -> WorkflowRun:
        """Return a run, read from the database. Raises `NotKnown` if there is none."""
        if not is_ulid(run_id):
            raise BadValue(
                f"a run must be named by its ULID, got {run_id!r}", hint="run `vox-mesh workflow list`"
            )
        jobs = await self._jobs.queries.of_run(*ulids_of_run(run_id))
        if not jobs:
            raise NotKnown(f"there is no run {run_id}", hint="run `vox-mesh workflow list`")
        return WorkflowRun(_summary(run_id, jobs), jobs)

    async def listed(self, limit: int = 100) -> list[RunSummary]:
        """Return the newest runs among the jobs that were scheduled last."""
        rows = await self._jobs.queries.runs(MAX_SCANNED, limit)
        return [RunSummary(row[0], row[1], _state(*row[2:5]), *row[2:]) for row in rows]


def _summary(run_id: str, jobs: Sequence[Job]) -> RunSummary:
    succeeded = sum(job.state == JobState.SUCCEEDED for job in jobs)
    ended = [job.ended_ms for job in jobs if job.ended_ms is not None]
    unsuccessful = sum(job.has_ended for job in jobs) - succeeded
    return RunSummary(
        run_id,
        workflow_name(jobs[0].core) or "",
        _state(len(jobs), succeeded, unsuccessful),
        len(jobs),
        succeeded,
        unsuccessful,
        min(job.created_ms for job in jobs),
        max(ended) if len(ended) == len(jobs) else None,
    )


def _state(jobs: int, succeeded: int, unsuccessful: int) -> str:
    if succeeded + unsuccessful < jobs:
        return "running"
    return "failed" if unsuccessful else "succeeded"
