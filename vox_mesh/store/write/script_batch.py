"""Turn many scripts into one batch, and the batch's result into a verdict for each script.

An *optimistic* batch has no savepoints: it is cheaper, and if anything in it fails, all of it is rolled
back. An *isolated* batch gives each script its own savepoint, so that a failing script does not affect the
others. A *single-statement* batch needs no transaction at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import (
    BadStatement,
    ConstraintFailed,
    DatabaseBusy,
    DatabaseFault,
    MeshError,
    NoAnswer,
    ScriptFailed,
    refused,
)
from vox_mesh.store.batch import (
    All,
    AnyOf,
    Batch,
    BatchResult,
    BatchStep,
    Condition,
    Failed,
    Not,
    Ok,
    StepError,
    StepResult,
    StepRows,
)
from vox_mesh.store.engine import Engine
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Script, Shape, Statement, Verdict, WriterId
from vox_mesh.store.write.script_statements import (
    CONDITION_VALUES,
    add_statements,
    answered_rows,
    by_key,
    plain_insert,
    split_rows,
    unguarded_statement,
)

_SQL: Final = named("scripts")
_REMEMBER_KEY: Final = _SQL["remember_key"]
_ONLY: Final = [0]
_NO_ROOM: Final = "make room on the disk of the database"


class Pruning(NamedTuple):
    """Idempotency keys to prune, and the age in seconds from which all keys of this writer may be pruned.

    `with_rows` are the keys whose scripts have stored answers.
    """

    keys: Sequence[str] = ()
    with_rows: Sequence[str] = ()
    older_than_s: int | None = None


NOTHING_TO_PRUNE: Final = Pruning()


class BatchWrapper(NamedTuple):
    """Statements around the scripts of a batch.

    `preface` runs before the scripts and `closing` after them: if one fails, nothing is applied. The log
    entries run after the scripts, outside their savepoints, and record each script's verdict; their rows are
    returned to the interceptor: `accepted` is used if all scripts have succeeded by then, `verdicts` if some
    may have failed. `condition` is the equivalent of the preface for a batch of a single statement; its
    values are `?3` to `?6` and the two times that `EARLIEST` and `LATEST` stand for.
    """

    preface: tuple[Statement, ...] = ()
    closing: Statement | None = None
    accepted: Statement | None = None
    verdicts: Callable[[], Statement | None] = lambda: None
    condition: Statement | None = None


NO_WRAPPER: Final = BatchWrapper()


class StaleWrapper(Exception):
    """The wrapper no longer matches the database. Nothing was applied; the batch must be bound again."""


class StorageFault(DatabaseFault):
    """The disk of the database is full or failing: nothing can be written for now."""


class CommitFailed(DatabaseFault):
    """The database failed at the commit. It may later find the transaction in its log and apply it."""


class CommitNotStored(CommitFailed, StorageFault):
    """The commit failed because the disk of the database is full or failing."""


class RolledBack(Exception):
    """Part of an optimistic batch failed, so none of it was applied.

    `knew_keys`: one of its keys was already stored, as if a copy of it had been applied.
    """

    def __init__(self, *, knew_keys: bool = False) -> None:
        super().__init__()
        self.knew_keys = knew_keys


class ScriptBatch(Batch):
    """The batch of one or more scripts, and what its result means for each of them.

    The preface of its wrapper runs before the scripts, the log entries and the closing check after them.
    """

    __slots__ = ("_closing", "_entries", "_scripts", "_wrapper")

    def __init__(self, scripts: Sequence[Script], wrapper: BatchWrapper) -> None:
        super().__init__()
        self._scripts = scripts
        self._wrapper = wrapper
        self._entries: int | None = None
        self._closing: int | None = None
        for statement in wrapper.preface:
            self.add(statement.sql, statement.params)

    def verdicts(self, result: BatchResult) -> list[Verdict]:
        """Return the verdict of each script, in order.

        Raises:
            RolledBack: An optimistic batch failed; nothing was applied.
            StaleWrapper: The wrapper does not match the database; nothing was applied.
        """
        raise NotImplementedError

    def entries(self, result: BatchResult) -> Sequence[Sequence[Value]]:
        """Return the rows of the wrapper's log entries."""
        answered = None if self._entries is None else result.steps[self._entries]
        return answered.rows if isinstance(answered, StepRows) else ()

    def _raise_if_stale(self, result: BatchResult) -> None:
        if result.committed:
            return
        own = [*range(1, 1 + len(self._wrapper.preface))]
        own += [step for step in (self._entries, self._closing) if step is not None]
        if any(isinstance(result.steps[step], StepError) for step in own):
            raise StaleWrapper(result.error.message if result.error else "")


