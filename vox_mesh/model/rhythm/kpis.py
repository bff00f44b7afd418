"""The key figures of a bar. Each is `None` where the divisor is 0.

A *deliverable* is a task finished in the bar, in full or degraded. A *beat used* is one beat of the bar in
which an agent had a task: two tasks in a beat use two.
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
    """Return the tempo-normalised throughput: deliverables per beat elapsed."""
    return _ratio(deliverables, bar_beats)


def bpd(used_beats: float, deliverables: int) -> float | None:
    """Return the beats per deliverable."""
    return _ratio(used_beats, deliverables)


def wr(beats_by_state: Mapping[str, int]) -> float | None:
    """Return the wait ratio: the share of used beats in which a task waited."""
    return _ratio(beats_by_state.get(ClaimState.WAITING, 0), sum(beats_by_state.values()))


def eta(beats_by_state: Mapping[str, int]) -> float | None:
    """Return the efficiency: the share of used beats spent planning, working, reviewing or finishing."""
    useful = sum(beats for state, beats in beats_by_state.items() if state in USEFUL)
    return _ratio(useful, sum(beats_by_state.values()))


def pmr(kept: int, broken: int, expired: int) -> float | None:
    """Return the promise miss rate: the share of promises ended in the bar that were not kept."""
    return _ratio(broken + expired, kept + broken + expired)


def cpd(cost: float, deliverables: int) -> float | None:
    """Return the cost per deliverable, of the phrases ended in the bar."""
    return _ratio(cost, deliverables)


def ttfu(beats: Iterable[float]) -> float | None:
    """Return the time to first useful result: the median of beats since the task's beginning."""
    found = list(beats)
    return median(found) if found else None


def overrun_rate(overruns: int, tasks: int) -> float | None:
    """Return the overruns per task of the bar, at most 1."""
    rate = _ratio(overruns, tasks)
    return None if rate is None else min(1.0, rate)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
