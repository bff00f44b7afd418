"""Counters and histograms of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from vox_mesh.model.base.histogram import LONG_S, Histogram


@dataclass(slots=True)
class WorkerStats:
    """The counters of a worker since its process started."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    given_back: int = 0
    refused: int = 0
    queued: Histogram = field(default_factory=lambda: Histogram(LONG_S))
    """Seconds from when a job was ready until it started."""
    ran: Histogram = field(default_factory=lambda: Histogram(LONG_S))
    """Seconds per attempt, whatever its result."""
