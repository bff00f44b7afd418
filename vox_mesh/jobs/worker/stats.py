"""What a worker has done, counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from vox_mesh.model.base.histogram import LONG_S, Histogram


@dataclass(slots=True)
class WorkerStats:
    """What a worker has done since it began."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    given_back: int = 0
    refused: int = 0
    queued: Histogram = field(default_factory=lambda: Histogram(LONG_S))
    """For how many seconds jobs could have been claimed before they were started."""
    ran: Histogram = field(default_factory=lambda: Histogram(LONG_S))
    """How many seconds attempts took, however they ended."""
