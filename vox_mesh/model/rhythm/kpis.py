"""The figures by which a bar is judged. Each is `None` where there is nothing to divide by.

A *deliverable* is a task that was finished in the bar, in full or degraded. A *beat used* is one beat of the
bar in which an agent had a task: two tasks in a beat use two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from vox_mesh.model.rhythm.claims import USEFUL, ClaimState


@dataclass(frozen=True, slots=True)
class Kpis:
    """All of them, for one bar."""

    tnt: float | None = None
    bpd: float | None = None
    wr: float | None = None
    eta: float | None = None
    pmr: float | None = None
    cpd: float | None = None
    ttfu: float | None = None


def tnt(deliverables: int, bar_beats: int) -> float | None:
    """Tempo-normalised throughput: deliverables for each beat that went by, whatever its length."""
    return _ratio(deliverables, bar_beats)


def bpd(used_beats: float, deliverables: int) -> float | None:
    """Beats per deliverable: the beats used, over the deliverables."""
    return _ratio(used_beats, deliverables)


def wr(beats_by_state: Mapping[str, int]) -> float | None:
    """Wait ratio: the part of the beats used in which a task waited."""
    return _ratio(beats_by_state.get(ClaimState.WAITING, 0), sum(beats_by_state.values()))


def eta(beats_by_state: Mapping[str, int]) -> float | None:
    """Efficiency: the part of the beats used in which a task was planned, worked on, reviewed or finished."""
    useful = sum(beats for state, beats in beats_by_state.items() if state in USEFUL)
    return _ratio(useful, sum(beats_by_state.values()))


def pmr(kept: int, broken: int, expired: int) -> float | None:
    """Promise miss rate: the part of the promises that ended in the bar without having been kept."""
    return _ratio(broken + expired, kept + broken + expired)


def cpd(cost: float, deliverables: int) -> float | None:
    """Cost per deliverable: what the phrases that ended in the bar cost, over the deliverables."""
    return _ratio(cost, deliverables)


def ttfu(beats: Iterable[float]) -> float | None:
    """Time to first useful: the median of the beats from a task's beginning to the first use of it."""
    found = list(beats)
    return median(found) if found else None


def overrun_rate(overruns: int, tasks: int) -> float | None:
    """Overruns for each task of the bar, at most 1."""
    rate = _ratio(overruns, tasks)
    return None if rate is None else min(1.0, rate)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
