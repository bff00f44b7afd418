"""Rows that all write: what was told of each can have been so, and no update of a counter is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from proof.checkers.linearizable import fault
from proof.history import Data, Deed, History
from proof.losses import Losses
from proof.reading import finals
from proof.verdicts import Check
from proof.workloads.counters import COLUMNS, KEY, NAMED, TABLE


class _Any(Enum):
    ANY = "*"


_ANY: Final = _Any.ANY

Value = int | str | None | _Any
Row = tuple[Value, ...]

_ANYTHING: Final[Row] = (_ANY,) * len(COLUMNS)
_NEW: Final[Row] = (0, None, None)
"""A row that nobody has written to, or that is not there yet."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing done to one row: what it was done over, and what it makes of it; `_ANY` is what it leaves."""

    began: float
    ended: float
    over: Row
    to: Row
    told: str
    is_optional: bool = False

    def __str__(self) -> str:
        return self.told


class _Register:
    """What can be told of a row."""

    def __init__(self, start: Row) -> None:
        self.start = start

    def after(self, state: Row, each: Operation) -> Row | None:
        """The row after one more operation; `None` if it is not what that was done over."""
        found = tuple(_found(over, now) for over, now in zip(each.over, state, strict=True))
        if any(
            over is not _ANY and over != now and now is not _ANY
            for over, now in zip(each.over, state, strict=True)
        ):
            return None
        return tuple(now if to is _ANY else to for to, now in zip(each.to, found, strict=True))

    def is_moot(self, _state: Row, _each: Operation) -> bool:
        """Whatever is under way here has an end: that of whoever has seen what it did."""
        return False

    def effect(self, _each: Operation) -> None:
        """And so none of it may come at any time."""


def counters_linearizable(history: History) -> Iterator[str | int]:
    """For each row there is an order of all reads and writes that explains what everybody was told."""
    rows: dict[str, list[Deed]] = defaultdict(list)
    for deed in history.deeds("counter.read", "counter.write", "counter.update"):
        rows[deed.asked["key"]].append(deed)
    ends = {event.data["row"][KEY]: event for event in history.notes("final") if event.data["table"] == TABLE}
    losses = Losses(history)
    for key, deeds in rows.items():
        operations = [each for deed in deeds for each in _known(deed, losses)]
        if key in ends:
            end = ends[key]
            row = tuple(end.data["row"][column] for column in COLUMNS)
            operations.append(Operation(end.at, end.at, row, _ANYTHING, f"in the end {key} is {row}"))
        for era in losses.eras:
            known = [part for each in operations for part in _part(each, era, losses)]
            known += _seen_at_last(filter(losses.is_doubtful, deeds), known, losses.bounds(era)[0])
            yield len(known)
            found = fault(_Register(_ANYTHING if era else _NEW), known)
            if found is not None:
                yield f"{key}: {found}"


def _part(each: Operation, era: int, losses: Losses) -> Iterator[Operation]:
    """What of an operation lies in an era; one that reaches into two may lie in either."""
    first, last = losses.span(each.began, each.ended)
    if first == last == era:
        yield each
    elif first <= era <= last and each.to != _ANYTHING:
        bounds = losses.bounds(era)
        began, ended = max(bounds[0], each.began), min(bounds[1], each.ended)
        if began <= ended:  # or it fell into the time without a store
            yield replace(each, began=began, ended=ended, is_optional=True)


def _found(over: Value, now: Value) -> Value:
    """A value of which nothing was known is what was found there."""
    return over if now is _ANY else now


def _known(deed: Deed, losses: Losses) -> Iterator[Operation]:
    """Yield the operation that a caller was answered about."""
    seen = deed.got.get("row")
    if seen is not None:
        yield Operation(deed.began, deed.ended, tuple(seen), _ANYTHING, str(deed))
    elif deed.is_ok:
        over = tuple(deed.got["over"])
        found = _ANYTHING if losses and _may_have_found_none(deed, over) else over
        yield Operation(deed.began, deed.ended, found, _made(deed, over), str(deed))


def _may_have_found_none(deed: Deed, over: Row) -> bool:
    """Return whether a write that takes its own side, and named no other, may have found the row lost."""
    return deed.asked.get("strategy") == "TakeLeft" and over == tuple(deed.asked["base"])


def _made(deed: Deed, over: Row) -> Row:
    """What a write makes of a row."""
    if deed.what == "counter.update":
        count = over[0]
        assert isinstance(count, int)
        return count + 1, deed.asked["mark"], _ANY
    values: Data = deed.asked["values"]
    return tuple(values.get(column, _ANY) for column in COLUMNS)


def _seen_at_last(deeds: Iterable[Deed], known: Iterable[Operation], since: float) -> Iterator[Operation]:
    """Those of unknown outcome whose mark was seen, and so took place before; others nobody can tell of.

    What began before the era may be in what it began with.
    """
    seen: dict[Value, Operation] = {}
    for operation in known:
        for mark in operation.over[1:]:
            first = seen.get(mark)
            if first is None or operation.ended < first.ended:
                seen[mark] = operation
    for deed in deeds:
        if deed.what == "counter.read":
            continue
        first = seen.get(_mark(deed))
        if first is not None:
            supposed = _supposed(deed, first)
            is_older = supposed.began < since
            yield replace(supposed, began=since, is_optional=True) if is_older else supposed


def _mark(deed: Deed) -> str:
    values: Data = deed.asked if deed.what == "counter.update" else deed.asked["values"]
    return str(values.get("mark") or values.get("content") or values["agent_id"])


def _supposed(deed: Deed, seen: Operation) -> Operation:
    """What a deed did of which all that is known is that somebody has seen it."""
    ended = max(deed.began, seen.ended)
    if deed.what == "counter.update":
        to: Row = (*seen.over[:2], _ANY)
        return Operation(deed.began, ended, _ANYTHING, to, str(deed))
    base: Row = tuple(deed.asked["base"])
    over = {"TakeLeft": _ANYTHING, "Merge": (_ANY, _ANY, base[2])}.get(deed.asked["strategy"], base)
    return Operation(deed.began, ended, over, _made(deed, base), str(deed))


def no_lost_update(history: History) -> Iterator[str | int]:
    """A counter has been added to as often as was told, and no more than may have been."""
    if not history.notes("final"):
        return
    counts = {row[KEY]: row[COLUMNS[0]] for row in finals(history, TABLE)}
    added: dict[str, list[Deed]] = defaultdict(list)
    for deed in history.deeds("counter.write", "counter.update"):
        if deed.asked["key"].startswith(NAMED):
            added[deed.asked["key"]].append(deed)
    losses = Losses(history)
    for key, deeds in added.items():
        yield len(deeds)
        least = sum(deed.is_ok and not losses.may_have_lost(deed) for deed in deeds)
        most = sum(deed.may_be for deed in deeds)
        if not least <= counts.get(key, 0) <= most:
            yield f"{key} is {counts.get(key, 0)}, and was added to {least} to {most} times"


COUNTER_CHECKS: Final = (
    Check(
        "counters-linearizable",
        "what was told of each row can have been so, one read or write after the other",
        counters_linearizable,
    ),
    Check("no-lost-update", "a counter is as often added to as its writers were told", no_lost_update),
)
