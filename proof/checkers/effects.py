"""Effects and small writes: nothing acknowledged is lost, and nothing is applied twice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from proof import tables
from proof.checkers.incarnations import incarnations_of
from proof.final_state import final_rows
from proof.history import Event, History, Operation
from proof.losses import Losses
from proof.verdicts import Check
from proof.workloads.effects import PARTS
from proof.workloads.jobs import attempt_key

_Try = tuple[str, int, str]
"""The node, its incarnation and the key of the effect."""

_ANSWERED_S: Final = 20.0
"""A response that comes later than this after its request is ignored."""


def effect_once(history: History) -> Iterator[str | int]:
    """However often it was tried, in however many incarnations, an effect is applied once for its key, and
    whole."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row in final_rows(history, tables.EFFECTS):
        rows[row["effect"]].append(row["part"])
    yield len(rows)
    for key, parts in rows.items():
        if sorted(parts) != list(PARTS):
            yield f"of the effect {key} there are the parts {sorted(parts)}, not {list(PARTS)}"
    outside: dict[str, list[Event]] = defaultdict(list)
    for note in history.notes("outside.effect"):
        outside[note.data["key"]].append(note)
    yield len(outside)
    losses, unrecorded = Losses(history), _Unrecorded(history)
    begun, args = _superseded_attempts(history, losses), _asked_at(history)
    for key, notes in outside.items():
        again = (
            second
            for first, second in pairwise(notes)
            if not _is_forgotten(losses, first, second, args) and not unrecorded.excuses(first, second)
        )
        if key not in begun and any(again):
            yield f"{key} had its effect outside {len(notes)} times"


class _Unrecorded:
    """Incarnations whose registration a rollback lost, so that their predecessor could join again."""

    def __init__(self, history: History) -> None:
        losses = Losses(history)
        wrote: dict[tuple[str, int], float] = {}  # it had registered by then
        for operation in history.operations("effect.last"):
            if operation.is_ok:
                wrote.setdefault((operation.who, operation.incarnation), operation.ended)
        self._lost_at = {
            (incarnation.node, incarnation.number): loss.lost_at
            for incarnation in (incarnations_of(history) if losses else ())
            for loss in reversed(losses.all)
            if incarnation.began < loss.lost_at
            and loss.kept_until < wrote.get((incarnation.node, incarnation.number), math.inf)
        }

    def excuses(self, first: Event, second: Event) -> bool:
        """Return whether the first was applied by an older incarnation, after the newer registration was
        lost."""
        lost_at = self._lost_at.get((second.who, second.incarnation), math.inf)
        return first.who == second.who and first.incarnation < second.incarnation and lost_at < first.at


def _is_forgotten(losses: Losses, first: Event, second: Event, args: dict[_Try, float]) -> bool:
    """Return whether a rollback may have lost the first, also if its earlier response came after the
    rollback."""
    if losses.may_forget(first.at, second.at, first.who):
        return True
    since = args.get((first.who, first.incarnation, first.data["key"]), first.at)
    return any(
        since < loss.lost_at < second.at and loss.kept_until < first.at <= since + _ANSWERED_S
        for loss in losses.all
    )


def _asked_at(history: History) -> dict[_Try, float]:
    """Return when each incarnation first tried an effect that was then acknowledged."""
    args: dict[_Try, float] = {}
    for operation in history.operations("effect"):
        if operation.is_ok:
            args.setdefault((operation.who, operation.incarnation, operation.args["key"]), operation.began)
    return args


def _superseded_attempts(history: History, losses: Losses) -> set[str]:
    """Return attempts at jobs whose claim may be lost: another claim may have the same token."""
    return {
        attempt_key(note.data["job"], note.data["token"])
        for note in history.notes("job.began")
        if losses.covers(note.at, note.who)
    }


def effect_none_lost(history: History) -> Iterator[str | int]:
    """Every acknowledged effect exists; one that was only ever rejected does not."""
    if not history.notes("final"):
        return
    there = {row["effect"] for row in final_rows(history, tables.EFFECTS)}
    tries: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations("effect"):
        tries[operation.args["key"]].append(operation)
    yield len(tries)
    losses = Losses(history)
    for key, operations in tries.items():
        done = [
            operation for operation in operations if operation.is_ok and not losses.may_have_lost(operation)
        ]
        if done and key not in there:
            yield f"{done[0]}, and it is lost"
        if key in there and not any(operation.may_have_happened for operation in operations):
            yield f"{operations[-1]}, and it is there"
    yield from (f"the effect {key} is there, and was never tried" for key in there - tries.keys())


def writes_none_lost(history: History) -> Iterator[str | int]:
    """The last small write of each node is the last acknowledged one, or a later one."""
    if not history.notes("final"):
        return
    last = {row["player"]: (row["life"], row["number"]) for row in final_rows(history, tables.WRITES)}
    acknowledged: dict[str, tuple[int, int]] = {}
    losses = Losses(history)
    for operation in history.operations("write"):
        yield 1
        if operation.is_ok and not losses.may_have_lost(operation):
            acknowledged[operation.who] = max(
                acknowledged.get(operation.who, (0, 0)), (operation.incarnation, operation.args["number"])
            )
    for who, write in acknowledged.items():
        if last.get(who, (0, 0)) < write:
            yield f"{who} had write {write} acknowledged, and the last one there is {last.get(who)}"


EFFECT_CHECKS: Final = (
    Check("effect-once", "under one key an effect happens once, and completely", effect_once),
    Check("effect-none-lost", "an acknowledged effect exists; a refused one does not", effect_none_lost),
    Check("writes-none-lost", "an acknowledged write exists", writes_none_lost),
)
