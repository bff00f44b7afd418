"""Whether what was told of one thing can have been so: a search for an order of all that was done to it.

Each operation took effect at one moment between its begin and its end, and the order of those moments must
make sense of every answer. The search goes through the history once, from end to end of its operations, and
keeps every explanation of what was seen so far: a state, and which of those that are under way have taken
effect already. So it takes as long as the history is, times how much happens at once. Should the
explanations become too many, that is told as a fault: nothing is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

MOST_EXPLANATIONS: Final = 20_000
_SHOWN: Final = 4


class Operation(Protocol):
    """One thing that was done."""

    @property
    def began(self) -> float:
        """It had no effect before."""

    @property
    def ended(self) -> float:
        """Nor after."""

    @property
    def is_optional(self) -> bool:
        """Whether it may have had no effect at all."""


S = TypeVar("S")
O = TypeVar("O", bound=Operation)  # noqa: E741  # as in the papers
O_contra = TypeVar("O_contra", bound=Operation, contravariant=True)


class Model(Protocol[S, O_contra]):
    """How the thing behaves when all is done to it one after another. States can be hashed."""

    @property
    def start(self) -> S:
        """The state before everything."""

    def after(self, state: S, operation: O_contra) -> S | None:
        """The state after one more; `None` if that can't have been told in this state."""

    def is_moot(self, state: S, operation: O_contra) -> bool:
        """Whether an optional one can have no effect any more, whatever comes."""


class _TooMany(Exception):
    pass


Explanation = tuple[S, frozenset[int]]
"""A state, and those under way that have had their effect."""


def fault(model: Model[S, O], operations: Sequence[O]) -> str | None:
    """`None` if there is an order that explains everything; else what could not be explained."""
    explanations: set[Explanation[S]] = {(model.start, frozenset())}
    under_way: dict[int, O] = {}
    loose: set[int] = set()
    """Those under way whose end nobody knows: they go when they can have no effect any more."""
    for is_end, i in _moments(operations):
        if not is_end:
            under_way[i] = operations[i]
            if operations[i].ended == math.inf:
                loose.add(i)
            continue
        try:
            found = _with(i, explanations, under_way, model)
        except _TooMany:
            return f"more than {MOST_EXPLANATIONS} explanations of what led to {operations[i]}"
        if operations[i].is_optional:
            found |= explanations
        if not found:
            return _told(operations[i], explanations, under_way)
        moot = {j for j in loose if all(model.is_moot(state, under_way[j]) for state, _ in found)}
        loose -= moot
        gone = moot | {i}
        for j in gone:
            del under_way[j]
        explanations = {(state, done - gone) for state, done in found}
    return None


def _moments(operations: Sequence[Operation]) -> Iterator[tuple[bool, int]]:
    """All begins and ends, in order; what ends when another begins may still have come after it."""
    begins = ((each.began, False, i) for i, each in enumerate(operations))
    ends = ((each.ended, True, i) for i, each in enumerate(operations) if each.ended < math.inf)
    for _, is_end, i in sorted((*begins, *ends)):
        yield is_end, i


def _with(
    i: int, explanations: Iterable[Explanation[S]], under_way: Mapping[int, O], model: Model[S, O]
) -> set[Explanation[S]]:
    """The explanations in which one of those under way has had its effect, after any of the others."""
    found = set()
    stack = list(explanations)
    seen = set(stack)
    while stack:
        state, done = stack.pop()
        if i in done:
            found.add((state, done))
            continue
        for j, operation in under_way.items():
            if j in done or (after := model.after(state, operation)) is None:
                continue
            step = after, done | {j}
            if j == i:
                found.add(step)
            elif step not in seen:
                seen.add(step)
                stack.append(step)
        if len(seen) > MOST_EXPLANATIONS:
            raise _TooMany
    return found


def _told(operation: O, explanations: Iterable[Explanation[S]], under_way: Mapping[int, O]) -> str:
    states = list(dict.fromkeys(str(state) for state, _ in explanations))
    others = [str(each) for each in under_way.values() if each is not operation]
    told = [f"{operation} can't have been, with {' or '.join(states[:_SHOWN])}"]
    if others:
        told.append(f"and these under way: {'; '.join(others[:_SHOWN])}")
    return ", ".join(told)
