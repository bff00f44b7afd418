"""Nodes that let ticks pass: others give them the time that they have announced, and no more.

That a node lives shows in its own observations. Judged are runs in which nodes are killed or leave, and
nothing else is wrong: then nothing delays a heartbeat.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from proof.checkers.incarnations import Incarnation, incarnations_of
from proof.checkers.liveness import is_as_bad, least_state
from proof.history import Event, History
from proof.verdicts import Check
from vox_mesh.model.nodes.liveness import NodeState

SPARES_PACE: Final = "spares.pace"
SPARES_SEEN: Final = "spares.seen"

_HARMLESS: Final = frozenset({"kill", "leave"})
_LIVELY_TICKS: Final = 2.0
"""A node that looks at the others at least once in this many ticks is up."""

_MARGIN_TICKS: Final = 2.0
"""For a heartbeat in progress when its node ended."""

_GOOD: Final = frozenset({NodeState.ALIVE, NodeState.WARN})

Looks = Mapping[str, Sequence[float]]


def spares_kept(history: History) -> Iterator[str | int]:
    """A node that sends heartbeats as it has announced is not reported as late, and a dead one is."""
    paces = history.notes(SPARES_PACE)
    if not paces or not _HARMLESS.issuperset(note.data["kind"] for note in history.notes("fault.began")):
        return
    tick_s, spare_s = paces[0].data["tick_s"], paces[0].data["spare_s"]
    incarnations = incarnations_of(history)
    looks: dict[str, list[float]] = defaultdict(list)
    for note in history.notes(SPARES_SEEN):
        looks[note.who].append(note.data["since"])
    for look in history.notes(SPARES_SEEN):
        yield from _living(look, incarnations, looks, _LIVELY_TICKS * tick_s)
        yield from _killed(look, incarnations, tick_s, spare_s)


def _living(
    look: Event, incarnations: Sequence[Incarnation], looks: Looks, lively_s: float
) -> Iterator[str | int]:
    """Judge what was seen of nodes that looked shortly before and after."""
    since = look.data["since"]
    for each in incarnations:
        state, own = look.data["states"].get(each.node_id), looks.get(each.node, ())
        is_before = bisect_left(own, since - lively_s) < bisect_right(own, since)
        is_after = bisect_left(own, since) < bisect_right(own, since + lively_s)
        if state is None or not (each.up < since - lively_s < since < each.ended and is_before and is_after):
            continue
        yield 1
        if state not in _GOOD:
            yield f"{look.who} saw {each} as {state} at {look.at:.3f}, which is up and kept to its spare time"


def _killed(
    look: Event, incarnations: Sequence[Incarnation], tick_s: float, spare_s: float
) -> Iterator[str | int]:
    """Judge what was seen of nodes that were killed, and have not begun again."""
    for at, each in enumerate(incarnations):
        later = incarnations[at + 1 :]
        again = next((other.began for other in later if other.node_id == each.node_id), math.inf)
        silent_s = look.data["since"] - each.ended - spare_s - _MARGIN_TICKS * tick_s
        if each.how != "killed" or each.up > each.ended - _MARGIN_TICKS * tick_s or look.at >= again:
            continue
        least = least_state(silent_s / tick_s)
        if least is not NodeState.ALIVE:
            yield 1
            state = look.data["states"].get(each.node_id)
            if not is_as_bad(state, least, each):
                yield f"{look.who} saw {each} as {state} at {look.at:.3f}: it was killed at {each.ended:.3f}"


SPARE_CHECKS: Final = (
    Check(
        "spares-kept",
        "a node has the time to its next heartbeat that it has announced, and no more",
        spares_kept,
    ),
)
