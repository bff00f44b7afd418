"""Liveness: what this many missed ticks mean, at the exact borders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import few
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, NodeState, missed_ticks, state_of

BETTER_FIRST = [NodeState.ALIVE, NodeState.WARN, NodeState.ALERT, NodeState.CRITICAL, NodeState.DEAD]


@pytest.mark.parametrize(
    ("silent_ms", "missed", "state"),
    [
        (-5_000, 0, NodeState.ALIVE),
        (0, 0, NodeState.ALIVE),
        (5_000, 0, NodeState.ALIVE),
        (7_499, 0, NodeState.ALIVE),
        (7_500, 1, NodeState.WARN),
        (12_500, 2, NodeState.WARN),
        (17_499, 2, NodeState.WARN),
        (17_500, 3, NodeState.ALERT),
        (22_500, 4, NodeState.ALERT),
        (27_499, 4, NodeState.ALERT),
        (27_500, 5, NodeState.CRITICAL),
        (47_500, 9, NodeState.CRITICAL),
        (52_499, 9, NodeState.CRITICAL),
        (52_500, 10, NodeState.DEAD),
        (10**12, 199_999_999, NodeState.DEAD),
    ],
)
def test_a_node_that_ticks_every_5_s(silent_ms: int, missed: int, state: NodeState) -> None:
    """A tick is missed once it is half a tick late."""
    assert missed_ticks(silent_ms, 5_000) == missed
    assert state_of(silent_ms, 5_000, has_left=False) is state


@few
@given(
    st.integers(1, 3_600_000),
    st.sampled_from(
        [(1, NodeState.WARN), (3, NodeState.ALERT), (5, NodeState.CRITICAL), (10, NodeState.DEAD)]
    ),
)
def test_the_borders_lie_half_a_tick_after_the_missed_one_for_any_tick(
    tick_ms: int, level: tuple[int, NodeState]
) -> None:
    ticks, state = level
    border = -(-tick_ms * (2 * ticks + 1) // 2)  # the first whole millisecond that is not before it
    assert state_of(border, tick_ms, has_left=False) is state
    before = BETTER_FIRST[BETTER_FIRST.index(state) - 1]
    if tick_ms > 1:
        assert state_of(border - 1, tick_ms, has_left=False) is before


@few
@given(st.integers(1, 3_600_000), st.integers(0, 10**9), st.integers(0, 10**9))
def test_longer_silence_is_never_better(tick_ms: int, silent_ms: int, more_ms: int) -> None:
    sooner = state_of(silent_ms, tick_ms, has_left=False)
    later = state_of(silent_ms + more_ms, tick_ms, has_left=False)
    assert BETTER_FIRST.index(sooner) <= BETTER_FIRST.index(later)


@few
@given(st.integers(1, 3_600_000), st.integers(0, 10**8))
def test_dead_is_what_the_database_takes_for_dead(tick_ms: int, silent_ms: int) -> None:
    """A place in use is refused as long as its last tick is later than this many ticks ago."""
    is_dead = state_of(silent_ms, tick_ms, has_left=False) is NodeState.DEAD
    assert is_dead is (not -silent_ms > -DEAD_AFTER_TICKS * tick_ms)


@pytest.mark.parametrize("silent_ms", [0, 7_500, 10**9])
def test_a_node_that_left_has_left_however_long_ago(silent_ms: int) -> None:
    assert state_of(silent_ms, 5_000, has_left=True) is NodeState.LEFT
