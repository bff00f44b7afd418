"""Run batches and queries on a local SQLite connection."""

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
    """Open a connection in autocommit mode, usable by any one thread at a time."""
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

    `before_last` is called before the last step ahead of the end of the transaction.
    """
    last = len(batch.steps) - 3
    verdicts: list[StepVerdict] = []
    results: list[StepResult] = []
    cursor = connection.cursor()
    execute = cursor.execute
    succeeded = True  # the previous step, which is the usual condition
    for sql, params, condition, wants_rows in batch.steps:
        if not (succeeded if condition is None else condition.holds(verdicts)):
            succeeded = False
            verdicts.append(None)
            results.append(None)
            continue
        if before_last is not None and len(results) == last:
            before_last()
        try:
            execute(sql, params)
            if wants_rows or cursor.description is not None:  # fetch all rows: a later one may still fail
                rows = cursor.fetchall()
                columns = tuple(column[0] for column in cursor.description)
                results.append(StepRows(columns, rows))
            else:
                results.append(DONE)
            succeeded = True
        except (sqlite3.Error, sqlite3.Warning) as error:
            succeeded = False
            results.append(step_error(error))
        verdicts.append(succeeded)
    return BatchResult(results)


def query(connection: sqlite3.Connection, statement: Statement) -> Rows:
    """Run a query; a failure is raised as a `MeshError`."""
    try:
        cursor = connection.execute(statement.sql, statement.params)
        columns = tuple(column[0] for column in cursor.description or ())
        return Rows(columns, cursor.fetchall())
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise query_error(step_error(error)) from error


def step_error(error: Exception) -> StepError:
    """Return SQLite's name and message of an error."""
    return StepError(getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR", str(error))


def query_error(error: StepError) -> MeshError:
    """Return the `MeshError` for a failed query."""
    if error.is_busy:
        return DatabaseBusy(f"the database is busy: {error.message}")
    if error.is_fault:
        return DatabaseFault(f"the database failed: {error.message}", hint="run `vox-mesh doctor`")
    kind = ConstraintFailed if error.is_constraint else BadStatement
    return kind(f"the query failed: {error.message}", statement=0)
