"""Liveness: the state of a node by its missed heartbeats, its health checks and its vital signs."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from vox_mesh.model.base.histogram import Histogram


class NodeState(StrEnum):
    """The state of a node, from the best to the worst; `left` is a clean end."""

    ALIVE = "alive"
    WARN = "warn"
    ALERT = "alert"
    CRITICAL = "critical"
    DEAD = "dead"
    LEFT = "left"


REMOVE_NODE: Final = "RemoveNode"
"""The op by which a node that has died or left is removed from the membership."""

_LEVELS: Final = ((10, NodeState.DEAD), (5, NodeState.CRITICAL), (3, NodeState.ALERT), (1, NodeState.WARN))
_TOLERANCE: Final = 0.5  # of a tick: ticks are jittered, and take time to arrive

DEAD_AFTER_TICKS: Final = _LEVELS[0][0] + _TOLERANCE
"""A node that was silent for this many ticks counts as dead."""

STALE_MS: Final = 60_000
"""How long a node may have been silent and still count as live."""


def missed_ticks(silent_ms: int, tick_ms: int, spare_ms: int = 0) -> int:
    """Return how many ticks are missing of a node whose heartbeats may take so much longer than a tick."""
    silent_ms -= spare_ms
    return max(0, int(silent_ms / tick_ms - _TOLERANCE))


def state_of(silent_ms: int, tick_ms: int, spare_ms: int = 0, *, has_left: bool) -> NodeState:
    """Return the state of a node by its silence."""
    if has_left:
        return NodeState.LEFT
    missed = missed_ticks(silent_ms, tick_ms, spare_ms)
    return next((state for ticks, state in _LEVELS if missed >= ticks), NodeState.ALIVE)


_BEATS_OF_ALL: Final = 3
"""How many heartbeats all idle nodes of a mesh may send in a tick."""

_MAX_TICKS: Final = 16
"""How many ticks an idle node may take to its next heartbeat: its death is noticed so much later."""


def spare_ticks(nodes: int) -> float:
    """Return how many ticks longer than one an idle node of such a mesh may take to its next heartbeat.

    Each heartbeat goes to the replicas of all nodes. So an idle mesh sends a number that does not depend on
    the number of its nodes, up to 48 of them.
    """
    return min(max(1.0, nodes / _BEATS_OF_ALL), _MAX_TICKS) - 1.0


class HealthCheck(NamedTuple):
    """One condition for a node to be healthy; if it fails, `detail` says why."""

    name: str
    is_ok: bool
    detail: str = ""


class Vitals(NamedTuple):
    """The vital signs that a node reports with its heartbeats."""

    written: int = 0
    waiting: int = 0
    replica_lag_ms: int | None = None
    cpu_utilisation: float | None = None
    gpu_utilisation: float | None = None
    faults: tuple[str, ...] = ()


class ServiceFigures(NamedTuple):
    """What a node's service knows of itself: open streams of events, and how long requests take."""

    streams: int
    seconds: Histogram
