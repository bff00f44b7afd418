"""Liveness: the state of a node by the number of heartbeats it has missed."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class NodeState(StrEnum):
    """The state of a node, from the best to the worst; `left` is a clean end."""

    ALIVE = "alive"
    WARN = "warn"
    ALERT = "alert"
    CRITICAL = "critical"
    DEAD = "dead"
    LEFT = "left"


_LEVELS: Final = ((10, NodeState.DEAD), (5, NodeState.CRITICAL), (3, NodeState.ALERT), (1, NodeState.WARN))
_TOLERANCE: Final = 0.5  # of a tick: ticks are jittered, and take time to arrive

DEAD_AFTER_TICKS: Final = _LEVELS[0][0] + _TOLERANCE
"""A node that was silent for this many ticks counts as dead."""


def missed_ticks(silent_ms: int, tick_ms: int) -> int:
    """Return how many ticks are missing."""
    return max(0, int(silent_ms / tick_ms - _TOLERANCE))


def state_of(silent_ms: int, tick_ms: int, *, has_left: bool) -> NodeState:
    """Return the state of a node by its silence."""
    if has_left:
        return NodeState.LEFT
    missed = missed_ticks(silent_ms, tick_ms)
    return next((state for ticks, state in _LEVELS if missed >= ticks), NodeState.ALIVE)
