"""Layers: the rows of a drawing, in which every edge leads from a row to a lower one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise
from math import ceil, sqrt
from typing import Final, NamedTuple

Edge = tuple[int, int]

MAX_BENDS: Final = 2_000
"""How many bends the long edges of a graph may have; the longest edges are led around the rows instead."""

MAX_PASSED: Final = 8_000
"""How many rows they may pass in all, each counted by itself."""

_MIN_WIDTH: Final = 8
_WIDTH_FACTOR: Final = 1.5


class LayeredGraph(NamedTuple):
    """A graph by rows. Vertices from `size` on are bends: where long edges pass a row.

    Long edges with one end in common may share their bends.
    """

    size: int
    layer_of: list[int]
    above: list[list[int]]
    """The neighbours of each vertex in the row above it."""
    below: list[list[int]]
    """The neighbours of each vertex in the row below it."""
    paths: dict[Edge, list[int]]
    """The vertices of each edge, from its source to its target."""
    detours: list[Edge]
    """The edges without bends, which are led around the rows."""
    reversed_edges: frozenset[Edge]
    """The edges that lead upwards, as given; the paths have them the other way around."""

    def rows(self) -> list[list[int]]:
        """Return the vertices by row."""
        rows: list[list[int]] = [[] for _ in range(max(self.layer_of, default=-1) + 1)]
        for vertex, layer in enumerate(self.layer_of):
            rows[layer].append(vertex)
        return rows


def layering(count: int, edges: Iterable[Edge]) -> Generator[None, None, LayeredGraph]:
    """Return the rows of a graph whose vertices are the numbers below `count`, in some steps."""
    given = sorted({edge for edge in edges if edge[0] != edge[1]})
    upward = _upward(count, given)
    yield
    down = sorted({(b, a) if (a, b) in upward else (a, b) for a, b in given})
    layer_of = _layers(count, down)
    yield
    paths, detours, layers = _paths(layer_of, down)
    yield
    above: list[list[int]] = [[] for _ in layers]
    below: list[list[int]] = [[] for _ in layers]
    for upper, lower in sorted({part for path in paths.values() for part in pairwise(path)}):
        below[upper].append(lower)
        above[lower].append(upper)
    return LayeredGraph(count, layers, above, below, paths, detours, frozenset(upward))


def _neighbours(count: int, edges: Sequence[Edge]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the predecessors and the successors of each vertex."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        after[source].append(target)
        before[target].append(source)
    return before, after


def _upward(count: int, edges: Sequence[Edge]) -> set[Edge]:
    """Return edges without which there is no cycle: each leads back to a vertex on the way."""
    _, after = _neighbours(count, edges)
    found = set[Edge]()
    state = bytearray(count)  # 1: on the way, 2: done
    for start in range(count):
        if state[start]:
            continue
        state[start] = 1
        way = [(start, iter(after[start]))]
        while way:
            vertex, rest = way[-1]
            target = next(rest, None)
            if target is None:
                state[vertex] = 2
                way.pop()
            elif state[target] == 1:
                found.add((vertex, target))
            elif state[target] == 0:
                state[target] = 1
                way.append((target, iter(after[target])))
    return found


# --- rows ------------------------------------------------------------------------------------------


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return the row of each vertex: below all its predecessors, in rows of a limited width."""
    before, after = _neighbours(count, edges)
    order = _by_depth(before, after)
    width = max(_MIN_WIDTH, ceil(_WIDTH_FACTOR * sqrt(count)))
    sizes: list[int] = [0] * (count + 1)
    layer_of = [0] * count
    first_free = 0
    for vertex in order:
        layer = max([layer_of[each] + 1 for each in before[vertex]], default=0)
        layer = max(layer, first_free) if layer <= first_free else layer
        while sizes[layer] >= width:
            layer += 1
        layer_of[vertex] = layer
        sizes[layer] += 1
        while sizes[first_free] >= width:
            first_free += 1
    _shorten(layer_of, sizes, width, order, before, after)
    used = {layer: row for row, layer in enumerate(sorted({*layer_of}))}
    return [used[layer] for layer in layer_of]


def _by_depth(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """Return the vertices, those with the shorter chains of predecessors first."""
    depth = [0] * len(before)
    missing = [len(each) for each in before]
    ready = [vertex for vertex, count in enumerate(missing) if count == 0]
    for vertex in ready:
        for target in after[vertex]:
            depth[target] = max(depth[target], depth[vertex] + 1)
            missing[target] -= 1
            if missing[target] == 0:
                ready.append(target)
    return sorted(ready, key=lambda vertex: (depth[vertex], vertex))


def _shorten(
    layer_of: list[int],
    sizes: list[int],
    width: int,
    order: Sequence[int],
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
) -> None:
    """Move the vertices that have more successors than predecessors down to their successors."""
    for vertex in reversed(order):
        if len(after[vertex]) <= len(before[vertex]):
            continue
        layer = min(layer_of[each] for each in after[vertex]) - 1
        while layer > layer_of[vertex] and sizes[layer] >= width:
            layer -= 1
        sizes[layer_of[vertex]] -= 1
        sizes[layer] += 1
        layer_of[vertex] = layer


# --- long edges ------------------------------------------------------------------------------------


def _paths(
    layer_of: Sequence[int], edges: Sequence[Edge]
) -> tuple[dict[Edge, list[int]], list[Edge], list[int]]:
    """Return the path of each edge, the edges that have none, and the rows with those of the bends.

    Of two ends, the one with more edges has its long edges on one path, as far as they go together.
    """
    degrees = [[0, 0] for _ in layer_of]
    for source, target in edges:
        degrees[source][0] += 1
        degrees[target][1] += 1
    layers = [*layer_of]
    bends: dict[tuple[int, int], int] = {}
    left = MAX_PASSED
    paths: dict[Edge, list[int]] = {}
    detours: list[Edge] = []
    for source, target in sorted(edges, key=lambda edge: layer_of[edge[1]] - layer_of[edge[0]]):
        passed = range(layer_of[source] + 1, layer_of[target])
        shared = source if degrees[source][0] >= degrees[target][1] else ~target
        left -= len(passed)
        if left < 0 or len(bends) + len(passed) > MAX_BENDS:
            detours.append((source, target))
            continue
        for layer in passed:
            if (shared, layer) not in bends:
                bends[shared, layer] = len(layers)
                layers.append(layer)
        paths[source, target] = [source, *(bends[shared, layer] for layer in passed), target]
    return paths, sorted(detours), layers
