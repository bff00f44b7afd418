"""Locks: their tokens rise, the outside is safe, and what was told of each key can have been so."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from proof import tables
from proof.checkers.lock_eras import in_eras
from proof.checkers.lock_model import SLACK_S, Kind, Operation, lock_fault
from proof.history import Deed, History, Step
from proof.losses import Losses
from proof.reading import finals
from proof.verdicts import Check
from vox_mesh.errors import StaleFence, StaleIncarnation
from vox_mesh.model.locks.patterns import is_pattern, overlap

FADES: Final = 0.05
"""So much faster or slower the time of the mesh runs while a correction of the database's clock fades."""

NOTICED_S: Final = 10.0
"""Within this time it is noticed that the database's clock was set: for so much longer a hold may last."""


SETTLED: Final = "database.clock.settled"
"""The note that the time of the mesh is right again after a step: the nodes have agreed on it."""

_AGREED_S: Final = 60.0
"""Within this time nodes agree, even if most of them do not reach the database for a while."""


class _Cells:
    """The keys that are no patterns. What is done to a pattern is done to all of them that it matches."""

    def __init__(self, history: History) -> None:
        keys = {key for deed in history.deeds("lock.take") for key in deed.asked["keys"]}
        self.all = [key for key in sorted(keys) if not is_pattern(key)]
        self._of = {key: [cell for cell in self.all if overlap(key, cell)] for key in keys}

    def of(self, keys: Iterable[str]) -> set[str]:
        """Those that these keys have to do with."""
        return {cell for key in keys for cell in self._of.get(key, ())}


def tokens_rise(history: History) -> Iterator[str | int]:
    """Grants of what they have in common: their order is that of their tokens."""
    cells = _Cells(history)
    grants: dict[str, list[Deed]] = defaultdict(list)
    for deed in history.deeds("lock.take"):
        if deed.is_ok:
            yield 1
            for cell in cells.of(deed.asked["keys"]):
                grants[cell].append(deed)
    for cell, deeds in grants.items():
        granted: dict[int, Deed] = {}
        for deed in deeds:
            other = granted.setdefault(_token(deed), deed)
            if other is not deed:
                yield f"{cell}: {deed} has the token of {other}"
        yield from (f"{cell}: {late} came after {before}" for late, before in _falling(deeds))


def _falling(deeds: Sequence[Deed]) -> Iterator[tuple[Deed, Deed]]:
    """Those that began when one with a higher token had ended, and that one; the deeds are in order."""
    by_end = sorted(deeds, key=lambda deed: deed.ended)
    highest: Deed | None = None
    ended = 0
    for deed in deeds:
        while by_end[ended].ended < deed.began:
            highest = by_end[ended] if highest is None else max(highest, by_end[ended], key=_token)
            ended += 1
        if highest is not None and _token(deed) < _token(highest):
            yield deed, highest


def _token(deed: Deed) -> int:
    return int(deed.got["token"] if deed.what == "lock.take" else deed.asked["token"])


# --- outside of the database -------------------------------------------------------------------------


def outside_takes_no_older(history: History) -> Iterator[str | int]:
    """Only who was granted a token writes under it, in the order of tokens; whoever holds a lock can."""
    grants: dict[tuple[str, int, int], list[Deed]] = defaultdict(list)
    for deed in history.deeds("lock.take"):
        if deed.is_ok:
            grants[deed.who, deed.life, _token(deed)].append(deed)
    for note in history.notes("outside.write"):
        yield 1
        cell, token, taken = note.data["key"], note.data["token"], note.data["taken"]
        own = grants.get((note.who, note.life, token), [])
        if not any(deed.ended <= note.at and _covers(deed, cell) for deed in own):
            yield f"{note.who}.{note.life} wrote to {cell} under {token}, which it was never granted"
        if taken and token < note.data["highest"]:
            yield f"{cell} took {token} after {note.data['highest']}"
    yield from _puts_in_order(history)
    yield from _holders_refused(history)


def _covers(deed: Deed, cell: str) -> bool:
    return any(overlap(key, cell) for key in deed.asked["keys"])


def _puts_in_order(history: History) -> Iterator[str]:
    taken: dict[str, list[Deed]] = defaultdict(list)
    for deed in history.deeds("lock.put"):
        if deed.is_ok and deed.got["taken"]:
            taken[deed.asked["cell"]].append(deed)
    for puts in taken.values():
        yield from (f"{late} was taken after {before}" for late, before in _falling(puts))


def _holders_refused(history: History) -> Iterator[str]:
    """Those who were turned away while they held the lock, however the clock of the database went.

    A rollback takes holds away, and nobody can tell their holders before the lock is another's.
    """
    had_until: dict[str, float] = {}
    """By hold: its time counts from when it, or its last renewal, was asked for."""
    losses = Losses(history)
    for deed in history.deeds("lock.take", "lock.renew", "lock.put", "lock.release"):
        if deed.what == "lock.release":
            had_until.pop(_hold(deed), None)
        elif deed.is_ok and deed.what != "lock.put":
            until = deed.began + deed.asked["ttl"] - SLACK_S
            had_until[_hold(deed)] = min(until, _taken_away(losses, deed))
        elif deed.is_ok and not deed.got["taken"] and deed.ended <= had_until.get(_hold(deed), -math.inf):
            yield f"{deed}, while it held the lock"


def _taken_away(losses: Losses, deed: Deed) -> float:
    """When the first rollback after this was asked for took away what was granted."""
    return min((loss.lost_at for loss in losses.all if deed.began < loss.back_at), default=math.inf)


def _hold(deed: Deed) -> str:
    return f"{_token(deed)} {deed.asked['keys']}"


# --- each key by itself ------------------------------------------------------------------------------


