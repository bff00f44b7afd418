"""What the judge of phases finds, and what it has nothing against."""

from __future__ import annotations

import pytest

from proof.checkers.phases import PHASE_CHECKS
from tests.proof.checkers.story import Story, faults


def _story(binding: str, claimed_ms: int, *, phase: str = "work") -> Story:
    """A job that is scheduled in the first bar of four seconds and claimed, and a beat that two nodes saw."""
    story = Story()
    for who, seen in (("ada", "work"), ("bob", phase)):
        story.node(who).note("beat.phase", epoch_ms=1_000, beat_ms=1_000, policy="p", phase=seen)
    story.final("jobs", job_id="j", binding=binding, created_ms=500)
    for at_ms, state in ((500, "pending"), (claimed_ms, "claimed"), (claimed_ms + 9_000, "claimed")):
        story.final("proof_job_moves", job_id="j", at_ms=at_ms, state=state, deed="update")
    return story


@pytest.mark.parametrize(
    ("binding", "claimed_ms"),
    [("during:plan", 4_999), ("during:work", 2_999), ("during:review", 3_000), ("downbeat", 4_000)],
)
def test_a_claim_in_its_part_of_the_bar_is_right(binding: str, claimed_ms: int) -> None:
    assert faults(PHASE_CHECKS, "shared-phases", _story(binding, claimed_ms)) == []


@pytest.mark.parametrize(
    ("binding", "claimed_ms", "phase", "fault"),
    [
        ("during:plan", 5_000, "work", "was claimed at 5000, in work"),
        ("during:review", 2_999, "work", "was claimed at 2999, in work"),
        ("downbeat", 3_999, "work", "in the bar in which it was scheduled"),
        ("downbeat", 4_000, "plan", "beat 1000 is plan for bob, and work for another node"),
    ],
)
def test_a_claim_elsewhere_and_nodes_that_differ_are_found(
    binding: str, claimed_ms: int, phase: str, fault: str
) -> None:
    assert fault in faults(PHASE_CHECKS, "shared-phases", _story(binding, claimed_ms, phase=phase))[0]
