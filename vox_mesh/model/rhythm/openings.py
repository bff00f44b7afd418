"""Openings: when a job that is bound to the rhythm may be claimed.

Whether a binding is open follows from the tempos in force at the moment of the claim: a time computed
earlier would be wrong after a change of the tempo.
"""

from __future__ import annotations

from collections.abc import Iterable

from vox_mesh.model.rhythm.bindings import AT_DOWNBEAT, WITH_BAR, Opening, Openings, phase_in
from vox_mesh.model.rhythm.phases import PhaseSpan, spans_of_bar
from vox_mesh.model.rhythm.plan import Plan


def opening_at(plan: Plan, binding: str, at_ms: int) -> Opening | None:
    """Return the opening of a binding that contains a time; `None` if it is closed then."""
    opening = _opening_of_bar(binding, spans_of_bar(plan, at_ms))
    return opening if opening is not None and opening.begins_ms <= at_ms < opening.ends_ms else None


def next_opening_ms(plan: Plan, binding: str, at_ms: int) -> int | None:
    """Return when a binding opens next, after a time; `None` if no known bar has its phase."""
    bars_ms = [at_ms, plan.timeline.downbeat_after(at_ms)]
    bars_ms += [entry.anchor_ms for entry in plan.entries if entry.anchor_ms > bars_ms[-1]]
    openings = (_opening_of_bar(binding, spans_of_bar(plan, each)) for each in bars_ms)
    begins = (opening.begins_ms for opening in openings if opening is not None)
    return next((each for each in begins if each > at_ms), None)


def _opening_of_bar(binding: str, spans: list[PhaseSpan]) -> Opening | None:
    begins_ms, ends_ms = spans[0].begins_ms, spans[-1].ends_ms
    if binding == AT_DOWNBEAT:
        return Opening(begins_ms, ends_ms, begins_ms)
    if binding == WITH_BAR:
        return Opening(begins_ms, spans[0].ends_ms, begins_ms)
    for span in spans:
        if span.phase == phase_in(binding):
            return Opening(span.begins_ms, span.ends_ms, span.ends_ms)
    return None


def openings_at(plan: Plan, bindings: Iterable[str], at_ms: int) -> Openings:
    """Return which of these bindings are open at a time, and when the next opening begins."""
    found = {each: opening_at(plan, each, at_ms) for each in bindings}
    later = (next_opening_ms(plan, each, at_ms) for each in found)
    return Openings(
        {binding: opening for binding, opening in found.items() if opening is not None},
        min((each for each in later if each is not None), default=None),
    )
