"""A lock as a register of who holds it.

A hold may end by itself, but not before its time has passed since the earliest moment at which it can have
been granted or renewed; and nobody may be told that it is there after the latest. Times are of one clock that
never steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from proof.checkers.linearizable import fault
from proof.history import Step

_COPY_S: Final = 2.5
"""A copy of a request comes within this time, if there is one."""

SLACK_S: Final = 0.01
"""The database tells whole milliseconds, by a clock that may be slewed."""


class Kind(StrEnum):
    """What can be done to a lock."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    WRITE = "write"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class LockAction:
    """One thing done to one lock. A look that finds nobody has no token, nor has an acquisition in vain.

    What nobody knows of may be for ever under way: its end is then that of time.
    """

    kind: Kind
    text: Step
    began: float
    ended: float = math.inf
    token: int | None = None
    ttl: float = 0.0
    grace: float = 0.0
    """By how much its hold may last too long: until it is noticed that the database's clock was set."""
    early: float = 0.0
    """By how much its hold may end too soon: while a correction of that clock fades."""
    actor: str = ""
    id: str = ""

    @property
    def is_optional(self) -> bool:
        """Whether it may have had no effect at all."""
        return self.text is Step.UNKNOWN

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.token} by {self.actor or 'somebody'} "
            f"({self.began:.3f}…{self.ended:.3f}: {self.text})"
        )


class _Hold(NamedTuple):
    """Who holds the lock, and the earliest and latest moment from which its time counts."""

    token: int
    ttl: float
    earliest: float
    latest: float
    grace: float = 0.0
    early: float = 0.0

    @property
    def over(self) -> float:
        """It may end by itself from here on."""
        return self.earliest + self.ttl - self.early - SLACK_S

    @property
    def surely_over(self) -> float:
        """And has by here."""
        return self.latest + self.ttl + self.grace + SLACK_S

    def __str__(self) -> str:
        return f"token {self.token} held until {self.over:.3f}…{self.surely_over:.3f}"


class _State(NamedTuple):
    """The lock after some operations, and the earliest moment since when it can have been so."""

    since: float = -math.inf
    hold: _Hold | None = None
    highest: int = 0

    def __str__(self) -> str:
        return f"nobody since token {self.highest}" if self.hold is None else str(self.hold)


def lock_fault(actions: Sequence[LockAction]) -> str | None:
    """`None` if what was told of one lock can have been so; else what could not be explained."""
    return fault(_Lock(actions), [one for each in actions for one in _as_seen(each)])


def _as_seen(each: LockAction) -> Iterator[LockAction]:
    # What was refused, or granted to nobody's knowledge, shows in what others see, if at all.
    if each.kind is not Kind.ACQUIRE or each.text is Step.OK:
        yield each
    # An answer may have been lost, and when it was sent again the time that it had won was over.
    if each.kind is Kind.RENEW and each.text is Step.NO:
        yield replace(each, text=Step.UNKNOWN)


class _Lock:
    """What can be told of a lock."""

    start = _State()

    def __init__(self, actions: Sequence[LockAction]) -> None:
        acquisitions = [each for each in actions if each.kind is Kind.ACQUIRE]
        self._grants = sorted(each.token for each in acquisitions if each.token is not None)
        self._acquisitions = acquisitions

    def after(self, state: _State, each: LockAction) -> _State | None:
        """The lock after one more operation; `None` if it can't have been told that now."""
        if state.since > each.ended:
            return None
        if each.kind is Kind.ACQUIRE:
            return self._granted(state, each)
        if each.kind is Kind.LOOK:
            return _without(state, each) if each.token is None else self._seen(state, each)
        is_held = state.hold is not None and state.hold.token == each.token
        if each.text is Step.NO:
            if is_held and each.kind is Kind.RELEASE:
                return _released(state, each)  # and sent again after a lost answer, there was nothing left
            return _without(state, each) if is_held else state
        if not is_held or not _is_there(state, each):
            return None
        match each.kind:
            case Kind.RELEASE:
                return _released(state, each)
            case Kind.RENEW:
                return _held(state, each)
            case _:
                return state

    def is_moot(self, state: _State, each: LockAction) -> bool:
        """Whether its hold is over for ever."""
        is_held = state.hold is not None and state.hold.token == each.token
        return not is_held and each.token is not None and each.token <= state.highest

    def effect(self, each: LockAction) -> tuple[Kind, int | None, float]:
        """What it does to which hold: a holder that gets no answer goes on renewing, all to the same end."""
        return each.kind, each.token, each.ttl

    def _granted(self, state: _State, each: LockAction) -> _State | None:
        assert each.token is not None
        free = _without(state, each)
        if free is None or each.token <= free.highest:
            return None
        if each.token > self._grants[bisect_right(self._grants, free.highest)]:
            return None  # tokens rise, so that the lower one had to be first
        return _held(free._replace(highest=each.token), each)

    def _seen(self, state: _State, each: LockAction) -> _State | None:
        assert each.token is not None
        at = bisect_right(self._grants, each.token)
        if at and self._grants[at - 1] == each.token:
            is_held = state.hold is not None and state.hold.token == each.token
            return state if is_held and _is_there(state, each) else None
        # Somebody has it who was never told of this token: the answer was lost.
        free = _without(state, each)
        if free is None or not self._is_asked_for(each) or each.token < free.highest:
            return None
        return free._replace(highest=each.token)

    def _is_asked_for(self, look: LockAction) -> bool:
        """Whether what a look found can be somebody's who does not know, or has just given up.

        What was granted and released may have been carried twice, and the copy come after that.
        """
        return any(
            each.began <= look.ended
            and (each.text is Step.UNKNOWN or each.ended + _COPY_S + each.ttl >= look.began)
            for each in self._acquisitions
        )


def _held(state: _State, each: LockAction) -> _State:
    assert each.token is not None
    earliest = max(state.since, each.began)
    latest = each.ended if state.hold is None else min(each.ended, state.hold.surely_over)
    return _State(
        earliest, _Hold(each.token, each.ttl, earliest, latest, each.grace, each.early), state.highest
    )


def _released(state: _State, each: LockAction) -> _State:
    return _State(max(state.since, each.began), None, state.highest)


def _is_there(state: _State, each: LockAction) -> bool:
    """Whether the hold need not be over when the operation begins."""
    return state.hold is not None and max(state.since, each.began) <= state.hold.surely_over


def _without(state: _State, each: LockAction) -> _State | None:
    """The lock with nobody holding it: at once, or when the hold's time is over, if that is soon enough."""
    if state.hold is None:
        return state
    over = state.hold.over
    return _State(max(state.since, over), None, state.highest) if over <= each.ended else None
