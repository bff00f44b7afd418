"""Effects and small writes: nothing that was told is lost, and nothing is had twice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from proof import tables
from proof.checkers.lives import lives_of
from proof.history import Deed, Event, History
from proof.losses import Losses
from proof.reading import finals
from proof.verdicts import Check
from proof.workloads.effects import PARTS
from proof.workloads.jobs import attempt_key


def effect_once(history: History) -> Iterator[str | int]:
    """However often it was tried, by however many lives, an effect is had once for its key, and whole."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row in finals(history, tables.EFFECTS):
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
    begun = _begun_in_vain(history, losses)
    for key, notes in outside.items():
        again = (
            second
            for first, second in pairwise(notes)
            if not _is_forgotten(losses, first, second) and not unrecorded.excuses(first, second)
        )
        if key not in begun and any(again):
            yield f"{key} had its effect outside {len(notes)} times"


class _Unrecorded:
    """Lives whose registration a rollback lost, so that the life before them could join again in between."""

    def __init__(self, history: History) -> None:
        losses = Losses(history)
        self._lost_at = {
            (life.player, life.number): loss.lost_at
            for life in (lives_of(history) if losses else ())
            for loss in reversed(losses.all)
            if life.began < loss.lost_at and loss.kept_until < life.up
        }

    def excuses(self, first: Event, second: Event) -> bool:
        """Return whether the first was had by an older life, after the newer one's registration was lost."""
        lost_at = self._lost_at.get((second.who, second.life), math.inf)
        return first.who == second.who and first.life < second.life and lost_at < first.at


def _is_forgotten(losses: Losses, first: Event, second: Event) -> bool:
    return losses.may_forget(first.at, second.at, first.who)


def _begun_in_vain(history: History, losses: Losses) -> set[str]:
    """Attempts at jobs whose claim may be gone: another one may have the same token."""
    return {
        attempt_key(note.data["job"], note.data["token"])
        for note in history.notes("job.began")
        if losses.covers(note.at, note.who)
    }


def effect_none_lost(history: History) -> Iterator[str | int]:
    """What was told as done is there; what was only ever refused is not."""
    if not history.notes("final"):
        return
    there = {row["effect"] for row in finals(history, tables.EFFECTS)}
    tries: dict[str, list[Deed]] = defaultdict(list)
    for deed in history.deeds("effect"):
        tries[deed.asked["key"]].append(deed)
    yield len(tries)
    losses = Losses(history)
    for key, deeds in tries.items():
        done = [deed for deed in deeds if deed.is_ok and not losses.may_have_lost(deed)]
        if done and key not in there:
            yield f"{done[0]}, and it is lost"
        if key in there and not any(deed.may_be for deed in deeds):
            yield f"{deeds[-1]}, and it is there"
    yield from (f"the effect {key} is there, and nobody tried to have it" for key in there - tries.keys())


def writes_none_lost(history: History) -> Iterator[str | int]:
    """The last small write of each player is the last that it was told of, or a later one."""
    if not history.notes("final"):
        return
    last = {row["player"]: (row["life"], row["number"]) for row in finals(history, tables.WRITES)}
    told: dict[str, tuple[int, int]] = {}
    losses = Losses(history)
    for deed in history.deeds("write"):
        yield 1
        if deed.is_ok and not losses.may_have_lost(deed):
            told[deed.who] = max(told.get(deed.who, (0, 0)), (deed.life, deed.asked["number"]))
    for who, write in told.items():
        if last.get(who, (0, 0)) < write:
            yield f"{who} was told of write {write}, and the last that is there is {last.get(who)}"


EFFECT_CHECKS: Final = (
    Check("effect-once", "under one key an effect is had once, and whole", effect_once),
    Check("effect-none-lost", "an effect that was told is there; a refused one is not", effect_none_lost),
    Check("writes-none-lost", "a write that was told is there", writes_none_lost),
)
