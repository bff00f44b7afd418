"""Coordinates: where in its row each vertex is, close to its neighbours and without overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import floor
from typing import Final

from vox_mesh.model.jobs.graph.layers import LayeredGraph

NODE_WIDTH: Final = 176
NODE_GAP: Final = 24
BEND_GAP: Final = 12

_SWEEPS: Final = 6
_BEND_WEIGHT: Final = 1_000.0
"""Bends keep their place rather than boxes do: a long edge is as straight as it can be."""

_ALONE: Final = 0.1


class RowPlaces:
    """Places the vertices of ordered rows: `x` has their centres, at last as whole numbers."""

    def __init__(self, graph: LayeredGraph, rows: Sequence[Sequence[int]]) -> None:
        self._graph = graph
        self._rows = rows
        self._offsets = [self._spaced(row) for row in rows]
        self.x: list[float] = [0.0] * len(graph.layer_of)
        self._base = [0.0] * len(graph.layer_of)  # without the offset: in each row they never fall
        for row, offsets in zip(rows, self._offsets, strict=True):
            for vertex, offset in zip(row, offsets, strict=True):
                self.x[vertex] = offset - offsets[-1] / 2

    def steps(self) -> Iterator[None]:
        """Place the vertices; a step takes about as long as one row."""
        above, below = self._near(self._graph.above), self._near(self._graph.below)
        lines = [*zip(self._rows, self._offsets, strict=True)]
        for _ in range(_SWEEPS):
            for row, offsets in lines[1:]:
                self._place(row, offsets, [above[vertex] for vertex in row])
                yield
            for row, offsets in lines[-2::-1]:
                self._place(row, offsets, [below[vertex] for vertex in row])
                yield
        for row, offsets in lines:
            self._place(row, offsets, [[*above[vertex], *below[vertex]] for vertex in row])
            yield
        for row, offsets in lines:
            for vertex, offset in zip(row, offsets, strict=True):
                self.x[vertex] = floor(self._base[vertex]) + offset

    def _near(self, neighbours: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """Return the neighbours that count: of a bend, the bends of the same line, which stays straight."""
        size = self._graph.size
        bends = [[each for each in near if each >= size] or near for near in neighbours[size:]]
        return [*neighbours[:size], *bends]

    def _spaced(self, row: Sequence[int]) -> list[int]:
        """Return the least distances of the vertices of a row from its first one."""
        count = self._graph.size
        gaps = []
        for left, right in pairwise(row):
            boxes = (left < count) + (right < count)
            gaps.append(boxes * NODE_WIDTH // 2 + (NODE_GAP if boxes == 2 else BEND_GAP))
        return [0, *accumulate(gaps)]

    def _place(self, row: Sequence[int], offsets: Sequence[int], neighbours: Sequence[Sequence[int]]) -> None:
        """Place a row as close to the means of neighbours, by least squares, as its order allows."""
        x, count = self.x, self._graph.size
        blocks: list[tuple[float, float, int]] = []  # the mean of what they want, the weight, the length
        for vertex, offset, near in zip(row, offsets, neighbours, strict=True):
            wanted = sum([x[each] for each in near]) / len(near) if near else x[vertex]
            mean, weight, length = wanted - offset, _ALONE if not near else 1.0, 1
            if vertex >= count:
                weight = _BEND_WEIGHT
            while blocks and blocks[-1][0] >= mean:
                other, its_weight, its_length = blocks.pop()
                mean = (mean * weight + other * its_weight) / (weight + its_weight)
                weight, length = weight + its_weight, length + its_length
            blocks.append((mean, weight, length))
        start = 0
        for mean, _, length in blocks:
            for place in range(start, start + length):
                x[row[place]] = mean + offsets[place]
                self._base[row[place]] = mean
            start += length
