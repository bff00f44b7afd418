"""Tallies: sums over the jobs that ended in a bar and have no record of their own in the rhythm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_STEPS: Final = 16  # the classes of delays within a doubling: each is about 4 % wide


class CountedJob(NamedTuple):
    """The counted figures of a job that has ended."""

    kind: str
    began_ms: int
    ended_ms: int
    is_done: bool
    is_scored: bool
    cpu_s: float | None = None
    mem_gbs: float | None = None
    io_mb: float | None = None


@dataclass(slots=True)
class Tally:
    """The sums over the jobs of an agent that ended in one bar."""

    done: int = 0
    failed: int = 0
    done_beats: int = 0
    failed_beats: int = 0
    bu_by_kind: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    mem_gbs: float = 0.0
    io_mb: float = 0.0
    delays: dict[int, int] = field(default_factory=dict)
    """How many jobs were done after how long, by the class of their delay."""

    def add(self, job: CountedJob, used_beats: int, bu: float) -> None:
        """Count a job, the beats in which it ran, and the beats that it took."""
        if job.is_done:
            self.done += 1
            self.done_beats += used_beats
            delay = delay_class(job.ended_ms - job.began_ms)
            self.delays[delay] = self.delays.get(delay, 0) + 1
        else:
            self.failed += 1
            self.failed_beats += used_beats
        self.bu_by_kind[job.kind] = self.bu_by_kind.get(job.kind, 0.0) + bu
        self.cpu_s += job.cpu_s or 0.0
        self.mem_gbs += job.mem_gbs or 0.0
        self.io_mb += job.io_mb or 0.0


def delay_class(delay_ms: int) -> int:
    """Return the class of a delay."""
    return round(_STEPS * math.log2(max(0, delay_ms) + 1))


def delays_ms(counts: Iterable[Mapping[str, int]]) -> Iterator[float]:
    """Yield the delay of each counted job, within 3 %."""
    for each in counts:
        for delay, count in each.items():
            delay_ms = 2.0 ** (int(delay) / _STEPS) - 1
            yield from (delay_ms for _ in range(count))
