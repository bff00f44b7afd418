"""Checks of a history, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from proof.history import History

_SHOWN: Final = 5
"""Faults that a verdict shows; the history has the rest."""

CheckFunction = Callable[[History], Iterator[str | int]]
"""Yields a line for each fault, and numbers: how much it has examined."""


@dataclass(frozen=True, slots=True)
class Check:
    """A promise of the mesh, and the function that checks it."""

    name: str
    promise: str
    judge: CheckFunction


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a promise was kept in one history."""

    name: str
    promise: str
    looks: int
    """How much was examined. A promise without anything to examine is not proven, only not broken."""
    faults: tuple[str, ...]
    count: int

    @property
    def holds(self) -> bool:
        """Whether no fault was found."""
        return not self.count

    @property
    def is_seen(self) -> bool:
        """Whether anything was examined."""
        return self.looks > 0

    def __str__(self) -> str:
        if self.holds:
            item = "held  " if self.is_seen else "unseen"
            return f"{item}  {self.name:<24} {self.looks:>8} looks"
        left = self.count - len(self.faults)
        lines = (*self.faults, f"… and {left} more") if left else self.faults
        text = "\n".join(f"          {line}" for line in lines)
        return f"BROKEN  {self.name:<24} {self.promise}\n{text}"


def evaluate(check: Check, history: History) -> Verdict:
    """Run one check on a history."""
    looks = count = 0
    faults: list[str] = []
    for item in check.judge(history):
        if isinstance(item, int):
            looks += item
            continue
        count += 1
        if len(faults) < _SHOWN:
            faults.append(item)
    return Verdict(check.name, check.promise, looks, tuple(faults), count)
