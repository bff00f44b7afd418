"""Whether what was told of one lock can have been so: a search for an order of all that was done to it.

The lock is a register of who holds it. Each operation took effect at one moment between its begin and its
end, and the order of those moments must make sense of every answer. A hold may end by itself, but not before
its time has passed since the earliest moment at which it can have been granted or renewed; and nobody may be
told that it is there after the latest. Times are of one clock that never steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

SLACK_S: Final = 0.01
"""The database tells whole milliseconds, by a clock that may be slewed."""


class Kind(StrEnum):
    """What can be done to a lock."""

    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    WRITE = "write"
    LOOK = "look"


class Told(StrEnum):
    """What an operation's caller was told."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing done to one lock. A look that finds nobody has no token, nor has an acquisition in vain."""

    kind: Kind
    told: Told
    began: float
    ended: float = math.inf
    token: int | None = None
    ttl: float = 0.0
    actor: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class _Hold:
    """Who holds the lock, and the earliest and latest moment from which its time counts."""

    token: int
    ttl: float
    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class _State:
    """The lock after some operations: `now` is the earliest moment that it can be."""

    now: float = -math.inf
    hold: _Hold | None = None
    highest: int = 0


class History:
    """All that was done to one lock."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        # What was refused, or granted to nobody's knowledge, shows in what others see, if at all.
        self._operations = sorted((each for each in operations if _counts(each)), key=lambda each: each.began)
        self._grants = sorted(
            each.token for each in self._operations if each.kind is Kind.ACQUIRE and each.token is not None
        )
        self._acquisitions = [each for each in operations if each.kind is Kind.ACQUIRE]

    def fault(self) -> str | None:
        """`None` if there is an order that explains everything; else what could not be explained."""
        furthest, stuck = -1, ""
        start = (0, 0, _State())
        seen = {start}
        stack = [start]
        while stack:
            done, first, state = stack.pop()
            while done >> first & 1:
                first += 1
            nexts = list(self._next(done, first))
            if not nexts or all(_is_optional(self._operations[i]) for i in self._left(done, first)):
                return None
            if done.bit_count() > furthest:
                furthest = done.bit_count()
                told = "\n  ".join(str(self._operations[i]) for i in nexts)
                stuck = (
                    f"after {furthest} operations, in the state {state}, none of these can be next:\n  {told}"
                )
            # Those that had to be over soonest come last, and so are tried first.
            for i in sorted(nexts, key=lambda i: self._operations[i].ended, reverse=True):
                after = self._after(state, self._operations[i])
                if after is not None and (step := (done | 1 << i, first, after)) not in seen:
                    seen.add(step)
                    stack.append(step)
        return stuck

    def _left(self, done: int, first: int) -> Iterator[int]:
        return (i for i in range(first, len(self._operations)) if not done >> i & 1)

    def _next(self, done: int, first: int) -> Iterator[int]:
        """Those that began before any that is left was over."""
        over = math.inf
        for i in self._left(done, first):
            each = self._operations[i]
            if each.began > over:
                return
            over = min(over, each.ended)
            yield i

    def _after(self, state: _State, each: Operation) -> _State | None:
        """The lock after one more operation; `None` if it can't have been told that now."""
        now = max(state.now, each.began)
        if now > each.ended:
            return None
        state = replace(state, now=now)
        match each.kind, each.told:
            case Kind.ACQUIRE, _:
                return self._granted(state, each)
            case Kind.LOOK, _ if each.token is not None:
                return self._seen(state, each)
            case Kind.LOOK, _:
                return _without(state, each)
            case _, Told.NO:
                is_held = state.hold is not None and state.hold.token == each.token
                return _without(state, each) if is_held else state
        if not _is_held(state, each):
            return None
        match each.kind:
            case Kind.RELEASE:
                return replace(state, hold=None)
            case Kind.RENEW:
                return self._held(state, each)
            case _:
                return state

    def _granted(self, state: _State, each: Operation) -> _State | None:
        assert each.token is not None
        free = _without(state, each)
        if free is None or each.token <= free.highest:
            return None
        if any(free.highest < token < each.token for token in self._grants):
            return None  # tokens rise, so that the lower one had to be first
        return self._held(replace(free, highest=each.token), each)

    def _held(self, state: _State, each: Operation) -> _State:
        assert each.token is not None
        return replace(state, hold=_Hold(each.token, each.ttl, state.now, each.ended))

    def _seen(self, state: _State, each: Operation) -> _State | None:
        assert each.token is not None
        if each.token in self._grants:
            return state if _is_held(state, each) else None
        # Somebody has it who was never told of this token: the answer was lost.
        free = _without(state, each)
        is_asked_for = any(
            other.began <= each.ended and (other.told is Told.UNKNOWN or other.ended >= each.began)
            for other in self._acquisitions
        )
        if free is None or not is_asked_for or each.token < free.highest:
            return None
        return replace(free, highest=each.token)


def _counts(each: Operation) -> bool:
    return each.kind is not Kind.ACQUIRE or each.told is Told.YES


def _is_optional(each: Operation) -> bool:
    return each.told is Told.UNKNOWN


def _is_held(state: _State, each: Operation) -> bool:
    """Whether the operation's hold can still be there."""
    hold = state.hold
    return hold is not None and hold.token == each.token and state.now <= hold.latest + hold.ttl + SLACK_S


def _without(state: _State, each: Operation) -> _State | None:
    """The lock with nobody holding it: at once, or when the hold's time is over, if that is soon enough."""
    if state.hold is None:
        return state
    over = state.hold.earliest + state.hold.ttl - SLACK_S
    return replace(state, now=max(state.now, over), hold=None) if over <= each.ended else None
