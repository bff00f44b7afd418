"""What waits for what: jobs and the edges between them, as a tree of text and for Graphviz."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from vox_mesh.cli.job_choice import found
from vox_mesh.cli.job_output import short_id
from vox_mesh.cli.output import printable
from vox_mesh.jobs.jobs import MAX_AT_ONCE
from vox_mesh.jobs.roster import Predecessor
from vox_mesh.mesh import Mesh

MOST: Final = 5_000
"""So many jobs are followed."""

_OP: Final = "op"
_COLOURS: Final = {"succeeded": "green", "failed": "red", "aborted": "gray", "running": "blue"}


class Node(NamedTuple):
    """A job in the graph, or an op that jobs wait for."""

    name: str
    kind: str
    state: str

    @property
    def label(self) -> str:
        """What people see of it."""
        return f"op {self.name}" if self.kind == _OP else f"{short_id(self.name)} {self.kind} {self.state}"


class Graph(NamedTuple):
    """Jobs by their names, and what each of them waits for. `is_cut`: there are more."""

    nodes: dict[str, Node]
    edges: list[Predecessor]
    is_cut: bool

    def record(self) -> dict[str, Any]:
        """It by column."""
        return {
            "jobs": [
                {"job_id": node.name, "kind": node.kind, "state": node.state}
                for node in self.nodes.values()
                if node.kind != _OP
            ],
            "edges": [
                {"job_id": edge.job_id, "predecessor": edge.predecessor, "awaited": edge.awaited}
                for edge in self.edges
            ],
        }

    # --- text ------------------------------------------------------------------------------------

    def tree(self) -> list[str]:
        """Those that wait for nothing, and below each what waits for it; each is unfolded once."""
        below: dict[str, list[tuple[str, str]]] = defaultdict(list)
        waiting = set()
        for edge in self.edges:
            below[edge.predecessor].append((edge.job_id, edge.awaited))
            waiting.add(edge.job_id)
        roots = [name for name in self.nodes if name not in waiting]
        return [printable(each) for each in self._unfolded(roots, below)] or ["none"]

    def _unfolded(self, roots: Iterable[str], below: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
        unfolded: set[str] = set()
        # What is yet to be shown: its name, what stands before it, and before what is below it.
        left = [(name, "", "", "") for name in reversed([*roots])]
        while left:
            name, awaited, own, inner = left.pop()
            after = [] if name in unfolded else below[name]
            marks = " (after its end)" if awaited == "end" else ""
            again = " (see above)" if name in unfolded and below[name] else ""
            yield f"{own}{self.nodes[name].label}{marks}{again}"
            unfolded.add(name)
            for place, (each, how) in enumerate(reversed(after)):
                branch, rest = ("└─ ", "   ") if place == 0 else ("├─ ", "│  ")
                left.append((each, how, inner + branch, inner + rest))

    # --- Graphviz --------------------------------------------------------------------------------

    def dot(self) -> list[str]:
        """It as Graphviz reads it: arrows from what comes first to what waits for it."""
        lines = ["digraph jobs {", "  rankdir=LR;", "  node [shape=box];"]
        for node in self.nodes.values():
            colour = _COLOURS.get(node.state, "black")
            lines.append(f"  {_quoted(node.name)} [label={_quoted(node.label)}, color={colour}];")
        for edge in self.edges:
            style = "" if edge.awaited == "success" else f" [label={_quoted(edge.awaited)}, style=dashed]"
            lines.append(f"  {_quoted(edge.predecessor)} -> {_quoted(edge.job_id)}{style};")
        return [*lines, "}"]


def _quoted(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# --- gathering -----------------------------------------------------------------------------------


async def around(mesh: Mesh, job_ids: Iterable[str]) -> Graph:
    """All that these wait for and that waits for them, and so on."""
    known: dict[str, None] = dict.fromkeys(job_ids)
    edges: list[Predecessor] = []
    frontier, is_cut = [*known], False
    while frontier:
        before = await _predecessors(mesh, frontier)
        edges += before
        near = [edge.predecessor for edge in before if edge.awaited != _OP]
        near += await _successors(mesh, frontier)
        frontier = [name for name in dict.fromkeys(near) if name not in known]
        room = max(0, MOST - len(known))
        is_cut = is_cut or len(frontier) > room
        frontier = frontier[:room]
        known.update(dict.fromkeys(frontier))
    return await _graph(mesh, known, edges, is_cut)


async def of_open(mesh: Mesh, job_ids: list[str]) -> Graph:
    """What these wait for, and what waits for them; those that stand alone are left out."""
    edges = await _predecessors(mesh, job_ids)
    later = set(await _successors(mesh, job_ids)) - {*job_ids}
    edges += [edge for edge in await _predecessors(mesh, sorted(later)) if edge.predecessor in {*job_ids}]
    names = dict.fromkeys(
        name
        for edge in edges
        for name in (*(() if edge.awaited == _OP else (edge.predecessor,)), edge.job_id)
    )
    return await _graph(mesh, names, edges, is_cut=False)


async def _graph(mesh: Mesh, names: Iterable[str], edges: Iterable[Predecessor], is_cut: bool) -> Graph:
    nodes = {job.job_id: Node(job.job_id, job.kind, job.state) for job in await found(mesh, names)}
    for edge in edges:
        if edge.awaited == _OP:
            nodes[edge.predecessor] = Node(edge.predecessor, _OP, "")
    kept = [edge for edge in edges if edge.predecessor in nodes and edge.job_id in nodes]
    return Graph(nodes, kept, is_cut)


async def _predecessors(mesh: Mesh, job_ids: list[str]) -> list[Predecessor]:
    batches = (job_ids[start : start + MAX_AT_ONCE] for start in range(0, len(job_ids), MAX_AT_ONCE))
    return [edge for batch in batches for edge in await mesh.jobs.roster.predecessors(batch)]


async def _successors(mesh: Mesh, job_ids: list[str]) -> list[str]:
    batches = (job_ids[start : start + MAX_AT_ONCE] for start in range(0, len(job_ids), MAX_AT_ONCE))
    return [name for batch in batches for name in await mesh.jobs.roster.successors(batch)]
