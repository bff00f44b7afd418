"""Membership: a live node is never reported dead, and a dead one always is.

That a node was alive, ran and reached the database shows in its small writes. So does that an observer was up
to date: a read shows at least everything committed before the reader's own writes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from proof.checkers.incarnations import Incarnation, incarnations_of, pace_of, writes_of
from proof.final_state import final_rows
from proof.history import Event, History
from proof.losses import Losses
from proof.verdicts import Check
from vox_mesh.model.nodes.liveness import NodeState

_LIVELY_TICKS: Final = 3.0
"""A node that writes at least once in this many ticks is up, and reaches the database."""

_DEAD_TICKS: Final = 10.5
_LATE_TICKS: Final = 1.5
"""What is promised for a silence of this many ticks, independent of the product's own rules."""

_FROM_BEST: Final = tuple(NodeState)

Writes = Sequence[tuple[float, float]]


def live_never_dead(history: History) -> Iterator[str | int]:
    """A node that wrote all the time is not reported dead by one that did so too."""
    pace = pace_of(history)
    if pace is None:
        return
    dead_s, lively_s = _DEAD_TICKS * pace.tick_s, _LIVELY_TICKS * pace.tick_s
    nodes = {incarnation.node_id: incarnation.node for incarnation in incarnations_of(history)}
    writes = writes_of(history)
    losses = Losses(history)
    for look in _up_to_date(history, writes, lively_s):
        since = look.data["since"]
        if losses.touches(since - dead_s, look.at):
            continue  # its heartbeats may be lost
        for node_id, state in look.data["states"].items():
            own = writes.get(nodes.get(node_id, ""), ())
            if _is_lively(own, since - dead_s, since - lively_s, lively_s):
                yield 1
                if state == NodeState.DEAD:
                    yield f"{look.who} saw {node_id} as dead at {look.at:.3f}, while it wrote all the time"


def _up_to_date(history: History, writes: dict[str, Writes], within_s: float) -> Iterator[Event]:
    """Return the observations of nodes that had written just before."""
    for look in history.notes("nodes.seen"):
        own, since = writes.get(look.who, ()), look.data["since"]
        last = bisect_right(own, since, key=lambda write: write[1]) - 1
        if last >= 0 and own[last][0] >= since - within_s:
            yield look


def _is_lively(writes: Writes, since: float, until: float, gap_s: float) -> bool:
    """Return whether there was a write in every interval of this length."""
    at = since
    for began, ended in writes[bisect_left(writes, since, key=lambda write: write[1]) :]:
        if began < since:
            continue
        if ended - at > gap_s:
            return False
        at = ended
        if at >= until:
            return True
    return False


def dead_told(history: History) -> Iterator[str | int]:
    """A node that has ended, and is not back, is reported late, and in the end dead or left."""
    pace = pace_of(history)
    if pace is None:
        return
    lively_s = _LIVELY_TICKS * pace.tick_s
    margin_s = lively_s + pace.ttl_s  # for operations in progress when it ended
    writes, incarnations = writes_of(history), incarnations_of(history)
    looks = list(_up_to_date(history, writes, lively_s))
    left = {row["node_id"]: row["left_ms"] for row in final_rows(history, "mesh_heartbeats")}
    losses = Losses(history)
    spare_s = max((note.data["spare_s"] for note in history.notes("spares.pace")), default=0.0)
    for incarnation, again in _gone(incarnations, writes):
        if losses.touches(incarnation.began, incarnation.ended):
            continue  # its membership may be lost
        for look in looks:
            silent_s = look.data["since"] - incarnation.ended - margin_s - spare_s
            least = least_state(silent_s / pace.tick_s)
            is_gone = look.at < again and least is not NodeState.ALIVE
            if is_gone and _is_lively(
                writes[look.who], incarnation.ended, look.data["since"] - lively_s, lively_s
            ):
                yield 1
                state = look.data["states"].get(incarnation.node_id)
                if not is_as_bad(state, least, incarnation):
                    ended = f"{incarnation.how} at {incarnation.ended:.3f}"
                    yield f"{look.who} saw {incarnation} as {state} at {look.at:.3f}: {ended}"
        if incarnation.how == "killed" and again == math.inf and left.get(incarnation.node_id) is not None:
            yield f"{incarnation} was killed, and is said to have left"


def _gone(
    incarnations: Sequence[Incarnation], writes: dict[str, Writes]
) -> Iterator[tuple[Incarnation, float]]:
    """Yield the incarnations that have ended and were visible to others, and when the node came back."""
    for at, incarnation in enumerate(incarnations):
        own = writes.get(incarnation.node, ())
        if incarnation.how and any(
            incarnation.up <= began and ended <= incarnation.ended for began, ended in own
        ):
            yield (
                incarnation,
                next(
                    (each.began for each in incarnations[at + 1 :] if each.node_id == incarnation.node_id),
                    math.inf,
                ),
            )


def least_state(silent_ticks: float) -> NodeState:
    """Return the minimum state of a node that is silent for this many ticks."""
    if silent_ticks < _LATE_TICKS:
        return NodeState.ALIVE
    return NodeState.WARN if silent_ticks < _DEAD_TICKS else NodeState.DEAD


def is_as_bad(state: str | None, least: NodeState, incarnation: Incarnation) -> bool:
    """Return whether a state is at least as bad as that; a killed node can't have left."""
    if state is None or (state == NodeState.LEFT and incarnation.how == "killed"):
        return False
    return _FROM_BEST.index(NodeState(state)) >= _FROM_BEST.index(least)


LIVENESS_CHECKS: Final = (
    Check(
        "live-never-dead",
        "a live node that reaches the database is not reported dead",
        live_never_dead,
    ),
    Check("dead-told", "a node that was killed and stays down is reported late, and then dead", dead_told),
)
