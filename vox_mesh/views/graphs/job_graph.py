"""The dependency graph of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from vox_mesh.jobs.jobs import MAX_AT_ONCE, Jobs
from vox_mesh.jobs.queries import MAX_LINKS, Predecessor

MAX_JOBS: Final = 5_000
"""The maximum number of jobs followed."""

OP: Final = "op"
"""The kind of a vertex that is an op, not a job."""


class Vertex(NamedTuple):
    """A job in the graph, or an op that jobs wait for."""

    name: str
    kind: str
    state: str
    title: str
    """The name of a job in its workflow, or else its kind."""
    rank: int
    """The position of a job in the order of scheduling."""


class Graph(NamedTuple):
    """Jobs by id, and their predecessors. `is_cut` if the graph was truncated."""

    nodes: dict[str, Vertex]
    edges: list[Predecessor]
    is_cut: bool


# --- collecting ----------------------------------------------------------------------------------------


async def graph_around(jobs: Jobs, job_ids: Iterable[str]) -> Graph:
    """Return all transitive predecessors and successors of these jobs."""
    known: dict[str, None] = dict.fromkeys(job_ids)
    edges: list[Predecessor] = []
    frontier, is_cut = [*known], False
    while frontier:
        before = await _predecessors(jobs, frontier)
        edges += before
        if is_cut := is_cut or len(edges) >= MAX_LINKS:
            break
        near = [edge.predecessor for edge in before if edge.awaited != OP]
        near += await _successors(jobs, frontier)
        frontier = [name for name in dict.fromkeys(near) if name not in known]
        room = max(0, MAX_JOBS - len(known))
        is_cut = len(frontier) > room
        frontier = frontier[:room]
        known.update(dict.fromkeys(frontier))
    return await _graph(jobs, known, edges, is_cut)


async def graph_of_open(jobs: Jobs) -> Graph:
    """Return the graph of open jobs with their neighbours; isolated jobs are omitted."""
    job_ids = await jobs.queries.linked_open(MAX_JOBS + 1)
    is_cut = len(job_ids) > MAX_JOBS
    job_ids = job_ids[:MAX_JOBS]
    edges = await _predecessors(jobs, job_ids)
    is_cut = is_cut or len(edges) >= MAX_LINKS
    later = set(await _successors(jobs, job_ids)) - {*job_ids}
    edges += [edge for edge in await _predecessors(jobs, sorted(later)) if edge.predecessor in {*job_ids}]
    names = dict.fromkeys(
        name for edge in edges for name in (*(() if edge.awaited == OP else (edge.predecessor,)), edge.job_id)
    )
    return await _graph(jobs, names, edges, is_cut)


async def graph_among(jobs: Jobs, job_ids: Iterable[str]) -> Graph:
    """Return the graph of these jobs alone, with the ops that they wait for."""
    names = dict.fromkeys(job_ids)
    edges = await _predecessors(jobs, [*names])
    return await _graph(jobs, names, edges, is_cut=len(edges) >= MAX_LINKS)


async def _graph(jobs: Jobs, names: Iterable[str], edges: Iterable[Predecessor], is_cut: bool) -> Graph:
    nodes = {
        job.job_id: Vertex(job.job_id, job.kind, job.state, job.title, job.id)
        for batch in _batches([*names])
        for job in await jobs.queries.vertices(batch)
    }
    for edge in edges:
        if edge.awaited == OP:
            nodes[edge.predecessor] = Vertex(edge.predecessor, OP, "", OP, 0)
    kept = [edge for edge in edges if edge.predecessor in nodes and edge.job_id in nodes]
    return Graph(nodes, kept, is_cut)


async def _predecessors(jobs: Jobs, job_ids: list[str]) -> list[Predecessor]:
    """Return the predecessors of jobs, at most `MAX_LINKS`."""
    edges: list[Predecessor] = []
    for batch in _batches(job_ids):
        edges += await jobs.queries.predecessors(batch, MAX_LINKS - len(edges))
        if len(edges) >= MAX_LINKS:
            break
    return edges


async def _successors(jobs: Jobs, job_ids: list[str]) -> list[str]:
    return [name for batch in _batches(job_ids) for name in await jobs.queries.successors(batch)]


def _batches(job_ids: list[str]) -> Iterator[list[str]]:
    return (job_ids[start : start + MAX_AT_ONCE] for start in range(0, len(job_ids), MAX_AT_ONCE))


# --- views ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VertexView:
    """A job in a graph."""

    job_id: str
    kind: str
    state: str


@dataclass(frozen=True)
class EdgeView:
    """A job, and what it waits for: a job, or an op."""

    job_id: str
    predecessor: str
    awaited: str


@dataclass(frozen=True)
class GraphView:
    """Jobs and their dependencies; `is_cut` if there are more than are listed."""

    jobs: list[VertexView]
    edges: list[EdgeView]
    is_cut: bool

    @classmethod
    def of(cls, graph: Graph) -> GraphView:
        """Return the view of a graph."""
        return cls(
            [VertexView(*vertex[:3]) for vertex in graph.nodes.values() if vertex.kind != OP],
            [EdgeView(edge.job_id, edge.predecessor, edge.awaited) for edge in graph.edges],
            graph.is_cut,
        )
