"""A lock as a register of its holder.

A hold may expire, but not before its TTL has passed since the earliest moment at which it can have been
granted or renewed; and it must not be reported after the latest. Times are of one clock that never steps.
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
"""A duplicate of a request arrives within this time."""

SLACK_S: Final = 0.01
"""The database's clock has a resolution of a millisecond, and may be slewed."""


class Kind(StrEnum):
    """The kinds of actions on a lock."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    WRITE = "write"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class LockAction:
    """One action on one lock. A look that finds no holder has no token, nor has a failed acquisition.

    An action of unknown outcome may be pending for the rest of the history: its end is infinity.
    """

    kind: Kind
    step: Step
    began: float
    ended: float = math.inf
    token: int | None = None
    ttl: float = 0.0
    grace: float = 0.0
    """How much too long its hold may last, until a step of the database's clock is noticed."""
    early: float = 0.0
    """How much too early its hold may end, while a correction of that clock fades."""
    actor: str = ""
    id: str = ""

    @property
    def is_optional(self) -> bool:
        """Whether it may have had no effect at all."""
        return self.step is Step.UNKNOWN

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.token} by {self.actor or 'an unknown agent'} "
            f"({self.began:.3f}…{self.ended:.3f}: {self.step})"
        )


class _Hold(NamedTuple):
    """The holder, and the earliest and latest moment from which its TTL counts."""

    token: int
    ttl: float
    earliest: float
    latest: float
    grace: float = 0.0
    early: float = 0.0

    @property
    def over(self) -> float:
        """From when it may have expired."""
        return self.earliest + self.ttl - self.early - SLACK_S

    @property
    def surely_over(self) -> float:
        """From when it must have expired."""
        return self.latest + self.ttl + self.grace + SLACK_S

    def __str__(self) -> str:
        return f"token {self.token} held until {self.over:.3f}…{self.surely_over:.3f}"


class _State(NamedTuple):
    """The lock after some actions, and the earliest moment at which it can have reached this state."""

    since: float = -math.inf
    hold: _Hold | None = None
    highest: int = 0

    def __str__(self) -> str:
        return f"no holder since token {self.highest}" if self.hold is None else str(self.hold)


def lock_fault(actions: Sequence[LockAction]) -> str | None:
    """Return `None` if the history of a lock is linearizable; else what could not be explained."""
    return fault(_Lock(actions), [one for each in actions for one in _as_seen(each)])


def _as_seen(each: LockAction) -> Iterator[LockAction]:
    # A rejected or unknown acquisition shows only in what others see, if at all.
    if each.kind is not Kind.ACQUIRE or each.step is Step.OK:
        yield each
    # The response may have been lost, and the hold over when the request was sent again.
    if each.kind is Kind.RENEW and each.step is Step.NO:
        yield replace(each, step=Step.UNKNOWN)


class _Lock:
    """The sequential behaviour of a lock."""

    start = _State()

    def __init__(self, actions: Sequence[LockAction]) -> None:
        acquisitions = [each for each in actions if each.kind is Kind.ACQUIRE]
        self._grants = sorted(each.token for each in acquisitions if each.token is not None)
        self._acquisitions = acquisitions

    def after(self, state: _State, each: LockAction) -> _State | None:
        """Return the lock after an action; `None` if its result is impossible in this state."""
        if state.since > each.ended:
            return None
        if each.kind is Kind.ACQUIRE:
            return self._granted(state, each)
        if each.kind is Kind.LOOK:
            return _without(state, each) if each.token is None else self._seen(state, each)
        is_held = state.hold is not None and state.hold.token == each.token
        if each.step is Step.NO:
            if is_held and each.kind is Kind.RELEASE:
                return _released(state, each)  # and sent again after a lost response, there was nothing left
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
        """Return whether its hold can never exist again."""
        is_held = state.hold is not None and state.hold.token == each.token
        return not is_held and each.token is not None and each.token <= state.highest

    def effect(self, each: LockAction) -> tuple[Kind, int | None, float]:
        """Return its effect on its hold: repeated renewals without a response all have the same one."""
        return each.kind, each.token, each.ttl

    def _granted(self, state: _State, each: LockAction) -> _State | None:
        assert each.token is not None
        free = _without(state, each)
        if free is None or each.token <= free.highest:
            return None
        if each.token > self._grants[bisect_right(self._grants, free.highest)]:
            return None  # tokens rise, so the lower one must have come first
        return _held(free._replace(highest=each.token), each)

    def _seen(self, state: _State, each: LockAction) -> _State | None:
        assert each.token is not None
        at = bisect_right(self._grants, each.token)
        if at and self._grants[at - 1] == each.token:
            is_held = state.hold is not None and state.hold.token == each.token
            return state if is_held and _is_there(state, each) else None
        # The holder never learned of this token: the response was lost.
        free = _without(state, each)
        if free is None or not self._is_asked_for(each) or each.token < free.highest:
            return None
        return free._replace(highest=each.token)

    def _is_asked_for(self, look: LockAction) -> bool:
        """Return whether a hold found by a look can belong to an acquisition that is pending or was given up.

        A request that was granted and released may have been duplicated, and the duplicate arrive later.
        """
        return any(
            each.began <= look.ended
            and (each.step is Step.UNKNOWN or each.ended + _COPY_S + each.ttl >= look.began)
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
    """Return whether the hold may still exist when the action begins."""
    return state.hold is not None and max(state.since, each.began) <= state.hold.surely_over


def _without(state: _State, each: LockAction) -> _State | None:
    """Yield the lock without a holder: at once, or after the hold expires, if that is early enough."""
    if state.hold is None:
        return state
    over = state.hold.over
    return _State(max(state.since, over), None, state.highest) if over <= each.ended else None
