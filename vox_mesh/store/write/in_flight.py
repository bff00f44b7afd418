"""Track pending writes and the batch in flight that contains them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vox_mesh.errors import DatabaseUnavailable, MeshError, OutcomeUnknown
from vox_mesh.store.script import Outcome, Script, Verdict


class PendingWrite:
    """The scripts of one caller, sent in one batch, and the future that the caller waits for."""

    __slots__ = ("deadline", "future", "is_outcome_unknown", "is_replay", "is_spooled", "scripts", "weight")

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
        self.is_outcome_unknown = False  # it was spooled while a batch that contains it may be applied

    @property
    def can_spool(self) -> bool:
        """Return whether these scripts may be spooled instead of sent."""
        return not self.is_replay and all(script.appendable for script in self.scripts)

    @property
    def is_waiting(self) -> bool:
        """Return whether a batch must still answer this caller; the spool answers spooled writes."""
        return not (self.is_spooled or self.future.done())

    def settle(self, verdicts: list[Verdict]) -> bool:
        """Answer the caller if it still waits. Return whether it did."""
        if not self.is_waiting:
            return False
        self.future.set_result(verdicts)
        return True

    def fail(self, error: MeshError) -> None:
        """Raise the error in the caller if it still waits."""
        if self.is_waiting:
            self.future.set_exception(error)

    def leave(self) -> None:
        """Drop the caller's future, and consume its exception if it has one."""
        if not self.future.cancel() and not self.future.cancelled():
            self.future.exception()

    def settle_spooled(self, error: MeshError | None) -> None:
        """Answer the caller for the spool: the scripts are on disk, or could not be stored."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result([Outcome(script.key, spooled=True) for script in self.scripts])
        elif self.is_outcome_unknown:
            reason = f"no answer came in time, and {error}"
            self.future.set_exception(OutcomeUnknown(reason, key=self.scripts[0].key))
        else:
            self.future.set_exception(error)


class InFlightBatch:
    """The batch that is being sent."""

    def __init__(self, writes: Sequence[PendingWrite]) -> None:
        self.writes = writes
        self.is_out = False
        self.is_outcome_unknown = False
        """Whether an answer got lost, so that it may have been applied. Set by `mark_outcome_unknown`."""
        self.has_earlier_copy = False
        """Whether an earlier copy of it seems to have arrived, and may have been applied."""
        self.fault: DatabaseUnavailable | None = None

    def mark_outcome_unknown(self) -> None:
        """Record that an answer got lost: copies of these scripts may reach the database at any time."""
        self.is_outcome_unknown = True
        for write in self.writes:
            for script in write.scripts:
                script.may_come_again = True

    @property
    def scripts(self) -> Sequence[Script]:
        """Return the scripts of all writes, in order."""
        writes = self.writes
        if len(writes) == 1:
            return writes[0].scripts
        return [script for write in writes for script in write.scripts]

    def is_wanted(self) -> bool:
        """Return whether any caller still waits for it."""
        return any(write.is_waiting for write in self.writes)

    @property
    def is_replay(self) -> bool:
        """Return whether it has spooled scripts, whose answers no caller looks at."""
        return any(write.is_replay for write in self.writes)

    @property
    def may_take_effect(self) -> bool:
        """Return whether it may have been applied, or may be applied right now."""
        return self.is_out or self.may_be_applied

    @property
    def may_be_applied(self) -> bool:
        """Return whether an earlier attempt may have been applied."""
        return self.is_outcome_unknown or self.has_earlier_copy

    def outlives(self, now: float) -> bool:
        """Return whether it continues, and may be retried, for callers whose deadline is after `now`."""
        return any(write.is_waiting and write.deadline > now for write in self.writes)
