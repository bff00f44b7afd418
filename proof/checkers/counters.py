"""Rows that all nodes write: their reads and writes are linearizable, and no increment is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from proof.checkers.linearizable import fault
from proof.final_state import final_rows
from proof.history import Data, History, Operation
from proof.losses import Losses
from proof.verdicts import Check
from proof.workloads.counters import COLUMNS, KEY, NAMED, TABLE


class _Any(Enum):
    ANY = "*"


_ANY: Final = _Any.ANY

Value = int | str | None | _Any
Row = tuple[Value, ...]

_ANYTHING: Final[Row] = (_ANY,) * len(COLUMNS)
_NEW: Final[Row] = (0, None, None)
"""A row that was never written, or does not exist yet."""


@dataclass(frozen=True, slots=True)
class RowAction:
    """One action on one row: the values it was based on, and the values it writes; `_ANY` leaves a column as
    it was."""

    began: float
    ended: float
    over: Row
    to: Row
    text: str
    is_optional: bool = False

    def __str__(self) -> str:
        return self.text


class _Register:
    """A row as a register."""

    def __init__(self, start: Row) -> None:
        self.start = start

    def after(self, state: Row, each: RowAction) -> Row | None:
        """Return the row after one more action; `None` if the action was based on another state."""
        found = tuple(_found(over, now) for over, now in zip(each.over, state, strict=True))
        if any(
            over is not _ANY and over != now and now is not _ANY
            for over, now in zip(each.over, state, strict=True)
        ):
            return None
        return tuple(now if to is _ANY else to for to, now in zip(each.to, found, strict=True))

    def is_moot(self, _state: Row, _each: RowAction) -> bool:
        """Return False: every action here has an end, that of the first read of its effect."""
        return False

    def effect(self, _each: RowAction) -> None:
        """Return None, for the same reason."""


def counters_linearizable(history: History) -> Iterator[str | int]:
    """For each row, some order of all reads and writes explains all results."""
    rows: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations("counter.read", "counter.write", "counter.update"):
        rows[operation.args["key"]].append(operation)
    ends = {event.data["row"][KEY]: event for event in history.notes("final") if event.data["table"] == TABLE}
    losses = Losses(history)
    for key, operations in rows.items():
        actions = [each for operation in operations for each in _known_actions(operation, losses)]
        if key in ends:
            end = ends[key]
            row = tuple(end.data["row"][column] for column in COLUMNS)
            actions.append(RowAction(end.at, end.at, row, _ANYTHING, f"in the end {key} is {row}"))
        for era in losses.eras:
            known = [part for each in actions for part in _part(each, era, losses)]
            known += _seen_at_last(
                filter(losses.is_outcome_unknown, operations), known, losses.bounds(era)[0]
            )
            yield len(known)
            found = fault(_Register(_ANYTHING if era else _NEW), known)
            if found is not None:
                yield f"{key}: {found}"


def _part(each: RowAction, era: int, losses: Losses) -> Iterator[RowAction]:
    """Yield the part of an action in an era; one that reaches into two eras may belong to either."""
    first, last = losses.span(each.began, each.ended)
    if first == last == era:
        yield each
    elif first <= era <= last and each.to != _ANYTHING:
        bounds = losses.bounds(era)
        began, ended = max(bounds[0], each.began), min(bounds[1], each.ended)
        if began <= ended:  # or it fell into the time without a store
            yield replace(each, began=began, ended=ended, is_optional=True)


def _found(over: Value, now: Value) -> Value:
    """Return the value found; an unknown value is the expected one."""
    return over if now is _ANY else now


def _known_actions(operation: Operation, losses: Losses) -> Iterator[RowAction]:
    """Yield the actions that the result of an operation proves."""
    seen = operation.result.get("row")
    if seen is not None:
        yield RowAction(operation.began, operation.ended, tuple(seen), _ANYTHING, str(operation))
    elif operation.is_ok:
        over = tuple(operation.result["over"])
        found = _ANYTHING if losses and _may_have_found_none(operation, over) else over
        yield RowAction(operation.began, operation.ended, found, _made(operation, over), str(operation))


def _may_have_found_none(operation: Operation, over: Row) -> bool:
    """Return whether a write that takes its own side, and named no other, may have found the row lost."""
    return operation.args.get("strategy") == "TakeLeft" and over == tuple(operation.args["base"])


def _made(operation: Operation, over: Row) -> Row:
    """Return the values that a write leaves in a row."""
    if operation.what == "counter.update":
        count = over[0]
        assert isinstance(count, int)
        return count + 1, operation.args["mark"], _ANY
    values: Data = operation.args["values"]
    return tuple(values.get(column, _ANY) for column in COLUMNS)


def _seen_at_last(
    operations: Iterable[Operation], known: Iterable[RowAction], since: float
) -> Iterator[RowAction]:
    """Yield the actions of unknown outcome whose mark was seen, and which therefore took effect before.

    One from before the era may be part of the era's initial state.
    """
    seen: dict[Value, RowAction] = {}
    for action in known:
        for mark in action.over[1:]:
            first = seen.get(mark)
            if first is None or action.ended < first.ended:
                seen[mark] = action
    for operation in operations:
        if operation.what == "counter.read":
            continue
        first = seen.get(_mark(operation))
        if first is not None:
            supposed = _supposed(operation, first)
            is_older = supposed.began < since
            yield replace(supposed, began=since, is_optional=True) if is_older else supposed


def _mark(operation: Operation) -> str:
    values: Data = operation.args if operation.what == "counter.update" else operation.args["values"]
    return str(values.get("mark") or values.get("content") or values["agent_id"])


def _supposed(operation: Operation, seen: RowAction) -> RowAction:
    """Return the action of an operation of which only its effect was seen."""
    ended = max(operation.began, seen.ended)
    if operation.what == "counter.update":
        to: Row = (*seen.over[:2], _ANY)
        return RowAction(operation.began, ended, _ANYTHING, to, str(operation))
    base: Row = tuple(operation.args["base"])
    over = {"TakeLeft": _ANYTHING, "Merge": (_ANY, _ANY, base[2])}.get(operation.args["strategy"], base)
    return RowAction(operation.began, ended, over, _made(operation, base), str(operation))


def no_lost_update(history: History) -> Iterator[str | int]:
    """A counter was incremented as often as was acknowledged, and at most as often as it may have been."""
    if not history.notes("final"):
        return
    counts = {row[KEY]: row[COLUMNS[0]] for row in final_rows(history, TABLE)}
    added: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations("counter.write", "counter.update"):
        if operation.args["key"].startswith(NAMED):
            added[operation.args["key"]].append(operation)
    losses = Losses(history)
    for key, operations in added.items():
        yield len(operations)
        least = sum(operation.is_ok and not losses.may_have_lost(operation) for operation in operations)
        most = sum(operation.may_have_happened for operation in operations)
        if not least <= counts.get(key, 0) <= most:
            yield f"{key} is {counts.get(key, 0)}, and was added to {least} to {most} times"


COUNTER_CHECKS: Final = (
    Check(
        "counters-linearizable",
        "all reads and writes of a row are linearizable",
        counters_linearizable,
    ),
    Check("no-lost-update", "a counter was incremented as often as was acknowledged", no_lost_update),
)
