"""Phases are those of the mesh's bars, for everyone whose phrase begins with a bar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.rhythm.phases import PhaseSpan, own_spans, phase_of, shared_spans, spans_of_bar
from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.score import Score


def plan_of(phases: object, bpm: float = 60) -> Plan:
    """A plan of one policy, with a beat a second and bars of eight beats."""
    document = {"cluster_id": "east", "initial_bpm": bpm, "bar_len_beats": 8, "phases": phases}
    return Plan(PlanEntry.of(TempoPolicy.of_document(document)))


_PLAN = plan_of({"plan": 1, "work": 6, "review": 1})


@given(st.integers(0, 10**12), st.integers(1, 3), st.integers(1, 3), st.floats(1, 600))
def test_a_phrase_that_begins_with_a_bar_is_in_the_phase_of_the_mesh(
    at_ms: int, planned: int, reviewed: int, bpm: float
) -> None:
    phases = {"plan": planned, "work": 8 - planned - reviewed, "review": reviewed}
    plan = plan_of(phases, bpm)
    spans = shared_spans(plan, at_ms, {"plan": 2, "work": 4, "review": 2})
    assert spans == spans_of_bar(plan, at_ms)
    for span in spans:
        for moment_ms in (span.begins_ms, span.ends_ms - 1):
            assert phase_of(plan, plan.timeline.beat_at(moment_ms)) == span.phase


def test_a_phrase_of_several_bars_plans_in_its_first_and_reviews_in_its_last() -> None:
    score = Score.of_document({"phases": {"plan": 1, "work": 22, "review": 1}, "start": "downbeat"})
    beats = score.attempt(1)
    assert shared_spans(_PLAN, 8_500, beats) == [
        PhaseSpan("plan", 8_000, 9_000),
        PhaseSpan("work", 9_000, 31_000),
        PhaseSpan("review", 31_000, 32_000),
    ]


@pytest.mark.parametrize(
    ("phases", "beats"),
    [
        (["sense", "act"], {"plan": 2, "work": 4, "review": 2}),
        (["plan", "work", "review"], {"plan": 1, "work": 2, "review": 1}),
    ],
    ids=["bars with other phases", "less than a bar"],
)
def test_phases_that_can_not_be_shared_are_counted_from_the_downbeat(
    phases: list[str], beats: dict[str, float]
) -> None:
    assert shared_spans(plan_of(phases), 9_999, beats) == own_spans(_PLAN.timeline, 8_000, beats)