def locks_linearizable(history: History) -> Iterator[str | int]:
    """For each key there is an order of all that was done to it that explains what everybody was told."""
    cells = _Cells(history)
    operations: dict[str, list[Operation]] = {cell: [] for cell in cells.all}
    for keys, operation in _operations(history):
        for cell in cells.of(keys):
            operations[cell].append(operation)
    unsettled = _unsettled(history)
    for deed in history.deeds("lock.look"):
        if len(deed.got.get("tokens", ())) > 1 and not _is_unsettled(deed, unsettled):
            yield f"{deed}: held by more than one"
    losses = Losses(history)
    for cell, done in operations.items():
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


def _operations(history: History) -> Iterator[tuple[Sequence[str], Operation]]:
    """All that was done to locks and changed or told something, with the keys that it was done to."""
    steps, unsettled = _clock_steps(history), _unsettled(history)
    for deed in history.deeds(*_KINDS):
        kind, step = _KINDS[deed.what], deed.step
        if kind is Kind.LOOK and _is_unsettled(deed, unsettled):
            continue
        if kind in (Kind.WRITE, Kind.LOOK) and not deed.is_ok and not _is_told_over(deed):
            continue
        if kind in (Kind.RENEW, Kind.RELEASE) and step is Step.NO and not _is_told_over(deed):
            if deed.got.get("error") != _REPLACED:
                continue  # it was never tried
            step = Step.UNKNOWN  # carried twice, a copy may have come before the node's next life
        if kind is Kind.LOOK:
            token = next(iter(deed.got["tokens"]), None)
        else:
            token = deed.got.get("token") if kind is Kind.ACQUIRE else deed.asked["token"]
        yield (
            deed.asked["keys"],
            Operation(
                *(kind, step, deed.began, math.inf if step is Step.UNKNOWN else deed.ended),
                *(token, deed.asked.get("ttl", 0.0), _grace(deed, steps), _fading(deed, steps)),
                f"{deed.who}.{deed.life}#{deed.number}",
            ),
        )
    for note in history.notes("lock.kept"):  # it is released after that, if it can be
        yield (
            note.data["keys"],
            Operation(
                *(Kind.RELEASE, Step.UNKNOWN, note.at, math.inf),
                token=note.data["token"],
                actor=f"{note.who}.{note.life}",
            ),
        )


def _clock_steps(history: History) -> list[float]:
    """Return when the database's clock was set."""
    return [note.at for note in history.notes("database.clock")]


def _unsettled(history: History) -> list[tuple[float, float]]:
    """Return from when until when reads may be off: until the nodes have agreed, if the history has notes."""
    settled = [note.at for note in history.notes(SETTLED)]
    spans = []
    for at in _clock_steps(history):
        agreed = next((each for each in settled if each >= at), at)
        spans.append((at, max(at + NOTICED_S, min(agreed, at + _AGREED_S))))
    return spans


def _is_unsettled(deed: Deed, spans: Sequence[tuple[float, float]]) -> bool:
    """Whether a step of the clock may not be agreed on yet: what is only read may be off until then."""
    return any(deed.began <= until and since <= deed.ended for since, until in spans)


def _grace(deed: Deed, steps: Sequence[float]) -> float:
    """By how much a hold may last too long, if the clock of the database was set meanwhile."""
    until = deed.ended + float(deed.asked.get("ttl", 0.0))
    return NOTICED_S if any(deed.began <= at <= until for at in steps) else 0.0


def _fading(deed: Deed, steps: Sequence[float]) -> float:
    """By how much a hold may end too soon, if the clock of the database was ever set."""
    ttl = float(deed.asked.get("ttl", 0.0))
    return FADES * ttl if any(at <= deed.ended + ttl for at in steps) else 0.0


def _is_told_over(deed: Deed) -> bool:
    """Whether its caller was told that the hold is not there."""
    return deed.got.get("error") == _NO_HOLD or deed.got.get("was_held") is False


# --- under the guard ---------------------------------------------------------------------------------


def guarded_in_order(history: History) -> Iterator[str | int]:
    """What was written under locks is there as it was told, and in the order of their tokens."""
    if not history.notes("final"):
        return
    highest: dict[str, int] = {}
    rows: Counter[tuple[str, int, str]] = Counter()
    for row in finals(history, tables.GUARDED):
        yield 1
        cell, token, player = row["cell"], row["token"], row["player"]
        if token < highest.get(cell, 0):
            yield f"{cell}: {player} wrote under {token} after {highest[cell]}"
        highest[cell] = max(token, highest.get(cell, 0))
        rows[cell, token, player] += 1
    told: Counter[tuple[str, int, str]] = Counter()
    possible: Counter[tuple[str, int, str]] = Counter()
    losses = Losses(history)
    for deed in history.deeds("lock.write"):
        write = deed.asked["cell"], _token(deed), deed.who
        told[write] += deed.is_ok and not losses.may_have_lost(deed)
        possible[write] += deed.may_be
    for write in rows.keys() | possible.keys():
        if not told[write] <= rows[write] <= possible[write]:
            wanted = f"{told[write]} to {possible[write]}"
            yield f"{write[0]}: {rows[write]} rows of {write[2]} under {write[1]}, not {wanted}"


LOCK_CHECKS: Final = (
    Check("tokens-rise", "the tokens of a key rise strictly in the order of its grants", tokens_rise),
    Check(
        "outside-takes-no-older",
        "outside, who was granted a token writes under it, never after a newer one, and no holder is refused",
        outside_takes_no_older,
    ),
    Check(
        "locks-linearizable",
        "what was told of each lock can have been so, one thing after the other; no two held it at once",
        locks_linearizable,
    ),
    Check(
        "guarded-in-order",
        "what was written under locks is there as it was told, in the order of their tokens",
        guarded_in_order,
    ),
)
