"""SQLite: run a batch on a connection, and give a connection a clock of our own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from vox_mesh.errors import BadStatement, ConstraintFailed, DatabaseBusy, DatabaseFault, MeshError
from vox_mesh.store.batch import DONE, Batch, BatchResult, StepError, StepResult, StepRows, StepVerdict
from vox_mesh.store.engines import sqlite
from vox_mesh.store.engines.text import is_undecodable, note_replaced, replaced, unreadable
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
    connection.text_factory = replaced
    try:
        return _walk(connection, batch, before_last)
    finally:
        connection.text_factory = str


def _walk(
    connection: sqlite3.Connection, batch: Batch, before_last: Callable[[], None] | None
) -> BatchResult:
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
                results.append(StepRows(cursor.fetchall()))
            else:
                results.append(DONE)
            succeeded = True
        except (sqlite3.Error, sqlite3.Warning) as error:
            succeeded = False
            results.append(step_error(error))
        verdicts.append(succeeded)
    return BatchResult(results)


def query(connection: sqlite3.Connection, statement: Statement, *, is_exact: bool = False) -> Rows:
    """Run a query; a failure is raised as a `MeshError`.

    Text that is not UTF-8 comes with replacement characters; if the answer must be exact, it is a failure.
    """
    try:
        try:
            return _query(connection, statement)
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
            if is_exact:
                raise unreadable(str(error)) from error
        return query_replaced(connection.cursor(), statement)
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise query_error(step_error(error)) from error


def query_replaced(cursor: sqlite3.Cursor, statement: Statement) -> Rows:
    """Run a query whose answer holds text that is not UTF-8."""
    note_replaced(statement.sql)
    cursor.connection.text_factory = replaced
    try:
        return _query(cursor, statement)
    finally:
        cursor.connection.text_factory = str


def _query(asked: sqlite3.Connection | sqlite3.Cursor, statement: Statement) -> Rows:
    cursor = asked.execute(statement.sql, statement.params)
    return Rows(tuple(column[0] for column in cursor.description or ()), cursor.fetchall())


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


_DATE_FUNCTIONS: Final = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")
_NOW: Final = "now"


class SqliteClock:
    """Replaces the date functions: for them, `now` is the time at which the last request began.

    The time is fixed for a whole request, because a statement that reads it twice must get the same value.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._calendar = sqlite.connect(":memory:")  # for calendar arithmetic; its own clock is never used
        self._at_ms = -1
        self._moment = ""
        self._results: dict[tuple[Any, ...], Any] = {}
        """Results at this time: the schema makes the same calls repeatedly."""
        self.begin()

    def begin(self) -> None:
        """Read the clock at the beginning of a request."""
        now_ms = self._now_ms()
        if now_ms != self._at_ms:
            self._at_ms = now_ms
            self._moment = ""
            self._results.clear()

    def install(self, connection: sqlite3.Connection) -> None:
        """Make a connection use this clock."""
        connection.execute("PRAGMA trusted_schema = ON")  # the schema's defaults call these functions
        for name in _DATE_FUNCTIONS:
            # Like SQLite's own date functions, they are constant within a statement.
            connection.create_function(name, -1, partial(self._call, name), deterministic=True)

    def _call(self, name: str, *args: Any) -> Any:
        call = name, *args
        if call not in self._results:
            self._results[call] = self._evaluate(name, args)
        return self._results[call]

    def _evaluate(self, name: str, args: Sequence[Any]) -> Any:
        form, times = (args[:1], args[1:]) if name == "strftime" else ((), args)
        values = [self._now() if str(each).lower() == _NOW else each for each in times or (_NOW,)]
        places = ", ".join("?" * (len(form) + len(values)))
        return self._calendar.execute(f"SELECT {name}({places})", (*form, *values)).fetchone()[0]

    def _now(self) -> str:
        if not self._moment:
            seconds = datetime.fromtimestamp(self._at_ms // 1_000, UTC).replace(tzinfo=None)
            self._moment = f"{seconds.isoformat(' ')}.{self._at_ms % 1_000:03}"
        return self._moment

    def close(self) -> None:
        """Close the internal connection."""
        self._calendar.close()
