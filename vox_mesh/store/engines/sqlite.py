"""Walking a batch on a local SQLite connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from vox_mesh.errors import BadStatement, ConstraintFailed, DatabaseBusy, DatabaseFault, MeshError
from vox_mesh.store.batch import DONE, Batch, BatchResult, StepError, StepResult, StepRows, StepVerdict
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

_CACHED_STATEMENTS: Final = 512


def connect(path: str, *, busy_timeout_s: float = 0.0) -> sqlite3.Connection:
    """A connection without transactions of its own, usable from whichever one thread owns it."""
    return sqlite3.connect(
        path,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
    )


def walk(
    connection: sqlite3.Connection, batch: Batch, before_last: Callable[[], None] | None = None
) -> BatchResult:
    """Run the steps whose conditions hold, as a server would.

    `before_last` is told when but one of them is left before the end of the transaction.
    """
    last = len(batch.steps) - 3
    verdicts: list[StepVerdict] = []
    results: list[StepResult] = []
    cursor = connection.cursor()
    execute = cursor.execute
    went_well = True  # the step before, which is nearly always all that counts
    for sql, params, condition, wants_rows in batch.steps:
        if not (went_well if condition is None else condition.holds(verdicts)):
            went_well = False
            verdicts.append(None)
            results.append(None)
            continue
        if before_last is not None and len(results) == last:
            before_last()
        try:
            execute(sql, params)
            if wants_rows or cursor.description is not None:  # to its last row, where it may still fail
                rows = cursor.fetchall()
                columns = tuple(column[0] for column in cursor.description)
                results.append(StepRows(columns, rows))
            else:
                results.append(DONE)
            went_well = True
        except (sqlite3.Error, sqlite3.Warning) as error:
            went_well = False
            results.append(step_error(error))
        verdicts.append(went_well)
    return BatchResult(results)


def query(connection: sqlite3.Connection, statement: Statement) -> Rows:
    """Answer a query; a failure is raised in the words of the error family."""
    try:
        cursor = connection.execute(statement.sql, statement.params)
        columns = tuple(column[0] for column in cursor.description or ())
        return Rows(columns, cursor.fetchall())
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise query_error(step_error(error)) from error


def step_error(error: Exception) -> StepError:
    """SQLite's own name and words for a failure."""
    return StepError(getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR", str(error))


def query_error(error: StepError) -> MeshError:
    """The failure of a query as a member of the error family."""
    if error.is_busy:
        return DatabaseBusy(f"the database is busy: {error.message}")
    if error.is_fault:
        return DatabaseFault(f"the database failed: {error.message}", hint="run `vox-mesh doctor`")
    kind = ConstraintFailed if error.is_constraint else BadStatement
    return kind(f"the query failed: {error.message}", statement=0)
