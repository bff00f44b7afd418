"""Define the interface of a replica: a local copy that answers queries if it is fresh enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

Progress = Callable[[int, int], None]
"""Called with the amount done and the total."""


class ReplicaState(StrEnum):
    """The state of a replica. Out of touch, it keeps trying; off, it does not."""

    CATCHING_UP = "catching up"
    IN_TOUCH = "in touch"
    OUT_OF_TOUCH = "out of touch"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica's status. `age_ms`: the time since it was last known to hold every commit.

    The pushed replica counts, since its mark was created: `snapshots` applied, `start_overs` (the whole copy
    was dropped and fetched again), and `fetched_bytes` of the primary's log. A shared one has a
    `follower_pid`: the process that follows the primary.
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
    follower_pid: int | None = None

    @property
    def lag_ms(self) -> int | None:
        """Return the lag; 0 while it is in touch and no missing frame is known."""
        return 0 if self.state is ReplicaState.IN_TOUCH and self.lag_frames == 0 else self.age_ms


class Replica(Protocol):
    """A local copy of the primary, which follows it from its creation until it is closed."""

    @property
    def is_in_touch(self) -> bool:
        """Return whether the primary answered the last request."""

    @property
    def is_pushed(self) -> bool:
        """Return whether the primary pushes its commits now, so that polling is unnecessary."""

    def answer_now(self, statement: Statement) -> Rows | None:
        """Run a query without waiting; `None` if that is not possible."""

    async def answer(self, statement: Statement) -> Rows | None:
        """Run a query on data no older than this process has seen; `None` if the primary must answer."""

    async def caught_up(self) -> bool:
        """Wait briefly until it shows what this process has seen. Return whether it had to wait."""

    def note_write(self, asked_at: float | None) -> None:
        """Record that the primary answered a write sent at that time; `None` if it did not answer."""

    async def wait_until_caught_up(self, progress: Progress, patience_s: float) -> None:
        """Wait until it holds everything committed before this call; raise if stuck for `patience_s`."""

    def status(self) -> ReplicaStatus:
        """Return the replica's status."""

    async def close(self) -> None:
        """Stop following."""


class Interrupted(Exception):
    """The session with the primary can't continue; a new one follows after a pause."""


class Restarted(Interrupted):
    """The primary has a different log, or the file was changed: everything is fetched again, at once."""


class Spoiled(Restarted):
    """Another process changed the files during a change."""


class NeedsSnapshot(Interrupted):
    """The requested frame is no longer in the log: a snapshot has its content."""


class NoSnapshot(Interrupted):
    """The primary has no snapshot from that frame on, or not yet."""


class Incomplete(Interrupted):
    """A first snapshot lacks pages."""


class SessionOver(Interrupted):
    """The primary does not know the session: it has restarted since the hello."""
