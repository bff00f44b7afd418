"""Locks: their tokens rise, the outside resource is safe, and each key is linearizable."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from proof import tables
from proof.checkers.lock_eras import in_eras
from proof.checkers.lock_model import SLACK_S, Kind, LockAction, lock_fault
from proof.final_state import final_rows
from proof.history import History, Operation, Step
from proof.losses import Losses
from proof.verdicts import Check
from vox_mesh.errors import StaleFence, StaleIncarnation
from vox_mesh.model.locks.patterns import is_pattern, overlap

FADES: Final = 0.05
"""The rate by which the time of the mesh differs while a correction of the database's clock fades."""

_SLEW_INTERVAL_S: Final = 10.0
"""A correction fades in pieces: one may stand for this much time before a lease was granted."""

NOTICED_S: Final = 10.0
"""A step of the database's clock is noticed within this time: a hold may last that much longer."""


SETTLED: Final = "database.clock.settled"
"""The note that the time of the mesh is right again after a step: the nodes have agreed on it."""

_AGREED_S: Final = 60.0
"""Nodes agree within this time, even if most of them do not reach the database for a while."""


class _Cells:
    """The keys that are not patterns. An action on a pattern applies to all keys that it matches."""

    def __init__(self, history: History) -> None:
        keys = {key for operation in history.operations("lock.take") for key in operation.args["keys"]}
        self.all = [key for key in sorted(keys) if not is_pattern(key)]
        self._of = {key: [cell for cell in self.all if overlap(key, cell)] for key in keys}

    def of(self, keys: Iterable[str]) -> set[str]:
        """Return the keys that these cover."""
        return {cell for key in keys for cell in self._of.get(key, ())}


def tokens_rise(history: History) -> Iterator[str | int]:
    """Grants with a common key are in the order of their tokens."""
    cells = _Cells(history)
    grants: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations("lock.take"):
        if operation.is_ok:
            yield 1
            for cell in cells.of(operation.args["keys"]):
                grants[cell].append(operation)
    for cell, operations in grants.items():
        granted: dict[int, Operation] = {}
        for operation in operations:
            other = granted.setdefault(_token(operation), operation)
            if other is not operation:
                yield f"{cell}: {operation} has the token of {other}"
        yield from (f"{cell}: {late} came after {before}" for late, before in _falling(operations))


