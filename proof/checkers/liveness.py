"""Nodes: who lives is never told as dead, and who is dead always.

That a player lived, could run and reached the database is seen by what it did: its small writes went through.
So is that who looked was up to date: a read shows at least what was committed before the reader's own writes.
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
"""Whoever writes at least once in so many ticks is up, and reaches the database."""

_DEAD_TICKS: Final = 10.5
_LATE_TICKS: Final = 1.5
"""What is promised of a silence of so long, whatever the product makes of it."""

_FROM_BEST: Final = tuple(NodeState)

Writes = Sequence[tuple[float, float]]


def live_never_dead(history: History) -> Iterator[str | int]:
    """A node that wrote all the time is not told as dead by one that did so too."""
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
            continue  # its heartbeats may be gone
        for node_id, state in look.data["states"].items():
            own = writes.get(nodes.get(node_id, ""), ())
            if _is_lively(own, since - dead_s, since - lively_s, lively_s):
                yield 1
                if state == NodeState.DEAD:
                    yield f"{look.who} saw {node_id} as dead at {look.at:.3f}, while it wrote all the time"


def _up_to_date(history: History, writes: dict[str, Writes], within_s: float) -> Iterator[Event]:
    """The looks of those who had written just before."""
    for look in history.notes("nodes.seen"):
        own, since = writes.get(look.who, ()), look.data["since"]
        last = bisect_right(own, since, key=lambda write: write[1]) - 1
        if last >= 0 and own[last][0] >= since - within_s:
            yield look


def _is_lively(writes: Writes, since: float, until: float, gap_s: float) -> bool:
    """Whether there was a write in every gap of so long."""
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
    """A node that has ended, and is not back, is told as late, and in the end as dead, or as having left."""
    pace = pace_of(history)
    if pace is None:
        return
    lively_s = _LIVELY_TICKS * pace.tick_s
    margin_s = lively_s + pace.ttl_s  # for what was under way when it ended
    writes, incarnations = writes_of(history), incarnations_of(history)
    looks = list(_up_to_date(history, writes, lively_s))
    left = {row["node_id"]: row["left_ms"] for row in final_rows(history, "mesh_heartbeats")}
    losses = Losses(history)
    for incarnation, again in _gone(incarnations, writes):
        if losses.touches(incarnation.began, incarnation.ended):
            continue  # that it was there may not be known any more
        for look in looks:
            silent_s = look.data["since"] - incarnation.ended - margin_s
            least = _least(silent_s / pace.tick_s)
            is_gone = look.at < again and least is not NodeState.ALIVE
            if is_gone and _is_lively(
                writes[look.who], incarnation.ended, look.data["since"] - lively_s, lively_s
            ):
                yield 1
                state = look.data["states"].get(incarnation.node_id)
                if not _is_as_bad(state, least, incarnation):
                    ended = f"{incarnation.how} at {incarnation.ended:.3f}"
                    yield f"{look.who} saw {incarnation} as {state} at {look.at:.3f}: {ended}"
        if incarnation.how == "killed" and again == math.inf and left.get(incarnation.node_id) is not None:
            yield f"{incarnation} was killed, and is said to have left"


def _gone(
    incarnations: Sequence[Incarnation], writes: dict[str, Writes]
) -> Iterator[tuple[Incarnation, float]]:
    """The lives that have ended and of which others can know, and when the node came again."""
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


def _least(silent_ticks: float) -> NodeState:
    """As what a node that is silent for so long must be told at least."""
    if silent_ticks < _LATE_TICKS:
        return NodeState.ALIVE
    return NodeState.WARN if silent_ticks < _DEAD_TICKS else NodeState.DEAD


def _is_as_bad(state: str | None, least: NodeState, incarnation: Incarnation) -> bool:
    """Whether a node is told to stand at least as badly as that; only one that was killed can't have left."""
    if state is None or (state == NodeState.LEFT and incarnation.how == "killed"):
        return False
    return _FROM_BEST.index(NodeState(state)) >= _FROM_BEST.index(least)


LIVENESS_CHECKS: Final = (
    Check(
        "live-never-dead", "a node that lives and reaches the database is not told as dead", live_never_dead
    ),
    Check("dead-told", "a node that was killed and stays away is told as late, and then as dead", dead_told),
)
