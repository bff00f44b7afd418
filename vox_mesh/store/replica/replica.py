"""What a replica is to the store: a copy that answers if it can, and says how it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much."""


class ReplicaState(StrEnum):
    """What a replica is at. Out of touch, it goes on trying; off, it does not."""

    CATCHING_UP = "catching up"
    IN_TOUCH = "in touch"
    OUT_OF_TOUCH = "out of touch"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """How a replica stands. `age_ms`: for how long it has not been known to hold every commit.

    The pushed replica counts, since its mark was made: `snapshots` applied, `start_overs` (the whole copy was
    dropped to be fetched again), and `fetched_bytes` from the primary's log.
    """

    driver: str
    state: ReplicaState
    frame: int | None
    lag_frames: int | None
    age_ms: int | None
    bytes: int
    error: str
    snapshots: int = 0
    start_overs: int = 0
    fetched_bytes: int = 0

    @property
    def lag_ms(self) -> int | None:
        """How far behind it is: not at all, while it is in touch and nothing is known that it lacks."""
        return 0 if self.state is ReplicaState.IN_TOUCH and self.lag_frames == 0 else self.age_ms


class Replica(Protocol):
    """A local copy of the primary. It begins to follow when it is made, and until it is closed."""

    @property
    def is_in_touch(self) -> bool:
        """Whether the primary answered when it was last asked."""

    @property
    def is_pushed(self) -> bool:
        """Whether commits reach it by themselves, now: then nobody need ask for them."""

    def answer_now(self, statement: Statement) -> Rows | None:
        """Answer a query without waiting for anything; `None`: that can't be done."""

    async def answer(self, statement: Statement) -> Rows | None:
        """Answer a query, no less than this process has seen before; `None`: ask the primary."""

    def written(self, asked_at: float | None) -> None:
        """The primary has answered a write that was sent at that moment; `None`: it has not."""

    async def caught_up(self, progress: Progress, patience_s: float) -> None:
        """Wait until it holds all that was committed before now; raise if it stands still for so long."""

    def status(self) -> ReplicaStatus:
        """How it stands."""

    async def close(self) -> None:
        """Stop following."""
