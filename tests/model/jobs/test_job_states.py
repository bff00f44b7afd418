"""The states of jobs: the rules are what the documentation draws, and have no gaps of their own."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.jobs.drawing import drawn
from vox_mesh.model.jobs.records import (
    ENDS,
    HELD,
    JOB_OPS,
    MAX_BACKOFF_MS,
    TRANSITIONS,
    JobState,
    Transition,
    backoff_ms,
    is_legal,
)

_DRAWING = drawn()


def test_the_drawing_shows_all_transitions_and_no_others() -> None:
    assert {Transition(*arrow[:3]) for arrow in _DRAWING.arrows} == TRANSITIONS


def test_the_drawing_ends_where_the_rules_do() -> None:
    assert _DRAWING.ends == ENDS


def test_the_drawing_uses_every_op_and_every_state() -> None:
    assert {arrow.op for arrow in _DRAWING.arrows} == set(JOB_OPS)
    assert {arrow.target for arrow in _DRAWING.arrows} == set(JobState)


def test_what_is_not_drawn_is_not_legal() -> None:
    legal = {arrow[:3] for arrow in _DRAWING.arrows}
    for op, source, target in product(JOB_OPS, (None, *JobState), JobState):
        assert is_legal(op, source, target) == ((op, source, target) in legal), (op, source, target)


def test_nothing_leaves_a_terminal_state() -> None:
    assert [each for each in TRANSITIONS if each.source in ENDS] == []
    assert [state for state in JobState if state.is_end] == [state for state in JobState if state in ENDS]


def test_every_state_can_be_reached_and_every_one_before_the_end_can_be_left() -> None:
    reached: set[JobState | None] = {None}
    while more := {each.target for each in TRANSITIONS if each.source in reached} - reached:
        reached |= more
    assert reached == {None, *JobState}
    assert {each.source for each in TRANSITIONS} == {None, *JobState} - ENDS


def test_only_those_in_hand_can_be_started_completed_yielded_or_expired() -> None:
    own = {(arrow.op, arrow.source) for arrow in _DRAWING.arrows if not arrow.is_of_predecessor}
    for op in ("StartWork", "CompleteJob", "YieldWork", "ExpireWork"):
        assert {source for name, source in own if name == op} <= HELD


@given(base=st.integers(0, 86_400_000), failures=st.integers(1, 100), chance=st.floats(0, 1))
def test_backoff_grows_to_a_bound_and_never_falls_below_three_quarters(
    base: int, failures: int, chance: float
) -> None:
    longest = min(base * 2 ** (failures - 1), max(base, MAX_BACKOFF_MS))
    assert round(0.75 * longest) <= backoff_ms(base, failures, chance) <= longest


@pytest.mark.parametrize("failures", range(1, 20))
def test_backoff_doubles_with_each_failure_up_to_its_bound(failures: int) -> None:
    assert backoff_ms(1_000, failures, 1.0) == min(1_000 * 2 ** (failures - 1), MAX_BACKOFF_MS)
