"""Phases: the phase that a beat belongs to, the same for every node and every agent.

The phases of a bar are those of the policy in force when the bar begins. A phrase that begins with a bar
shares them: it plans while the mesh plans, and reviews while the mesh reviews. A phrase that begins at any
time counts its phases from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.model.rhythm.tempo import Beat, Timeline, Until


class PhaseSpan(NamedTuple):
    """A phase of a bar or of a phrase, from its beginning until its end at the latest."""

    phase: str
    begins_ms: int
    ends_ms: int


def phase_of(plan: Plan, beat: Beat) -> str:
    """Return the phase of a beat."""
    return plan.at(beat.window_ms).policy.phase_at(beat.index)


def spans_of_bar(plan: Plan, at_ms: int) -> list[PhaseSpan]:
    """Return the phases of the bar that contains a time."""
    beat = plan.timeline.beat_at(at_ms)
    phases = plan.at(beat.window_ms).policy.phase_beats
    ends = [beat.window_ms + beats * beat.beat_ms for beats in accumulate(phases.values())]
    return [PhaseSpan(*each) for each in zip(phases, (beat.window_ms, *ends), ends, strict=False)]


def boundary_ms(plan: Plan, until: Until, at_ms: int) -> int:
    """Return when the phase or bar that contains a time ends."""
    spans = spans_of_bar(plan, at_ms)
    if until is Until.BAR:
        return spans[-1].ends_ms
    return next(span.ends_ms for span in spans if at_ms < span.ends_ms)


def shared_spans(plan: Plan, at_ms: int, beats: Mapping[str, float]) -> list[PhaseSpan]:
    """Return the phases of a phrase that begins with the bar that contains a time.

    If its beats fill whole bars, it has the first phase of its first bar, the last phase of its last bar, and
    all between them for the others: how it divides its beats is only a hint. If they do not, or if the bars
    have other phases, its own phases are counted from the downbeat.
    """
    beat = plan.timeline.beat_at(at_ms)
    bars, rest = divmod(sum(beats.values()), beat.bar_len)
    first = spans_of_bar(plan, at_ms)
    last = spans_of_bar(plan, plan.timeline.downbeat_after(at_ms, max(0, int(bars) - 1)))
    if rest or not bars or any([span.phase for span in bar] != [*beats] for bar in (first, last)):
        return own_spans(plan.timeline, beat.window_ms, beats)
    begins = [*(span.begins_ms for span in first[:-1]), last[-1].begins_ms]
    ends = [*begins[1:], last[-1].ends_ms]
    return [PhaseSpan(*each) for each in zip(beats, begins, ends, strict=True)]


def own_spans(timeline: Timeline, began_ms: int, beats: Mapping[str, float]) -> list[PhaseSpan]:
    """Return the phases of a phrase that begins at a time, one after the other."""
    ends = [timeline.after(began_ms, count) for count in accumulate(beats.values())]
    return [PhaseSpan(*each) for each in zip(beats, (began_ms, *ends), ends, strict=False)]
