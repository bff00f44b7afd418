"""Drawings of the dependencies of jobs, for pages that only have to paint them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import WithJsonSchema

from vox_mesh.model.jobs.graph.layout import Box, LayoutWork, Line, neighbourhood
from vox_mesh.model.jobs.records import HELD, JobState
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.views.graphs.job_graph import Graph, Vertex, graph_among, graph_around, graph_of_open

_URGENCY: Final = {state.value: place for place, state in enumerate((*HELD, JobState.PENDING))}


@dataclass(frozen=True)
class LaidOutJobView:
    """A job, or an op that jobs wait for, and its rectangle.

    The title is data: the name of a job in its workflow, or else its kind.
    """

    id: str
    kind: str
    state: str
    title: str
    x: int
    y: int
    w: int
    h: int


_POINT: Final = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_EDGE: Final = {
    "from": {"type": "string"},
    "to": {"type": "string"},
    "awaited": {"enum": ["success", "end", "op"]},
    "points": {"type": "array", "items": _POINT},
}
LaidOutEdge = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {"type": "object", "properties": _EDGE, "required": [*_EDGE], "additionalProperties": False}
    ),
]
"""A line from a predecessor down to the job that waits for its success, its end, or an op."""


@dataclass(frozen=True)
class LayoutView:
    """The size of a drawing, its boxes and its lines; `cut`: how many jobs are left out, at least."""

    width: int
    height: int
    nodes: list[LaidOutJobView]
    edges: list[LaidOutEdge]
    cut: int


async def layout_around(mesh: MeshServices, reference: str) -> LayoutView:
    """Return the drawing of a job with all predecessors and successors."""
    job = await mesh.jobs.find(reference)
    return await _drawn(await graph_around(mesh.jobs, [job.job_id]), [job.job_id])


async def layout_of_run(mesh: MeshServices, run_id: str) -> LayoutView:
    """Return the drawing of a run of a workflow."""
    run = await mesh.workflows.find(run_id)
    names = [job.job_id for job in run.jobs]
    return await _drawn(await graph_among(mesh.jobs, names), names)


async def layout_of_open(mesh: MeshServices) -> LayoutView:
    """Return the drawing of all open jobs that depend on others or have others depend on them.

    If there are too many, the running jobs come first, and each with its neighbours.
    """
    graph = await graph_of_open(mesh.jobs)
    order = sorted(graph.nodes.values(), key=_urgency)
    return await _drawn(graph, [each.name for each in order])


def _urgency(job: Vertex) -> tuple[int, int, str]:
    return _URGENCY.get(job.state, len(_URGENCY)), -job.rank, job.name


async def _drawn(graph: Graph, starts: Iterable[str]) -> LayoutView:
    awaited = {(edge.predecessor, edge.job_id): edge.awaited for edge in graph.edges}
    names = [name for name in neighbourhood(starts, awaited) if name in graph.nodes]
    work = LayoutWork({name: graph.nodes[name].rank for name in names}, awaited)
    await in_slices(work.steps())
    layout = work.result()
    return LayoutView(
        layout.width,
        layout.height,
        [_job_view(graph, box) for box in layout.boxes],
        [_edge_view(awaited, line) for line in layout.lines],
        len(graph.nodes) - len(names) + graph.is_cut,
    )


def _job_view(graph: Graph, box: Box) -> LaidOutJobView:
    job = graph.nodes[box.name]
    return LaidOutJobView(job.name, job.kind, job.state, job.title, box.x, box.y, box.w, box.h)


def _edge_view(awaited: Mapping[tuple[str, str], str], line: Line) -> LaidOutEdge:
    return {
        "from": line.source,
        "to": line.target,
        "awaited": awaited[line.source, line.target],
        "points": [*line.points],
    }
