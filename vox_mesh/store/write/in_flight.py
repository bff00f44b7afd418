"""What is under way: the callers who wait, and the request that carries their scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vox_mesh.errors import DatabaseUnavailable, MeshError, OutcomeUnknown
from vox_mesh.store.script import Outcome, Script
from vox_mesh.store.write.request import Verdict


class PendingWrite:
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

    @property
    def is_waiting(self) -> bool:
        """Whether a request is to answer this caller; what the spool took over, the spool answers."""
        return not (self.is_spooled or self.future.done())

    def settle(self, verdicts: list[Verdict]) -> bool:
        """Hand the caller what became of its scripts, if it still waits; whether it did."""
        if not self.is_waiting:
            return False
        self.future.set_result(verdicts)
        return True

    def fail(self, error: MeshError) -> None:
        """Tell the caller, if it still waits."""
        if self.is_waiting:
            self.future.set_exception(error)

    def leave(self) -> None:
        """The caller has gone: nobody is left to be told anything, also if that was said already."""
        if not self.future.cancel() and not self.future.cancelled():
            self.future.exception()

    def kept(self, error: MeshError | None) -> None:
        """The spool's word: the scripts are on disk, or could not be kept."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result([Outcome(script.key, spooled=True) for script in self.scripts])
        elif self.is_in_doubt:
            reason = f"no answer came in time, and {error}"
            self.future.set_exception(OutcomeUnknown(reason, key=self.scripts[0].key))
        else:
            self.future.set_exception(error)


class InFlightRequest:
    """The request under way. `is_doubtful`: an answer got lost, so it may have been applied."""

    def __init__(self, entries: Sequence[PendingWrite]) -> None:
        self.entries = entries
        self.is_out = False
        self.is_doubtful = False  # set by `doubt`
        self.is_unsettled = False
        """Whether a copy of it seems to have come before it, and may have been applied."""
        self.fault: DatabaseUnavailable | None = None

    def doubt(self) -> None:
        """An answer got lost: from now on these scripts may turn up at the database at any time."""
        self.is_doubtful = True
        for entry in self.entries:
            for script in entry.scripts:
                script.may_come_again = True

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for it; what the spool has taken over does not."""
        return any(entry.is_waiting for entry in self.entries)

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may have been applied, now or before."""
        return self.is_out or self.may_be_applied

    @property
    def may_be_applied(self) -> bool:
        """Whether it may have been applied before."""
        return self.is_doubtful or self.is_unsettled

    def outlives(self, now: float) -> bool:
        """Whether it goes on, and may be sent again, for others than those who are late now."""
        return any(entry.is_waiting and entry.deadline > now for entry in self.entries)
