"""Build a batch: the steps of one transaction, sent in one request.

Conditions are those of the Hrana protocol: a server evaluates them itself, a local engine step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from vox_mesh.store.rows import Value

StepVerdict = bool | None
"""The result of a step: `True` succeeded, `False` failed, `None` skipped."""


class Ok(NamedTuple):
    """The step was run and succeeded."""

    step: int

    def holds(self, verdicts: Sequence[StepVerdict]) -> bool:
        """Return whether the condition holds, given the results of the steps so far."""
        return verdicts[self.step] is True


class Failed(NamedTuple):
    """The step was run and failed."""

    step: int

    def holds(self, verdicts: Sequence[StepVerdict]) -> bool:
        """Return whether the condition holds, given the results of the steps so far."""
        return verdicts[self.step] is False


class Not(NamedTuple):
    """The condition does not hold."""

    condition: Condition

    def holds(self, verdicts: Sequence[StepVerdict]) -> bool:
        """Return whether the condition holds, given the results of the steps so far."""
        return not self.condition.holds(verdicts)


class All(NamedTuple):
    """All conditions hold."""

    conditions: tuple[Condition, ...]

    def holds(self, verdicts: Sequence[StepVerdict]) -> bool:
        """Return whether the condition holds, given the results of the steps so far."""
        # A plain loop: this runs for every request, and `all` costs more.
        for each in self.conditions:  # noqa: SIM110
            if not each.holds(verdicts):
                return False
        return True


class AnyOf(NamedTuple):
    """At least one condition holds."""

    conditions: tuple[Condition, ...]

    def holds(self, verdicts: Sequence[StepVerdict]) -> bool:
        """Return whether the condition holds, given the results of the steps so far."""
        for each in self.conditions:  # noqa: SIM110
            if each.holds(verdicts):
                return True
        return False


Condition = Ok | Failed | Not | All | AnyOf


class BatchStep(NamedTuple):
    """One statement, run on its condition or, without one, if the previous step succeeded."""

    sql: str
    params: Sequence[Value] = ()
    condition: Condition | None = None
    wants_rows: bool = False

    def is_due(self, verdicts: Sequence[StepVerdict]) -> bool:
        """Return whether to run the step, given the results of all steps before it."""
        if self.condition is None:
            return not verdicts or verdicts[-1] is True
        return self.condition.holds(verdicts)


_COMMIT: Final = BatchStep("COMMIT")


@cache
def _rollback(commit: int) -> BatchStep:
    """Return the last step of a batch whose `COMMIT` is the step `commit`."""
    return BatchStep("ROLLBACK", (), All((Not(Ok(commit)), Ok(0))))


class StepRows(NamedTuple):
    """A step that succeeded, and its rows."""

    rows: Sequence[Sequence[Value]]


class StepError(NamedTuple):
    """A step that failed, with SQLite's name for the fault."""

    code: str
    message: str

    @property
    def is_busy(self) -> bool:
        """Return whether another writer held the database; the statement itself is fine."""
        return self.code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

    @property
    def is_constraint(self) -> bool:
        """Return whether a constraint of the schema failed."""
        return self.code.startswith("SQLITE_CONSTRAINT")

    @property
    def is_fault(self) -> bool:
        """Return whether the database itself failed, independently of the statement."""
        return self.code.startswith(_FAULTS)

    @property
    def is_storage(self) -> bool:
        """Return whether the disk of the database is full or failing."""
        return self.code.startswith(_STORAGE)


_STORAGE: Final = ("SQLITE_FULL", "SQLITE_IOERR")
_FAULTS: Final = (
    "SQLITE_CANTOPEN",
    "SQLITE_CORRUPT",
    "SQLITE_FULL",
    "SQLITE_INTERRUPT",
    "SQLITE_IOERR",
    "SQLITE_NOMEM",
    "SQLITE_NOTADB",
    "SQLITE_READONLY",
    "TRANSACTION_",
)

_BEGIN: Final = BatchStep("BEGIN IMMEDIATE")
DONE: Final = StepRows(())
StepResult = StepRows | StepError | None


class Batch:
    """`BEGIN IMMEDIATE`, the steps, `COMMIT` if the last of them succeeded, else `ROLLBACK`.

    Steps are added in order. `encoded` is the driver's encoding of the batch, so that a retry sends the same
    bytes. `scripts` is the number of scripts that the batch applies at once. `patience_s` is how long the
    answer may take, if that is longer than for others.
    """

    __slots__ = ("encoded", "patience_s", "scripts", "steps")

    def __init__(self) -> None:
        self.steps: list[BatchStep] = [_BEGIN]
        self.encoded: bytes | None = None
        self.scripts = 1
        self.patience_s = 0.0

    @property
    def is_single_statement(self) -> bool:
        """Return whether the batch is one statement, without `BEGIN` and `COMMIT`."""
        return len(self.steps) == 1

    @property
    def wants_rows(self) -> bool:
        """Return whether the answer holds rows of any step."""
        return any(step.wants_rows for step in self.steps)

    def rehearsal(self) -> Batch:
        """Return the same transaction with `ROLLBACK` as its end: it changes nothing."""
        batch = Batch()
        batch.steps = [*self.steps[:-2], _rollback(0)._replace(condition=Ok(0))]
        return batch

    def add(
        self,
        sql: str,
        params: Sequence[Value] = (),
        *,
        after: Condition | None = None,
        wants_rows: bool = False,
    ) -> int:
        """Add a step that runs if the previous one succeeded, or on the given condition. Return its index."""
        steps = self.steps
        index = len(steps)
        steps.append(BatchStep(sql, params, after, wants_rows))
        return index

    def seal(self, after: Condition | None = None) -> Batch:
        """Add the end: `COMMIT` after the last step (or on the given condition), otherwise `ROLLBACK`."""
        commit = _COMMIT if after is None else _COMMIT._replace(condition=after)
        self.steps += (commit, _rollback(len(self.steps)))
        return self


class BatchResult(NamedTuple):
    """The result of each step of a sealed batch."""

    steps: Sequence[StepResult]

    @property
    def committed(self) -> bool:
        """Return whether the transaction took effect."""
        return isinstance(self.steps[-2 if len(self.steps) > 1 else 0], StepRows)

    @property
    def commit_error(self) -> StepError | None:
        """Return the error of the `COMMIT`, if it was reached and failed."""
        end = self.steps[-2 if len(self.steps) > 1 else 0]
        return end if isinstance(end, StepError) else None

    @property
    def is_over(self) -> bool:
        """Return whether the connection has left the transaction; if not, it must not be reused."""
        begin = self.steps[0]
        if isinstance(begin, StepError) and len(self.steps) > 1:
            return begin.is_busy  # any other failure means that a transaction was already open
        return len(self.steps) == 1 or self.committed or isinstance(self.steps[-1], StepRows)

    @property
    def error(self) -> StepError | None:
        """Return the first error."""
        return next((step for step in self.steps if isinstance(step, StepError)), None)
