"""A batch: the steps of one transaction, sent in one request.

Conditions are those of Hrana: a server runs the batch as it is, and a local engine walks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from vox_mesh.store.rows import Value

StepEnd = bool | None
"""What became of a step: done, failed, or (`None`) skipped."""


class Ok(NamedTuple):
    """The step was run and succeeded."""

    step: int

    def holds(self, verdicts: Sequence[StepEnd]) -> bool:
        """Whether it is so, given what became of the steps so far."""
        return verdicts[self.step] is True


class Failed(NamedTuple):
    """The step was run and failed."""

    step: int

    def holds(self, verdicts: Sequence[StepEnd]) -> bool:
        """Whether it is so, given what became of the steps so far."""
        return verdicts[self.step] is False


class Not(NamedTuple):
    """The other does not hold."""

    condition: Condition

    def holds(self, verdicts: Sequence[StepEnd]) -> bool:
        """Whether it is so, given what became of the steps so far."""
        return not self.condition.holds(verdicts)


class All(NamedTuple):
    """All of them hold."""

    conditions: tuple[Condition, ...]

    def holds(self, verdicts: Sequence[StepEnd]) -> bool:
        """Whether it is so, given what became of the steps so far."""
        # A plain loop: this is asked for every request, and `all` costs more.
        for each in self.conditions:  # noqa: SIM110
            if not each.holds(verdicts):
                return False
        return True


class AnyOf(NamedTuple):
    """At least one of them holds."""

    conditions: tuple[Condition, ...]

    def holds(self, verdicts: Sequence[StepEnd]) -> bool:
        """Whether it is so, given what became of the steps so far."""
        for each in self.conditions:  # noqa: SIM110
            if each.holds(verdicts):
                return True
        return False


Condition = Ok | Failed | Not | All | AnyOf


class BatchStep(NamedTuple):
    """One statement and when to run it: on its condition or, without one, if the step before it succeeded."""

    sql: str
    params: Sequence[Value] = ()
    condition: Condition | None = None
    wants_rows: bool = False

    def is_due(self, verdicts: Sequence[StepEnd]) -> bool:
        """Whether to run it, given what became of all steps before it."""
        if self.condition is None:
            return not verdicts or verdicts[-1] is True
        return self.condition.holds(verdicts)


_COMMIT: Final = BatchStep("COMMIT")


@cache
def _rollback(commit: int) -> BatchStep:
    """The last step, if that one is the `COMMIT`; that of each length is made once."""
    return BatchStep("ROLLBACK", (), All((Not(Ok(commit)), Ok(0))))


class StepRows(NamedTuple):
    """A step that succeeded."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Value]]


class StepError(NamedTuple):
    """A step that failed, with SQLite's name for the fault."""

    code: str
    message: str

    @property
    def is_busy(self) -> bool:
        """Another writer was in the way; nothing is wrong with the statement."""
        return self.code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

    @property
    def is_constraint(self) -> bool:
        """The schema said no."""
        return self.code.startswith("SQLITE_CONSTRAINT")

    @property
    def is_fault(self) -> bool:
        """The database is in trouble, whatever the statement."""
        return self.code.startswith(_FAULTS)

    @property
    def is_storage(self) -> bool:
        """The disk of the database is full, or fails."""
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
DONE: Final = StepRows((), ())
StepResult = StepRows | StepError | None


class Batch:
    """`BEGIN IMMEDIATE`, the steps, `COMMIT` if the last of them went well, else `ROLLBACK`.

    Steps are added in order. `encoded` is where a driver keeps the batch as bytes, so that sending it again
    sends the same. `scripts` is how many go in one go.
    """

    __slots__ = ("encoded", "scripts", "steps")

    def __init__(self) -> None:
        self.steps: list[BatchStep] = [_BEGIN]
        self.encoded: bytes | None = None
        self.scripts = 1

    @classmethod
    def lone(cls, sql: str, params: Sequence[Value]) -> Batch:
        """One statement, which is a transaction by itself."""
        batch = cls()
        batch.steps = [BatchStep(sql, params, wants_rows=True)]
        return batch

    @property
    def is_lone(self) -> bool:
        """Whether it is one statement, without `BEGIN` and `COMMIT`."""
        return len(self.steps) == 1

    def add(
        self,
        sql: str,
        params: Sequence[Value] = (),
        *,
        after: Condition | None = None,
        wants_rows: bool = False,
    ) -> int:
        """Add a step that runs if the one before it succeeded, or on the condition given; its index."""
        steps = self.steps
        index = len(steps)
        steps.append(BatchStep(sql, params, after, wants_rows))
        return index

    def seal(self, after: Condition | None = None) -> Batch:
        """Add the end: `COMMIT` after the last step (or on the condition given), otherwise `ROLLBACK`."""
        commit = _COMMIT if after is None else _COMMIT._replace(condition=after)
        self.steps += (commit, _rollback(len(self.steps)))
        return self


class BatchResult(NamedTuple):
    """What became of each step of a sealed batch."""

    steps: Sequence[StepResult]

    @property
    def committed(self) -> bool:
        """Whether the transaction took effect."""
        return isinstance(self.steps[-2 if len(self.steps) > 1 else 0], StepRows)

    @property
    def commit_error(self) -> StepError | None:
        """Why the end of the transaction failed, if it came to that."""
        end = self.steps[-2 if len(self.steps) > 1 else 0]
        return end if isinstance(end, StepError) else None

    @property
    def is_over(self) -> bool:
        """Whether the connection is out of the transaction; if not, it must not be used again."""
        begin = self.steps[0]
        if isinstance(begin, StepError) and len(self.steps) > 1:
            return begin.is_busy  # any other failure says that it was in one before
        return len(self.steps) == 1 or self.committed or isinstance(self.steps[-1], StepRows)

    @property
    def error(self) -> StepError | None:
        """The first failure."""
        return next((step for step in self.steps if isinstance(step, StepError)), None)
