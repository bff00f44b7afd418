"""Progress: after faults have healed, every node can soon write again; and no unexpected error occurs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from proof.checkers.incarnations import RECOVERY_S, Incarnation, incarnations_of, pace_of, writes_of
from proof.history import History, Operation
from proof.verdicts import Check
from vox_mesh.errors import CircuitOpen

_DISTURBANCES: Final = ("storm.began", "fault.began", "paused")
_OPEN: Final = CircuitOpen.__name__
_PAUSE_S: Final = 3.0
"""A node that has not tried for this long, and for some rests, does not want to write for now."""
_RESTS_IN_PAUSE: Final = 3
_ALWAYS: Final = "strangers"
"""The fuzzing clients run during calms, too."""


def progress(history: History) -> Iterator[str | int]:
    """After each heal, and after its start, each live node writes within a bound."""
    pace = pace_of(history)
    if pace is None:
        return
    bound_s = pace.ttl_s + RECOVERY_S
    pause_s = max(_PAUSE_S, _RESTS_IN_PAUSE * pace.rest_s)
    writes, incarnations = writes_of(history), incarnations_of(history)
    tries: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    for operation in history.operations("write"):
        tries[operation.who, operation.incarnation].append(operation)
    drained = {note.data["player"] for note in history.notes("drained")}
    for healed, until, may_rest in _calms(history):
        for incarnation in incarnations:
            since = max(healed, incarnation.up)
            is_undisturbed = healed < incarnation.ended and since < math.inf and since + bound_s <= until
            if not is_undisturbed or not (
                incarnation.ended >= since + bound_s or incarnation.node in drained
            ):
                continue
            own_tries = tries[incarnation.node, incarnation.number]
            if _has_written(writes.get(incarnation.node, ()), since, since + bound_s):
                yield 1
            elif _keeps_trying(own_tries, since, since + bound_s, pause_s) and _tries_on(
                own_tries, since + bound_s, pause_s, may_rest
            ):
                yield 1
                yield f"{incarnation} wrote nothing in the {bound_s:g} s after {since:.3f}, when all was well"
    yield from _never_up(history, incarnations)


def _keeps_trying(operations: Sequence[Operation], since: float, until: float, pause_s: float) -> bool:
    """Return whether a node tried all the time: between the end of a run and its drain, none does."""
    last = since
    for operation in sorted(operations, key=lambda each: each.began):
        if last + pause_s < min(operation.began, until):
            return False
        last = max(last, operation.ended)
    return last + pause_s >= until


def _tries_on(operations: Sequence[Operation], at: float, pause_s: float, may_rest: bool) -> bool:
    """Return whether a node still tries to write then; waiting for an open circuit may not count."""
    return any(
        operation.began < at < operation.ended + pause_s
        for operation in operations
        if not (may_rest and operation.result.get("error") == _OPEN)
    )


def _calms(history: History) -> Iterator[tuple[float, float, bool]]:
    """Yield when all had healed, until when nothing disturbed it, and whether circuits may stay open as long.

    At the end they may not: there the environment waits for them.
    """
    last = history.events[-1].at if history.events else 0.0
    disturbed = sorted(note.at for what in _DISTURBANCES for note in history.notes(what))
    ends = {note.data.get("id"): note.at for note in history.notes("fault.ended")}
    faults = [
        (note.at, ends.get(note.data.get("id"), last))
        for note in history.notes("fault.began")
        if note.data.get("kind") != _ALWAYS
    ]
    for note in (*history.notes("calm.began"), *history.notes("healed")):
        healed = max([note.at, *(ended for began, ended in faults if began <= note.at < ended)])
        at = bisect_left(disturbed, note.at)
        yield healed, disturbed[at] if at < len(disturbed) else math.inf, note.what == "calm.began"


def _has_written(writes: Sequence[tuple[float, float]], since: float, until: float) -> bool:
    at = bisect_left(writes, since, key=lambda write: write[1])
    return at < len(writes) and writes[at][1] <= until


def _never_up(history: History, incarnations: Sequence[Incarnation]) -> Iterator[str]:
    """Yield the incarnations that ran until the end, were not replaced, and never opened their node."""
    healed = max((note.at for note in history.notes("healed")), default=None)
    if healed is None:
        return
    for incarnation in incarnations:
        if (
            incarnation.began < healed < incarnation.ended
            and incarnation.up == math.inf
            and not _is_replaced(incarnation, incarnations)
        ):
            yield f"{incarnation} began before all had healed, and its node was never open"


def _is_replaced(incarnation: Incarnation, incarnations: Sequence[Incarnation]) -> bool:
    """Return whether its node was started again while it ran."""
    return any(
        each.node_id == incarnation.node_id and incarnation.began < each.began < incarnation.ended
        for each in incarnations
    )


def nothing_unexpected(history: History) -> Iterator[str | int]:
    """The mesh raises only its own errors."""
    yield len(history.notes("life.began"))
    for note in history.notes("unexpected"):
        yield f"{note.data.get('player', note.who)} at {note.at:.3f}: {note.data.get('error')}"


PROGRESS_CHECKS: Final = (
    Check("progress", "when all faults have healed, every node can soon write again", progress),
    Check("nothing-unexpected", "only the mesh's own errors occur", nothing_unexpected),
)
