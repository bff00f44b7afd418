"""What to do about a conflict, and what became of a write.

*Left* is what a caller wants to write, *right* what somebody else has written since the caller has read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.errors import BadValue
from vox_mesh.occ.tables import WRITTEN_AT

# --- what to do about a conflict -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeRight:
    """What is in the database stays; the write is skipped, and its caller told."""


@dataclass(frozen=True, slots=True)
class TakeLeft:
    """The row becomes what the caller wanted; what is overwritten is part of the outcome."""


@dataclass(frozen=True, slots=True)
class Manual:
    """The row stays, and the conflict is recorded for somebody to decide."""


@dataclass(frozen=True, slots=True)
class DeferToAgent:
    """The same, for this agent to decide."""

    agent: str


@dataclass(frozen=True, slots=True)
class Merge:
    """What the two sides changed in different columns is put together; a clash goes whole to `below`."""

    below: TakeRight | TakeLeft | Manual | DeferToAgent = TakeRight()


Strategy = TakeRight | TakeLeft | Manual | DeferToAgent | Merge


# --- what becomes of a write ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """The row is as the caller wanted it. `overwritten`: what somebody else had made of it before."""

    written_at: str
    overwritten: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing was written: the row is `right`, or (`None`) gone."""

    right: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Merged:
    """The row is now `row`, with the changes of both sides; `right` is what it was before."""

    row: dict[str, Any]
    right: dict[str, Any]

    @property
    def written_at(self) -> str:
        """The row's version."""
        return str(self.row[WRITTEN_AT])


@dataclass(frozen=True, slots=True)
class ConflictRecorded:
    """Nothing was written: the row is `right`, or (`None`) gone, and the conflict waits for a decision."""

    conflict_id: str
    right: dict[str, Any] | None


Result = Written | Skipped | Merged | ConflictRecorded


def check_strategy(strategy: Strategy) -> None:
    """Refuse what is no strategy, or has none below it that decides."""
    lowest = strategy.below if isinstance(strategy, Merge) else strategy
    if isinstance(lowest, Merge) or not isinstance(lowest, Strategy):
        raise BadValue(f"{strategy!r} is no strategy", hint="for example Merge(below=Manual())")
    if isinstance(lowest, DeferToAgent) and not lowest.agent:
        raise BadValue("a conflict can't be deferred to an agent without a name")
