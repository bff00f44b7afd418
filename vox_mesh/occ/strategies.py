"""Strategies for conflicts, and the results of optimistic writes.

*Left* is the row that the caller wants to write, *right* the row that was written since the caller's read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.errors import BadValue
from vox_mesh.occ.tables import WRITTEN_AT

# --- strategies ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeRight:
    """Keep the row in the database: the write is skipped, and the caller gets `Skipped`."""


@dataclass(frozen=True, slots=True)
class TakeLeft:
    """Write the caller's row; the result contains the overwritten one."""


@dataclass(frozen=True, slots=True)
class Manual:
    """Keep the row, and record the conflict for a later decision."""


@dataclass(frozen=True, slots=True)
class DeferToAgent:
    """Keep the row, and record the conflict for this agent to decide."""

    agent: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Combine changes to different columns; if the sides clash, `below` decides on all of it."""

    below: TakeRight | TakeLeft | Manual | DeferToAgent = TakeRight()


Strategy = TakeRight | TakeLeft | Manual | DeferToAgent | Merge


# --- results -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """The row was written as the caller wanted. `overwritten`: the other writer's row before, if any."""

    written_at: str
    overwritten: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing was written: the row is `right`, or (`None`) deleted."""

    right: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Merged:
    """The row is now `row`, with the changes of both sides; it was `right` before."""

    row: dict[str, Any]
    right: dict[str, Any]

    @property
    def written_at(self) -> str:
        """Return the row's version."""
        return str(self.row[WRITTEN_AT])


@dataclass(frozen=True, slots=True)
class ConflictRecorded:
    """Nothing was written: the row is `right`, or (`None`) deleted, and the conflict is open."""

    conflict_id: str
    right: dict[str, Any] | None


Result = Written | Skipped | Merged | ConflictRecorded


def check_strategy(strategy: Strategy) -> None:
    """Raise `BadValue` for an invalid strategy."""
    lowest = strategy.below if isinstance(strategy, Merge) else strategy
    if isinstance(lowest, Merge) or not isinstance(lowest, Strategy):
        raise BadValue(
            f"strategy must be a conflict strategy, got {strategy!r}", hint="pass Merge(below=Manual())"
        )
    if isinstance(lowest, DeferToAgent) and not lowest.agent:
        raise BadValue("agent of DeferToAgent must not be empty", hint="pass the agent's id")