class OptimisticBatch(ScriptBatch):
    """All scripts without savepoints; `verdicts` raises `RolledBack` if any of them failed."""

    __slots__ = ("_answers", "_keys_step")

    def __init__(
        self,
        writer_id: WriterId,
        scripts: Sequence[Script],
        pruning: Pruning,
        wrapper: BatchWrapper = NO_WRAPPER,
    ) -> None:
        super().__init__(scripts, wrapper)
        self.scripts = len(scripts)
        self._answers: list[tuple[int, list[int]]] = []  # (step, the scripts whose rows it returns)
        if pruning is not NOTHING_TO_PRUNE:
            _add_pruning(self, writer_id, pruning)
        if len(scripts) == 1:
            self._add_only(writer_id, scripts[0])
        else:
            self._add_all(writer_id)
        if (accepted := wrapper.accepted) is not None:
            self._entries = self.add(accepted.sql, accepted.params, wants_rows=True)
        if (closing := wrapper.closing) is not None:
            self._closing = self.add(closing.sql, closing.params)
        self.seal()

    def _add_only(self, writer_id: WriterId, script: Script) -> None:
        """Add the only script: the usual case, and the one in which nothing else shares the cost."""
        self._keys_step: int | None = None
        if script.leaves_key:
            scope_id, repository_id, writer = writer_id
            steps = self.steps
            self._keys_step = len(steps)
            steps.append(BatchStep(_REMEMBER_KEY, (scope_id, repository_id, script.key, writer)))
        answer = add_statements(self, writer_id, (script,))
        if answer is not None:
            self._answers.append((answer, _ONLY))

    def _add_all(self, writer_id: WriterId) -> None:
        """Add all scripts; neighbours share statements."""
        scripts = self._scripts
        self._keys_step = self._store_keys(writer_id)
        for run in _runs(scripts):
            answer = add_statements(self, writer_id, [scripts[index] for index in run])
            if answer is not None:
                self._answers.append((answer, run))

    def _store_keys(self, writer_id: WriterId) -> int | None:
        """Add the step that stores the keys, and return its index. The log itself stores the keys of ops."""
        scripts = self._scripts
        # An op that is in the batch twice would take effect twice.
        is_doubled = len({script.key for script in scripts}) < len(scripts)
        keys = [
            script.key for script in scripts if script.leaves_key or (is_doubled and not script.repeatable)
        ]
        if not keys:
            return None
        return self.add(_SQL["remember_keys"], (*writer_id, orjson.dumps(keys).decode()))

    def verdicts(self, result: BatchResult) -> list[Verdict]:
        """Return the verdict of each script. If this raises, nothing was applied."""
        if not result.committed:
            _raise_if_down(result)
            self._raise_if_stale(result)
            step = self._keys_step
            raise RolledBack(knew_keys=step is not None and isinstance(result.steps[step], StepError))
        scripts = self._scripts
        if not self._answers and len(scripts) == 1:
            return [Outcome(scripts[0].key)]
        verdicts: list[Verdict] = [Outcome(script.key) for script in scripts]
        for step, run in self._answers:
            answered = result.steps[step]
            assert isinstance(answered, StepRows)
            split = split_rows([scripts[index] for index in run], answered.rows)
            for index, rows in zip(run, split, strict=True):
                verdicts[index] = Outcome(scripts[index].key, rows)
        return verdicts


