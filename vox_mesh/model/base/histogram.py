"""Tallies: what a part of a process counts of its own work, for whoever measures it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

OTHER: Final = "other"
"""What stands for all that is not told by its name."""

QUICK_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds in seconds, for what mostly takes but a moment."""

LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0)
"""Bounds in seconds, for what may also take an hour."""

FEW: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Bounds for numbers of things that go together."""


class Histogram:
    """How values are spread: how many were at most as large as each of some bounds, and their sum."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value; one below zero, as clocks that disagree make it, is a zero."""
        if value < 0.0:
            value = 0.0
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    @property
    def buckets(self) -> Iterator[tuple[float, int]]:
        """Each bound and how many values were at most that, up to infinity."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            yield bound, total


class Counts(dict[str, int]):
    """How often something happened, by a label; of so many labels, and all that come later together."""

    def __init__(self, most: int = 256) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, label: str) -> int:
        return 0

    def add(self, label: str, count: int = 1) -> None:
        """Count what happened."""
        if label not in self and len(self) >= self._most:
            label = OTHER
        self[label] += count
