"""What the judge of beats finds, and what it has nothing against."""

from __future__ import annotations

import pytest

from proof.checkers.beats import BEAT_CHECKS
from tests.proof.checkers.story import Story, faults

_BAR_MS = 1_000


def _with_beats(*beats: tuple[int, int], policy: str = "p") -> Story:
    """Downbeats, each with what the node's clock showed; a second passes from one to the next."""
    story = Story()
    for epoch_ms, now_ms in beats:
        story.node("ada").note(
            "beat.down", epoch_ms=epoch_ms, now_ms=now_ms, bar_ms=_BAR_MS, policy=policy, is_set=True
        )
    return story


def test_beats_of_two_lives_and_of_a_clock_that_was_set_back_are_all_right() -> None:
    story = _with_beats((1_000, 1_000), (2_000, 2_000), (3_000, 3_100), (9_000, 9_100), (4_000, 4_100))
    beats = story.events
    del beats[3]
    beats[-1].data.update(epoch_ms=2_000, now_ms=2_050)  # by more than a bar: beats are reported again
    again = {"epoch_ms": 2_000, "now_ms": 2_000, "bar_ms": _BAR_MS, "policy": "p", "is_set": True}
    story.node("ada", incarnation=2).note("beat.down", **again)
    assert faults(BEAT_CHECKS, "downbeats-once", story) == []


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ((1_000, 2_000), "downbeat 1000 was reported at 2.000, after 1000"),
        ((3_000, 2_000), "came 3000"),
        ((2_500, 2_000), "came 2500"),
    ],
)
def test_a_downbeat_that_is_reported_twice_left_out_or_no_downbeat_is_found(
    second: tuple[int, int], fault: str
) -> None:
    assert fault in faults(BEAT_CHECKS, "downbeats-once", _with_beats((1_000, 1_000), second))[0]


def test_a_bar_without_a_report_is_found() -> None:
    story = _with_beats((1_000, 1_000))
    for window_ms, until_ms, revision in (
        (0, 3_000, 1),
        (1_000, 2_000, 1),
        (1_000, 2_000, 2),
        (3_000, 4_000, 1),
    ):
        story.final("bar_reports", window_ms=window_ms, until_ms=until_ms, revision=revision)
    assert faults(BEAT_CHECKS, "downbeats-once", story) == []
    story.final("bar_reports", window_ms=5_000, until_ms=6_000, revision=1)
    assert "from 4000 to 5000" in faults(BEAT_CHECKS, "downbeats-once", story)[0]
