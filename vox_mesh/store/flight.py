"""What is under way: the callers who wait, and the request that carries their scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.store.request import Verdict
from vox_mesh.store.script import Script


class Entry:
    """Scripts of one caller that go in one request, and the caller's place to wait."""

    __slots__ = ("deadline", "future", "is_in_doubt", "is_replay", "is_spooled", "scripts", "weight")

    def __init__(
        self,
        scripts: Sequence[Script],
        deadline: float,
        future: asyncio.Future[list[Verdict]],
        is_replay: bool,
    ) -> None:
        self.scripts = scripts
        self.weight = scripts[0].weight if len(scripts) == 1 else sum(script.weight for script in scripts)
        self.deadline = deadline
        self.future = future
        self.is_replay = is_replay
        self.is_spooled = False
        self.is_in_doubt = False  # it went to the spool from a request that may have been applied

    @property
    def may_detour(self) -> bool:
        """Whether the spool may keep these scripts instead."""
        return not self.is_replay and all(script.appendable for script in self.scripts)

    def settle(self, verdicts: list[Verdict]) -> bool:
        """Hand the caller what became of its scripts, if it still waits; whether it did."""
        if self.future.done():
            return False
        self.future.set_result(verdicts)
        return True

    def fail(self, error: MeshError) -> None:
        """Tell the caller, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


class Flight:
    """The request under way. `is_doubtful`: an answer got lost, so it may have been applied."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.is_out = False
        self.is_doubtful = False
        self.fault: DatabaseUnavailable | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for it; what the spool has taken over does not."""
        return any(not (entry.is_spooled or entry.future.done()) for entry in self.entries)

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may have been applied, now or before."""
        return self.is_out or self.is_doubtful

    def outlives(self, now: float) -> bool:
        """Whether it goes on, and may be sent again, for others than those who are late now."""
        return any(
            not entry.future.done() and (entry.is_spooled or entry.deadline > now) for entry in self.entries
        )