def _falling(operations: Sequence[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Return the operations that began after one with a higher token had ended, with that one."""
    by_end = sorted(operations, key=lambda operation: operation.ended)
    highest: Operation | None = None
    ended = 0
    for operation in operations:
        while by_end[ended].ended < operation.began:
            highest = by_end[ended] if highest is None else max(highest, by_end[ended], key=_token)
            ended += 1
        if highest is not None and _token(operation) < _token(highest):
            yield operation, highest


def _token(operation: Operation) -> int:
    return int(operation.result["token"] if operation.what == "lock.take" else operation.args["token"])


# --- outside of the database -------------------------------------------------------------------------


def outside_takes_no_older(history: History) -> Iterator[str | int]:
    """Writes outside use granted tokens, in rising order; and the holder of a lock can write."""
    grants: dict[tuple[str, int, int], list[Operation]] = defaultdict(list)
    for operation in history.operations("lock.take"):
        if operation.is_ok:
            grants[operation.who, operation.incarnation, _token(operation)].append(operation)
    for note in history.notes("outside.write"):
        yield 1
        cell, token, taken = note.data["key"], note.data["token"], note.data["taken"]
        own = grants.get((note.who, note.incarnation, token), [])
        if not any(operation.ended <= note.at and _covers(operation, cell) for operation in own):
            yield f"{note.who}.{note.incarnation} wrote to {cell} under {token}, which it was never granted"
        if taken and token < note.data["highest"]:
            yield f"{cell} took {token} after {note.data['highest']}"
    yield from _puts_in_order(history)
    yield from _holders_refused(history)


def _covers(operation: Operation, cell: str) -> bool:
    return any(overlap(key, cell) for key in operation.args["keys"])


def _puts_in_order(history: History) -> Iterator[str]:
    taken: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations("lock.put"):
        if operation.is_ok and operation.result["taken"]:
            taken[operation.args["cell"]].append(operation)
    for puts in taken.values():
        yield from (f"{late} was taken after {before}" for late, before in _falling(puts))


def _holders_refused(history: History) -> Iterator[str]:
    """Yield the holders that were rejected, whatever the clock of the database showed.

    A rollback removes holds, and their holders can't know before the lock has another one.
    """
    had_until: dict[str, float] = {}
    """By hold: its TTL counts from the request of the grant, or of the last renewal."""
    losses = Losses(history)
    for operation in history.operations("lock.take", "lock.renew", "lock.put", "lock.release"):
        if operation.what == "lock.release":
            had_until.pop(_hold(operation), None)
        elif operation.is_ok and operation.what != "lock.put":
            until = operation.began + operation.args["ttl"] - SLACK_S
            had_until[_hold(operation)] = min(until, _taken_away(losses, operation))
        elif (
            operation.is_ok
            and not operation.result["taken"]
            and operation.ended <= had_until.get(_hold(operation), -math.inf)
        ):
            yield f"{operation}, while it held the lock"


def _taken_away(losses: Losses, operation: Operation) -> float:
    """Return when the first rollback after this request removed its grant."""
    return min((loss.lost_at for loss in losses.all if operation.began < loss.back_at), default=math.inf)


def _hold(operation: Operation) -> str:
    return f"{_token(operation)} {operation.args['keys']}"


# --- each key by itself ------------------------------------------------------------------------------


def locks_linearizable(history: History) -> Iterator[str | int]:
    """For each key, some order of all actions explains all results."""
    cells = _Cells(history)
    actions: dict[str, list[LockAction]] = {cell: [] for cell in cells.all}
    for keys, action in _actions(history):
        for cell in cells.of(keys):
            actions[cell].append(action)
    unsettled = _unsettled(history)
    for operation in history.operations("lock.look"):
        if len(operation.result.get("tokens", ())) > 1 and not _is_unsettled(operation, unsettled):
            yield f"{operation}: held by more than one"
    losses = Losses(history)
    for cell, done in actions.items():
        yield len(done)
        for era in in_eras(done, losses):
            fault = lock_fault(era)
            if fault is not None:
                yield f"{cell}: {fault}"


_KINDS: Final = {
    "lock.take": Kind.ACQUIRE,
    "lock.renew": Kind.RENEW,
    "lock.release": Kind.RELEASE,
    "lock.write": Kind.WRITE,
    "lock.look": Kind.LOOK,
}
_NO_HOLD: Final = StaleFence.__name__
_REPLACED: Final = StaleIncarnation.__name__


def _actions(history: History) -> Iterator[tuple[Sequence[str], LockAction]]:
    """Yield all actions on locks that changed or returned something, with their keys."""
    steps, unsettled = _clock_steps(history), _unsettled(history)
    for operation in history.operations(*_KINDS):
        kind, step = _KINDS[operation.what], operation.step
        if kind is Kind.LOOK and _is_unsettled(operation, unsettled):
            continue
        if kind in (Kind.WRITE, Kind.LOOK) and not operation.is_ok and not _is_told_over(operation):
            continue
        if kind in (Kind.RENEW, Kind.RELEASE) and step is Step.NO and not _is_told_over(operation):
            if operation.result.get("error") != _REPLACED:
                continue  # it was never tried
            step = Step.UNKNOWN  # duplicated, a copy may have arrived before the node's next incarnation
        if kind is Kind.LOOK:
            token = next(iter(operation.result["tokens"]), None)
        else:
            token = operation.result.get("token") if kind is Kind.ACQUIRE else operation.args["token"]
        yield (
            operation.args["keys"],
            LockAction(
                *(kind, step, operation.began, math.inf if step is Step.UNKNOWN else operation.ended),
                *(token, operation.args.get("ttl", 0.0), _grace(operation, steps), _fading(operation, steps)),
                f"{operation.who}.{operation.incarnation}#{operation.number}",
            ),
        )
    for note in history.notes("lock.kept"):  # it is released after that, if possible
        yield (
            note.data["keys"],
            LockAction(
                *(Kind.RELEASE, Step.UNKNOWN, note.at, math.inf),
                token=note.data["token"],
                actor=f"{note.who}.{note.incarnation}",
            ),
        )


def _clock_steps(history: History) -> list[float]:
    """Return when the database's clock was set."""
    return [note.at for note in history.notes("database.clock")]


def _unsettled(history: History) -> list[tuple[float, float]]:
    """Return when reads may be off: until the nodes have agreed, if the history has notes of that."""
    settled = [note.at for note in history.notes(SETTLED)]
    spans = []
    for at in _clock_steps(history):
        agreed = next((each for each in settled if each >= at), math.inf if settled else at)
        spans.append((at, max(at + NOTICED_S, min(agreed, at + _AGREED_S))))
    return spans


def _is_unsettled(operation: Operation, spans: Sequence[tuple[float, float]]) -> bool:
    """Return whether a step of the clock may not be agreed on yet: plain reads may be off until then."""
    return any(operation.began <= until and since <= operation.ended for since, until in spans)


def _grace(operation: Operation, steps: Sequence[float]) -> float:
    """Return how much too long a hold may last, if the clock of the database was set meanwhile."""
    until = operation.ended + float(operation.args.get("ttl", 0.0))
    return NOTICED_S if any(operation.began <= at <= until for at in steps) else 0.0


def _fading(operation: Operation, steps: Sequence[float]) -> float:
    """Return how much too early a hold may end, if the clock of the database was ever set."""
    ttl = float(operation.args.get("ttl", 0.0))
    return FADES * (ttl + _SLEW_INTERVAL_S) if any(at <= operation.ended + ttl for at in steps) else 0.0


def _is_told_over(operation: Operation) -> bool:
    """Return whether the caller was answered that the hold is gone."""
    return operation.result.get("error") == _NO_HOLD or operation.result.get("was_held") is False


# --- under the guard ---------------------------------------------------------------------------------


def guarded_in_order(history: History) -> Iterator[str | int]:
    """Acknowledged writes under locks exist, and are in the order of their tokens."""
    if not history.notes("final"):
        return
    highest: dict[str, int] = {}
    rows: Counter[tuple[str, int, str]] = Counter()
    for row in final_rows(history, tables.GUARDED):
        yield 1
        cell, token, node = row["cell"], row["token"], row["player"]
        if token < highest.get(cell, 0):
            yield f"{cell}: {node} wrote under {token} after {highest[cell]}"
        highest[cell] = max(token, highest.get(cell, 0))
        rows[cell, token, node] += 1
    acknowledged: Counter[tuple[str, int, str]] = Counter()
    possible: Counter[tuple[str, int, str]] = Counter()
    losses = Losses(history)
    for operation in history.operations("lock.write"):
        write = operation.args["cell"], _token(operation), operation.who
        acknowledged[write] += operation.is_ok and not losses.may_have_lost(operation)
        possible[write] += operation.may_have_happened
    for write in rows.keys() | possible.keys():
        if not acknowledged[write] <= rows[write] <= possible[write]:
            wanted = f"{acknowledged[write]} to {possible[write]}"
            yield f"{write[0]}: {rows[write]} rows of {write[2]} under {write[1]}, not {wanted}"


LOCK_CHECKS: Final = (
    Check("tokens-rise", "the tokens of a key rise strictly in the order of its grants", tokens_rise),
    Check(
        "outside-takes-no-older",
        "outside writes use granted tokens, never after a newer one, and no holder is refused",
        outside_takes_no_older,
    ),
    Check(
        "locks-linearizable",
        "all operations on a lock are linearizable; no two agents held it at once",
        locks_linearizable,
    ),
    Check(
        "guarded-in-order",
        "acknowledged writes under locks exist, in the order of their tokens",
        guarded_in_order,
    ),
)
