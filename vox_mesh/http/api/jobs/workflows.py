"""Runs of workflows."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from vox_mesh.http.api.operations import Operations, RequestModel
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import writes
from vox_mesh.model.jobs.records import SCHEDULE
from vox_mesh.model.jobs.scheduling.workflow import MAX_JOBS
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.workflows import RunView, WholeRunView

WORKFLOWS: Final = Operations("workflows")

RunId = Annotated[str, Field(pattern="^[0-7][0-9A-HJKMNP-TV-Z]{25}$")]


class RunRequest(RequestModel):
    """A workflow with the fields of a workflow file, and its parameters."""

    workflow: dict[str, Any]
    params: dict[str, str] = Field(default_factory=dict)

    @property
    def item_count(self) -> int:
        """The number of jobs."""
        jobs = self.workflow.get("jobs")
        return min(len(jobs), MAX_JOBS) if isinstance(jobs, dict) and jobs else 1


@WORKFLOWS.post("/v1/workflows", needs=writes(SCHEDULE), opens="jobs")
async def run_workflow(mesh: MeshServices, body: RunRequest) -> WholeRunView:
    """Start a new run of a workflow; commands without `cwd` run in empty folders."""
    return WholeRunView.of(await mesh.workflows.run(body.workflow, body.params))


@WORKFLOWS.get("/v1/workflows")
async def list_workflow_runs(mesh: MeshServices, query: PageQuery) -> Page[RunView]:
    """List the latest runs of workflows, by id."""
    runs = [RunView.from_record(each) for each in await mesh.workflows.listed(500)]
    return query.page_of(runs, lambda run: run.run_id)


@WORKFLOWS.get("/v1/workflows/{run_id}")
async def show_workflow_run(mesh: MeshServices, run_id: RunId) -> WholeRunView:
    """Show a run of a workflow and its jobs."""
    return WholeRunView.of(await mesh.workflows.find(run_id))
