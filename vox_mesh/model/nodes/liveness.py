"""Liveness: what a node's silence means, counted in ticks that did not come."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class NodeState(StrEnum):
    """How a node stands, from the best to the worst; `left` is a clean end."""

    ALIVE = "alive"
    WARN = "warn"
    ALERT = "alert"
    CRITICAL = "critical"
    DEAD = "dead"
    LEFT = "left"


_LEVELS: Final = ((10, NodeState.DEAD), (5, NodeState.CRITICAL), (3, NodeState.ALERT), (1, NodeState.WARN))
_PATIENCE: Final = 0.5  # of a tick: they are jittered, and take their time to arrive

DEAD_AFTER_TICKS: Final = _LEVELS[0][0] + _PATIENCE
"""A node that was silent for so many ticks is taken for dead."""


def missed_ticks(silent_ms: int, tick_ms: int) -> int:
    """How many ticks should have come and did not."""
    return max(0, int(silent_ms / tick_ms - _PATIENCE))


def state_of(silent_ms: int, tick_ms: int, *, has_left: bool) -> NodeState:
    """What a node's silence means."""
    if has_left:
        return NodeState.LEFT
    missed = missed_ticks(silent_ms, tick_ms)
    return next((state for ticks, state in _LEVELS if missed >= ticks), NodeState.ALIVE)
