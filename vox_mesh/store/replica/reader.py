"""Reading a replica's file: quickly in the event loop's own thread, or in another one for longer."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from vox_mesh.store.script import Statement
from vox_mesh.store.values import Rows

QUICK_S: Final = 0.002
SLOW_S: Final = 0.1
_STEPS: Final = 500
"""How many instructions of SQLite's machine run between two looks at the clock."""

_CACHED_STATEMENTS: Final = 256
_MAX_KNOWN: Final = 1_024
# The database's clock decides, never this machine's. Whether such a function asks for the time can hang on a
# value (`date(?)` with 'now'), so a query that uses one, if only through a view, is the primary's to answer.
_TIME: Final = frozenset(
    {"date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff"}
    | {"current_date", "current_time", "current_timestamp"}
)


class TooLong(Exception):
    """The query did not end within its time."""


class Reader:
    """Queries on a file that nobody changes meanwhile: the caller sees to that, with the gate."""

    def __init__(self, path: Path, mode: str = "immutable=1&mode=ro") -> None:
        self._uri = f"file:{quote(str(path.absolute()))}?{mode}"
        self._connection: sqlite3.Connection | None = None
        self._until = 0.0
        self._long: dict[str, float] = {}  # queries that took longer than this before, the oldest first

    def is_long(self, statement: Statement) -> bool:
        """Whether this query took too long before."""
        return statement.sql in self._long

    def quickly(self, statement: Statement, limit_s: float) -> Rows:
        """Answer here and now, on a connection that is kept, or raise `TooLong`."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
            connection.set_progress_handler(self._is_late, _STEPS)
        self._until = time.perf_counter() + limit_s
        try:
            return _rows(connection, statement)
        finally:
            if self._is_late():  # in the end, too: a count is a single instruction, however long it takes
                if len(self._long) >= _MAX_KNOWN:
                    del self._long[next(iter(self._long))]
                self._long[statement.sql] = limit_s

    def slowly(self, statement: Statement, limit_s: float) -> Rows:
        """Answer on a connection of its own, in whichever thread this is called, or raise `TooLong`."""
        began = time.perf_counter()
        with closing(self._connect()) as connection:
            connection.set_progress_handler(lambda: time.perf_counter() > began + limit_s, _STEPS)
            rows = _rows(connection, statement)
        if time.perf_counter() - began < self._long.get(statement.sql, 0.0):
            self._long.pop(statement.sql, None)  # the machine was busy, or the table has shrunk
        return rows

    def forget(self) -> None:
        """Close the kept connection: it would go on answering from the pages it has seen."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _is_late(self) -> bool:
        return time.perf_counter() > self._until

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._uri,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        connection.set_authorizer(_refuse_time)
        return connection


def _refuse_time(action: int, _: str | None, function: str | None, *__: str | None) -> int:
    refused = action == sqlite3.SQLITE_FUNCTION and function in _TIME
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _rows(connection: sqlite3.Connection, statement: Statement) -> Rows:
    try:
        cursor = connection.execute(statement.sql, statement.params)
        columns = tuple(column[0] for column in cursor.description or ())
        return Rows(columns, cursor.fetchall())
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise TooLong from None
        raise
