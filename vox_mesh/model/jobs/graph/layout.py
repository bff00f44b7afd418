"""Layouts: boxes in layers and lines between them, for a graph of up to some thousand vertices.

A layout depends on the graph alone: the order in which it is given makes no difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Final, NamedTuple

from vox_mesh.model.jobs.graph.coordinates import BEND_GAP, NODE_GAP, NODE_WIDTH, RowPlaces
from vox_mesh.model.jobs.graph.layers import Edge, LayeredGraph, layering
from vox_mesh.model.jobs.graph.ordering import RowOrder

NODE_HEIGHT: Final = 44
ROW_GAP: Final = 48
MAX_NODES: Final = 1_000
MAX_EDGES: Final = 4_000
"""How large a graph may be to be drawn."""

PART_GAP: Final = 40
"""The distance between two parts of the graph that no edge connects."""

_ASPECT: Final = 1.6
_MAX_LANES: Final = 24

Point = tuple[int, int]


class Box(NamedTuple):
    """A vertex and its rectangle: the upper left corner, the width and the height."""

    name: str
    x: int
    y: int
    w: int
    h: int


class Line(NamedTuple):
    """An edge and its points, from the source down to the target."""

    source: str
    target: str
    points: Sequence[Point]


class GraphLayout(NamedTuple):
    """The size of a drawing, its boxes and its lines."""

    width: int
    height: int
    boxes: Sequence[Box]
    lines: Sequence[Line]


class _Part(NamedTuple):
    """A connected part of a graph, drawn by itself; boxes and lines by number."""

    width: int
    height: int
    corners: dict[int, Point]
    lines: dict[Edge, list[Point]]


def neighbourhood(starts: Iterable[str], edges: Collection[tuple[str, str]]) -> list[str]:
    """Return the names of a graph that is small enough: the starts in turn, each with all that it leads to.

    Edges are followed in both directions, the nearest names come first.
    """
    near: dict[str, set[str]] = {}
    for source, target in edges:
        near.setdefault(source, set()).add(target)
        near.setdefault(target, set()).add(source)
    found: dict[str, None] = {}
    for start in starts:
        way = deque([] if start in found else [start])
        found[start] = None
        while way and len(found) < MAX_NODES:
            fresh = [each for each in sorted(near.get(way.popleft(), ())) if each not in found]
            found.update(dict.fromkeys(fresh))
            way += fresh
        if len(found) >= MAX_NODES:
            break
    names = [*found][:MAX_NODES]
    place = {name: n for n, name in enumerate(names)}
    within = sorted(max(place[a], place[b]) for a, b in edges if a in place and b in place)
    return names if len(within) <= MAX_EDGES else names[: within[MAX_EDGES]]


def lay_out(ranks: Mapping[str, int], edges: Iterable[tuple[str, str]]) -> GraphLayout:
    """Return the layout of a graph; see `LayoutWork`."""
    work = LayoutWork(ranks, edges)
    for _ in work.steps():
        pass
    return work.result()


class LayoutWork:
    """Draws a graph in short steps, for `in_slices`.

    `ranks` has the vertices: where nothing else decides, the lower rank comes first. Edges from a vertex to
    itself or to unknown ones are left out.
    """

    def __init__(self, ranks: Mapping[str, int], edges: Iterable[tuple[str, str]]) -> None:
        self._names = sorted(ranks, key=lambda name: (ranks[name], name))
        number = {name: place for place, name in enumerate(self._names)}
        known = {(number[a], number[b]) for a, b in edges if a in number and b in number and a != b}
        self._edges = sorted(known)
        self._parts: list[_Part] = []

    def steps(self) -> Iterator[None]:
        """Draw all parts of the graph; each step takes a few milliseconds at most."""
        for vertices, edges in _connected(len(self._names), self._edges):
            if len(vertices) == 1:
                self._parts.append(_Part(NODE_WIDTH, NODE_HEIGHT, {vertices[0]: (0, 0)}, {}))
            else:
                yield from self._draw(vertices, edges)
            yield

    def _draw(self, vertices: Sequence[int], edges: Sequence[Edge]) -> Iterator[None]:
        own = {vertex: place for place, vertex in enumerate(vertices)}
        graph = yield from layering(len(vertices), [(own[a], own[b]) for a, b in edges])
        yield
        order = RowOrder(graph)
        yield from order.steps()
        places = RowPlaces(graph, order.rows)
        yield from places.steps()
        self._parts.append(_part(graph, [int(x) for x in places.x], vertices))

    def result(self) -> GraphLayout:
        """Return the layout, after all steps."""
        width, height, at = _packed(self._parts)
        corners: dict[int, Point] = {}
        lines: dict[Edge, list[Point]] = {}
        for part, (left, top) in zip(self._parts, at, strict=True):
            corners.update({each: (x + left, y + top) for each, (x, y) in part.corners.items()})
            lines.update(
                {edge: [(x + left, y + top) for x, y in points] for edge, points in part.lines.items()}
            )
        return GraphLayout(
            width,
            height,
            [Box(name, *corners[each], NODE_WIDTH, NODE_HEIGHT) for each, name in enumerate(self._names)],
            [Line(self._names[a], self._names[b], lines[a, b]) for a, b in self._edges],
        )


def _connected(count: int, edges: Sequence[Edge]) -> list[tuple[list[int], list[Edge]]]:
    """Return the vertices and edges of each connected part."""
    root = [*range(count)]

    def find(vertex: int) -> int:
        while root[vertex] != vertex:
            root[vertex] = vertex = root[root[vertex]]
        return vertex

    for a, b in edges:
        a, b = find(a), find(b)
        root[max(a, b)] = min(a, b)
    parts: dict[int, tuple[list[int], list[Edge]]] = {}
    for vertex in range(count):
        parts.setdefault(find(vertex), ([], []))[0].append(vertex)
    for edge in edges:
        parts[find(edge[0])][1].append(edge)
    return [*parts.values()]


# --- lines -----------------------------------------------------------------------------------------


def _top(layer: int) -> int:
    return layer * (NODE_HEIGHT + ROW_GAP)


def _part(graph: LayeredGraph, x: Sequence[int], vertices: Sequence[int]) -> _Part:
    half = NODE_WIDTH // 2
    left = min([x[each] - half for each in range(graph.size)] + [*x[graph.size :]])
    x = [each - left for each in x]
    right = max([x[each] + half for each in range(graph.size)] + [*x[graph.size :]])
    lines = {edge: _points(graph, x, path) for edge, path in graph.paths.items()}
    for n, edge in enumerate(graph.detours):
        lines[edge] = _around(graph, x, edge, right + BEND_GAP * (1 + n % _MAX_LANES))
    lines |= {(a, b): lines[b, a][::-1] for a, b in graph.reversed_edges}
    return _Part(
        right + BEND_GAP * min(len(graph.detours), _MAX_LANES),
        _top(max(graph.layer_of)) + NODE_HEIGHT,
        {vertex: (x[n] - half, _top(graph.layer_of[n])) for n, vertex in enumerate(vertices)},
        {(vertices[a], vertices[b]): points for (a, b), points in lines.items()},
    )


def _points(graph: LayeredGraph, x: Sequence[int], path: Sequence[int]) -> list[Point]:
    """Return the points of an edge: it passes each row upright, and so no box."""
    points = [(x[path[0]], _top(graph.layer_of[path[0]]) + NODE_HEIGHT)]
    for bend in path[1:-1]:
        top = _top(graph.layer_of[bend])
        points += [(x[bend], top), (x[bend], top + NODE_HEIGHT)]
    points.append((x[path[-1]], _top(graph.layer_of[path[-1]])))
    return _without_straight(points)


def _without_straight(points: Sequence[Point]) -> list[Point]:
    """Return the points without those on an upright line between two others."""
    kept = [points[0]]
    for point, after in pairwise(points[1:]):
        if not kept[-1][0] == point[0] == after[0]:
            kept.append(point)
    return [*kept, points[-1]]


def _around(graph: LayeredGraph, x: Sequence[int], edge: Edge, lane: int) -> list[Point]:
    source, target = edge
    top, bottom = _top(graph.layer_of[source]) + NODE_HEIGHT, _top(graph.layer_of[target])
    middle = ROW_GAP // 2
    return [(x[source], top), (lane, top + middle), (lane, bottom - middle), (x[target], bottom)]


# --- parts -----------------------------------------------------------------------------------------


def _packed(parts: Sequence[_Part]) -> tuple[int, int, list[Point]]:
    """Return the size of a drawing of all parts, in the proportions of a screen, and their corners."""
    area = sum((part.width + PART_GAP) * (part.height + PART_GAP) for part in parts)
    widest = max([sqrt(area * _ASPECT), *(part.width for part in parts)])
    order = sorted(range(len(parts)), key=lambda n: (-parts[n].height, n))
    at: list[Point] = [(0, 0)] * len(parts)
    left = top = line_height = width = 0
    for n in order:
        part = parts[n]
        gap = NODE_GAP if len(part.corners) == 1 else PART_GAP
        if left and left + part.width > widest:
            left, top, line_height = 0, top + line_height + gap, 0
        at[n] = (left, top)
        left += part.width + gap
        line_height = max(line_height, part.height)
        width = max(width, at[n][0] + part.width)
    return width, top + line_height, at
