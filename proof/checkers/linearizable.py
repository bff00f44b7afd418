"""Linearizability: a search for an order of all actions that explains every result.

Each action took effect at one moment between its start and its end, and the order of those moments must
explain every result. The search goes through the history once and keeps every explanation of the results so
far: a state, and which of the pending actions have taken effect already. It takes time in proportion to the
length of the history times its concurrency. If there are too many explanations, that is reported as a fault:
nothing is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

_STEPS: Final = 100_000
_STEPS_EACH: Final = 500
"""The bound of attempts: a base, plus this many for each action."""
_SHOWN: Final = 4


class Action(Protocol):
    """One action."""

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
O = TypeVar("O", bound=Action)  # noqa: E741  # as in the papers
O_contra = TypeVar("O_contra", bound=Action, contravariant=True)


class Model(Protocol[S, O_contra]):
    """The sequential behaviour of an object. States must be hashable."""

    @property
    def start(self) -> S:
        """The initial state."""

    def after(self, state: S, action: O_contra) -> S | None:
        """Return the state after an action; `None` if its result is impossible in this state."""

    def is_moot(self, state: S, action: O_contra) -> bool:
        """Return whether an optional action can have no effect any more."""

    def effect(self, action: O_contra) -> Hashable | None:
        """Return its effect, if it may happen at any time: of several with the same effect, the first may go
        first."""


Explanation = tuple[S, frozenset[int]]
"""A state, and the pending actions that have taken effect."""


def fault(model: Model[S, O], actions: Sequence[O]) -> str | None:
    """Return `None` if some order explains everything; else what could not be explained."""
    return _Search(model, actions).fault()


class _TooMany(Exception):
    pass


class _Search(Generic[S, O]):
    def __init__(self, model: Model[S, O], actions: Sequence[O]) -> None:
        self._model = model
        self._actions = actions
        self._explanations: set[Explanation[S]] = {(model.start, frozenset())}
        self._under_way: dict[int, O] = {}
        self._loose: set[int] = set()
        """Pending actions without a known end: dropped when they can have no effect any more."""
        self._last_with: dict[Hashable, int] = {}
        self._before: dict[int, int] = {}
        """The previous action with the same effect. It is as good as this one, which may come later."""
        self._left = _STEPS + _STEPS_EACH * len(actions)

    def fault(self) -> str | None:
        """Return what could not be explained."""
        for is_end, i in _moments(self._actions):
            action = self._actions[i]
            if not is_end:
                self._under_way[i] = action
                if action.ended == math.inf:
                    self._loosen(i, action)
                continue
            try:
                found = self._with(i)
            except _TooMany:
                return f"there are too many explanations to tell whether {action} can have been"
            if action.is_optional:
                found |= self._explanations
            if not found:
                return self._describe(action)
            self._end(i, found)
        return None

    def _loosen(self, i: int, action: O) -> None:
        self._loose.add(i)
        effect = self._model.effect(action)
        if effect is not None:
            if effect in self._last_with:
                self._before[i] = self._last_with[effect]
            self._last_with[effect] = i

    def _may_be_next(self, i: int, done: frozenset[int]) -> bool:
        before = self._before.get(i)
        return i not in done and (before is None or before in done or before not in self._under_way)

    def _with(self, i: int) -> set[Explanation[S]]:
        """Yield the explanations in which a pending action has taken effect, after any of the others."""
        found = set()
        stack = list(self._explanations)
        seen = set(stack)
        after: dict[int, S | None] = {}
        while stack:
            self._left -= len(self._under_way)
            if self._left < 0:
                raise _TooMany
            state, done = stack.pop()
            if i not in done:
                after = {
                    j: self._model.after(state, each)
                    for j, each in self._under_way.items()
                    if self._may_be_next(j, done)
                }
                # An action that does not change the state prevents nothing: it takes effect at once.
                done |= {j for j, following in after.items() if following == state}
            if i in done:
                found.add((state, done))
                continue
            for j, following in after.items():
                if j in done or following is None:
                    continue
                step = following, done | {j}
                if j == i:
                    found.add(step)
                elif step not in seen:
                    seen.add(step)
                    stack.append(step)
        return found

    def _end(self, i: int, found: set[Explanation[S]]) -> None:
        """Process the end of an action, and drop the ones that can have no effect any more."""
        gone = {i}
        for j in self._loose:
            if all(self._model.is_moot(state, self._under_way[j]) for state, _ in found):
                gone.add(j)
        self._loose -= gone
        for j in gone:
            del self._under_way[j]
        self._explanations = {(state, done - gone) for state, done in found}

    def _describe(self, action: O) -> str:
        states = list(dict.fromkeys(str(state) for state, _ in self._explanations))
        others = [str(each) for each in self._under_way.values() if each is not action]
        text = f"{action} can't have been, with {' or '.join(states[:_SHOWN])}"
        return f"{text}, and under way {'; '.join(others[:_SHOWN])}" if others else text


def _moments(actions: Sequence[Action]) -> Iterator[tuple[bool, int]]:
    """Yield all starts and ends, in order; an action that ends when another starts may come after it."""
    begins = ((each.began, False, i) for i, each in enumerate(actions))
    ends = ((each.ended, True, i) for i, each in enumerate(actions) if each.ended < math.inf)
    for _, is_end, i in sorted((*begins, *ends)):
        yield is_end, i
