"""Histograms and counts that parts of a process keep for the metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

OTHER: Final = "other"
"""The label of everything that is not counted by name."""

QUICK_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds in seconds, for what mostly takes milliseconds."""

LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0)
"""Bounds in seconds, for what may take up to an hour."""

FEW: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Bounds for batch sizes."""


class Histogram:
    """Count values by bounds: how many were at most as large as each, and their sum."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value; a negative one, as caused by clocks that disagree, counts as zero."""
        if value < 0.0:
            value = 0.0
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Return the number of values."""
        return sum(self._counts)

    @property
    def buckets(self) -> Iterator[tuple[float, int]]:
        """Yield each bound and how many values were at most that, up to infinity."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            yield bound, total


class Counts(dict[str, int]):
    """Count events by label, up to `max_labels` labels; all later ones are counted as `OTHER`."""

    def __init__(self, max_labels: int = 256) -> None:
        super().__init__()
        self._max_labels = max_labels

    def __missing__(self, label: str) -> int:
        return 0

    def add(self, label: str, count: int = 1) -> None:
        """Count events of a label."""
        if label not in self and len(self) >= self._max_labels:
            label = OTHER
        self[label] += count
