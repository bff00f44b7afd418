"""What waits for what, drawn: as a tree of text and for Graphviz."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from vox_mesh.cli.jobs.job_output import short_id
from vox_mesh.cli.support.output import printable
from vox_mesh.views.job_graph import OP, Graph, Vertex

_COLOURS: Final = {"succeeded": "green", "failed": "red", "aborted": "gray", "running": "blue"}


def _label(node: Vertex) -> str:
    """What people see of it."""
    return f"op {node.name}" if node.kind == OP else f"{short_id(node.name)} {node.kind} {node.state}"


# --- text ----------------------------------------------------------------------------------------


def tree(graph: Graph) -> list[str]:
    """Those that wait for nothing, and below each what waits for it; each is unfolded once."""
    below: dict[str, list[tuple[str, str]]] = defaultdict(list)
    waiting = set()
    for edge in graph.edges:
        below[edge.predecessor].append((edge.job_id, edge.awaited))
        waiting.add(edge.job_id)
    roots = [name for name in graph.nodes if name not in waiting]
    return [printable(each) for each in _unfolded(graph, roots, below)] or ["none"]


def _unfolded(graph: Graph, roots: Iterable[str], below: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    unfolded: set[str] = set()
    # What is yet to be shown: its name, what stands before it, and before what is below it.
    left = [(name, "", "", "") for name in reversed([*roots])]
    while left:
        name, awaited, own, inner = left.pop()
        after = [] if name in unfolded else below[name]
        marks = " (after its end)" if awaited == "end" else ""
        again = " (see above)" if name in unfolded and below[name] else ""
        yield f"{own}{_label(graph.nodes[name])}{marks}{again}"
        unfolded.add(name)
        for place, (each, how) in enumerate(reversed(after)):
            branch, rest = ("└─ ", "   ") if place == 0 else ("├─ ", "│  ")
            left.append((each, how, inner + branch, inner + rest))


# --- Graphviz ------------------------------------------------------------------------------------


def dot(graph: Graph) -> list[str]:
    """It as Graphviz reads it: arrows from what comes first to what waits for it."""
    lines = ["digraph jobs {", "  rankdir=LR;", "  node [shape=box];"]
    for node in graph.nodes.values():
        colour = _COLOURS.get(node.state, "black")
        lines.append(f"  {_quoted(node.name)} [label={_quoted(_label(node))}, color={colour}];")
    for edge in graph.edges:
        style = "" if edge.awaited == "success" else f" [label={_quoted(edge.awaited)}, style=dashed]"
        lines.append(f"  {_quoted(edge.predecessor)} -> {_quoted(edge.job_id)}{style};")
    return [*lines, "}"]


def _quoted(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
