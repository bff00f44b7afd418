"""Graphs of jobs: their dependencies, as data and as drawings."""

from __future__ import annotations

from typing import Final

from vox_mesh.http.admission import Load
from vox_mesh.http.api.jobs.jobs import READ_ALL_TIMEOUT_S, JobName
from vox_mesh.http.api.jobs.workflows import RunId
from vox_mesh.http.api.operations import Operations, RequestModel
from vox_mesh.jobs.job_trace import MAX_JOBS
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.graphs.job_graph import GraphView, graph_around, graph_of_open
from vox_mesh.views.graphs.job_layout import LayoutView, layout_around, layout_of_open, layout_of_run
from vox_mesh.views.graphs.job_trace import TraceView, find_trace

GRAPHS: Final = Operations("jobs")


@GRAPHS.get("/v1/jobs/graph", takes_s=READ_ALL_TIMEOUT_S, load=Load.SCAN)
async def graph_open_jobs(mesh: MeshServices) -> GraphView:
    """Show the dependencies of all open jobs."""
    return GraphView.of(await graph_of_open(mesh.jobs))


class LayoutQuery(RequestModel):
    """The run of a workflow; by default, all open jobs."""

    run: RunId | None = None


@GRAPHS.get("/v1/jobs/layout", takes_s=READ_ALL_TIMEOUT_S, load=Load.SCAN)
async def lay_out_jobs(mesh: MeshServices, query: LayoutQuery) -> LayoutView:
    """Draw the dependencies of open jobs, or of a run of a workflow: boxes and lines, up to 1,000 jobs."""
    return await (layout_of_open(mesh) if query.run is None else layout_of_run(mesh, query.run))


@GRAPHS.get("/v1/jobs/{job}/graph", load=Load.SCAN)
async def graph_job(mesh: MeshServices, job: JobName) -> GraphView:
    """Show all predecessors and successors of a job."""
    return GraphView.of(await graph_around(mesh.jobs, [(await mesh.jobs.find(job)).job_id]))


@GRAPHS.get("/v1/jobs/{job}/layout", load=Load.SCAN)
async def lay_out_job(mesh: MeshServices, job: JobName) -> LayoutView:
    """Draw a job with all predecessors and successors, the nearest 1,000 if there are more."""
    return await layout_around(mesh, job)


class JobTraceQuery(RequestModel):
    """Whether only the ops of the job itself are wanted."""

    alone: bool = False


@GRAPHS.get("/v1/jobs/{job}/trace", load=Load.SCAN)
async def trace_job(mesh: MeshServices, job: JobName, query: JobTraceQuery) -> TraceView:
    """Show the ops that led to the state of a job, and those of the jobs that it waited for."""
    return TraceView.of(await find_trace(mesh, job, limit=1 if query.alone else MAX_JOBS))