class SingleStatementBatch(ScriptBatch):
    """One repeatable script as one statement, without a transaction or a step for the guard.

    If the guard does not hold, it changes nothing and returns no rows.
    """

    __slots__ = ()

    def __init__(self, writer_id: WriterId, script: Script, wrapper: BatchWrapper) -> None:
        shape, condition = script.shape, wrapper.condition
        assert shape is not None
        super().__init__((script,), NO_WRAPPER)
        if condition is None:
            sql, values = unguarded_statement(writer_id, script, shape)
        else:
            given = condition.params
            who, window = given[:CONDITION_VALUES], given[CONDITION_VALUES:]
            statement, values = shape.single(writer_id, script, who)
            values += window
            sql = _guarded_sql(statement, condition.sql, len(values) - 1)
        self.steps = [BatchStep(sql, values, None, True)]

    def verdicts(self, result: BatchResult) -> list[Verdict]:
        """Return the verdict of the script. If this raises, nothing was applied."""
        (answered,) = result.steps
        if not isinstance(answered, StepRows):
            _raise_if_down(result)
            raise RolledBack
        (rows,) = split_rows(self._scripts, answered.rows)
        return [Outcome(self._scripts[0].key, rows)]


@cache
def _guarded_sql(sql: str, condition: str, earliest: int) -> str:
    """Return a single statement that does nothing unless the condition holds.

    `earliest` is the number of the parameter with the earliest time that the batch expects.
    """
    timed = condition.replace("EARLIEST", f"?{earliest}").replace("LATEST", f"?{earliest + 1}")
    return sql.replace("IS_CURRENT", timed)


class IsolatedBatch(ScriptBatch):
    """Each script in its own savepoint, with its outcome or failure stored under its key.

    Verdicts are read from what is stored, so a script that ran before returns its original answer.
    """

    __slots__ = ("_ends", "_taken")

    def __init__(
        self,
        writer_id: WriterId,
        scripts: Sequence[Script],
        pruning: Pruning,
        wrapper: BatchWrapper = NO_WRAPPER,
    ) -> None:
        super().__init__(scripts, wrapper)
        _add_pruning(self, writer_id, pruning)
        self._taken: list[int] = []  # the step before each script's statements, which stores the key
        self._ends: list[int] = []  # the step that releases each script's savepoint
        closed: Condition = Ok(len(self.steps) - 1)
        for script in scripts:
            closed = self._isolate(writer_id, script, closed)
        if (entries := wrapper.verdicts()) is not None:
            closed = Ok(self.add(entries.sql, entries.params, after=closed, wants_rows=True))
            self._entries = len(self.steps) - 1
        if (closing := wrapper.closing) is not None:
            closed = Ok(self.add(closing.sql, closing.params, after=closed))
            self._closing = len(self.steps) - 1
        keys = orjson.dumps([script.key for script in scripts]).decode()
        self.add(_SQL["outcomes_of"], (*writer_id[:2], keys), after=closed, wants_rows=True)
        self.add(_SQL["answers_of"], (*writer_id[:2], keys), wants_rows=True)
        self.seal()

    def _isolate(self, writer_id: WriterId, script: Script, closed: Condition) -> Condition:
        taken = opened = self.add("SAVEPOINT script", after=closed)
        if not script.repeatable:
            taken = self.add(_SQL["remember_key"], (*writer_id[:2], script.key, writer_id.writer))
        self._taken.append(taken)
        add_statements(self, writer_id, [script])
        last = len(self.steps) - 1
        kept = self.add("RELEASE script")
        self._ends.append(kept)
        undone = self.add("ROLLBACK TO script", after=All((Ok(opened), Not(Ok(kept)))))
        for statement in range(0 if script.repeatable else last - taken):
            self.add(
                _SQL["remember_failure"],
                (*writer_id[:2], script.key, writer_id.writer, statement),
                after=All((Failed(taken + 1 + statement), Ok(undone))),
            )
        dropped = self.add("RELEASE script", after=Ok(undone))
        return AnyOf((Ok(kept), Ok(dropped)))

    def verdicts(self, result: BatchResult) -> list[Verdict]:
        """Return the verdict of each script."""
        _raise_if_down(result)
        self._raise_if_stale(result)
        stored, answers = result.steps[-4], result.steps[-3]
        if not result.committed or not isinstance(stored, StepRows) or not isinstance(answers, StepRows):
            reason = result.error.message if result.error else "the transaction was cut short"
            raise DatabaseFault(f"the database could not complete the request: {reason}")
        failures = {row[0]: row[1] for row in stored.rows}
        found = by_key(answers.rows)
        verdicts: list[Verdict] = []
        for script, taken, end in zip(self._scripts, self._taken, self._ends, strict=True):
            if script.repeatable:
                verdicts.append(_verdict_now(script, result.steps[taken + 1 : end]))
                continue
            if script.key not in failures:
                raise NoAnswer("the database answered only in part")  # a retry gets the full answer
            failed = failures[script.key]
            if isinstance(failed, int):
                error = result.steps[taken + 1 + failed]
                verdicts.append(_failure(script, failed, error if isinstance(error, StepError) else None))
            else:
                repeated = isinstance(result.steps[taken], StepError)
                verdicts.append(Outcome(script.key, answered_rows(script, found), repeated=repeated))
        return verdicts


