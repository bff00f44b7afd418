"""The order of vertices in each row, with few crossings of edges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from vox_mesh.model.jobs.graph.layers import LayeredGraph

_MAX_SWEEPS: Final = 12
_MAX_WORSE: Final = 3
"""How many sweeps in a row may improve nothing."""

Neighbours = Sequence[Sequence[int]]


class RowOrder:
    """Orders rows by the mean places of neighbours, downwards and upwards in turns, and keeps the best."""

    def __init__(self, graph: LayeredGraph) -> None:
        self._graph = graph
        self.rows = _first_order(graph)
        self._place = [0] * len(graph.layer_of)

    def steps(self) -> Iterator[None]:
        """Order the rows; a step takes about as long as one row."""
        graph, rows = self._graph, [[*row] for row in self.rows]
        for row in rows:
            self._number(row)
        fewest = yield from self._crossings(rows)
        worse = 0
        for sweep in range(_MAX_SWEEPS):
            if fewest == 0 or worse == _MAX_WORSE:
                return
            is_downward = sweep % 2 == 0
            for row in rows[1:] if is_downward else rows[-2::-1]:
                self._sort(row, graph.above if is_downward else graph.below)
                yield
            crossings = yield from self._crossings(rows)
            worse += 1
            if crossings < fewest:
                fewest, worse = crossings, 0
                self.rows = [[*row] for row in rows]

    def _number(self, row: Sequence[int]) -> None:
        for place, vertex in enumerate(row):
            self._place[vertex] = place

    def _sort(self, row: list[int], neighbours: Neighbours) -> None:
        place = self._place
        means: dict[int, float] = {}
        for vertex in row:
            near = neighbours[vertex]
            means[vertex] = sum([place[each] for each in near]) / len(near) if near else place[vertex]
        row.sort(key=means.__getitem__)
        self._number(row)

    def _crossings(self, rows: Sequence[Sequence[int]]) -> Generator[None, None, int]:
        total = 0
        for row in rows[:-1]:
            total += self._crossings_below(row)
            yield
        return total

    def _crossings_below(self, row: Sequence[int]) -> int:
        """Return the number of crossings of the edges from a row to the next one."""
        place, below = self._place, self._graph.below
        ends: list[int] = []
        crossings = 0
        for vertex in row:
            own = [place[each] for each in below[vertex]]
            for end in own:
                crossings += len(ends) - bisect_right(ends, end)
            for end in own:
                insort(ends, end)
        return crossings


def _first_order(graph: LayeredGraph) -> list[list[int]]:
    """Return the rows in the order of a walk from the top: trees have no crossings."""
    rows: list[list[int]] = [[] for _ in graph.rows()]
    seen = bytearray(len(graph.layer_of))
    starts = sorted(range(len(graph.layer_of)), key=lambda each: (bool(graph.above[each]), each))
    for start in starts:
        way = [start]
        while way:
            vertex = way.pop()
            if not seen[vertex]:
                seen[vertex] = 1
                rows[graph.layer_of[vertex]].append(vertex)
                way += _bends_amid(graph.below[vertex], graph.size)[::-1]
    return rows


def _bends_amid(vertices: Sequence[int], size: int) -> list[int]:
    """Return ordered vertices with the bends in the middle, so that the boxes are on both sides of a line."""
    boxes = bisect_left(vertices, size)
    return [*vertices[: boxes // 2], *vertices[boxes:], *vertices[boxes // 2 : boxes]]