def _verdict_now(script: Script, steps: Sequence[StepResult]) -> Verdict:
    """Return the verdict of a repeatable script from its own steps: nothing is stored for it."""
    for statement, step in enumerate(steps):
        if isinstance(step, StepError):
            return _failure(script, statement, step)
    answered = steps[-1]
    if not script.has_answer or not isinstance(answered, StepRows):
        return Outcome(script.key)
    (rows,) = split_rows([script], answered.rows)
    return Outcome(script.key, rows)


async def apply_alone(engine: Engine, writer_id: WriterId, script: Script) -> Outcome:
    """Apply one script in its own batch, bypassing the queue."""
    batch = IsolatedBatch(writer_id, [script], NOTHING_TO_PRUNE)
    (verdict,) = batch.verdicts(await engine.run(batch))
    if isinstance(verdict, MeshError):
        raise verdict
    return verdict


def _runs(scripts: Sequence[Script]) -> Iterator[list[int]]:
    """Yield runs of consecutive scripts that share an insert, or a shape without a repeated subject."""
    run: list[int] = []
    shared: Shape | str | None = None  # by the scripts of the run
    subjects: set[object] = set()
    for index, script in enumerate(scripts):
        shape = script.shape
        own = plain_insert(script) if shape is None else shape
        subject = index if shape is None or shape.subject is None else shape.subject(script.item)
        is_apart = shape is not None and shape.is_single_statement
        if run and (own != shared or subject in subjects or is_apart):
            yield run
            run = []
        if own is None:
            if script.statements or script.answer is not None:  # otherwise it is only an op
                yield [index]
            continue
        if not run:
            shared, subjects = own, set()
        run.append(index)
        subjects.add(subject)
    if run:
        yield run


def _add_pruning(batch: Batch, writer_id: WriterId, pruning: Pruning) -> None:
    if pruning.with_rows:
        batch.add(_SQL["forget_answers"], (*writer_id[:2], orjson.dumps(pruning.with_rows).decode()))
    if pruning.keys:
        batch.add(_SQL["forget_keys"], (*writer_id[:2], orjson.dumps(pruning.keys).decode()))
    if pruning.older_than_s is not None:
        batch.add(_SQL["forget_old_answers"], (*writer_id, pruning.older_than_s))
        batch.add(_SQL["forget_old_keys"], (*writer_id, pruning.older_than_s))


def _raise_if_down(result: BatchResult) -> None:
    """Raise if the database can't be written to, as opposed to a script that failed."""
    if result.committed or (error := result.error) is None:
        return
    if any(isinstance(step, StepError) and step.is_busy for step in result.steps):
        raise DatabaseBusy(f"the database is busy: {error.message}")
    if (failed := result.commit_error) is not None and failed.is_fault:
        reason = f"it could not be committed, and may yet be found applied: {failed.message}"
        raise CommitNotStored(reason, hint=_NO_ROOM) if failed.is_storage else CommitFailed(reason)
    if error.is_fault or (isinstance(result.steps[0], StepError) and len(result.steps) > 1):
        reason = f"the database failed: {error.message}"
        if error.is_storage:
            raise StorageFault(reason, hint=_NO_ROOM)
        raise DatabaseFault(reason, hint="run `vox-mesh doctor`")


def _failure(script: Script, statement: int, error: StepError | None) -> ScriptFailed:
    refusals = script.refusals
    if statement in refusals and (error is None or error.is_constraint):
        return refused(refusals[statement], statement=statement)
    if error is None:
        message = f"statement {statement} failed when this script was first sent; the details are gone"
        return ConstraintFailed(message, statement=statement)
    kind = ConstraintFailed if error.is_constraint else BadStatement
    return kind(f"statement {statement} failed: {error.message}", statement=statement)
