"""Reading a replica's file: quickly in the event loop's own thread, or in another one for longer."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from vox_mesh.store.script import Statement
from vox_mesh.store.values import Rows

_STEPS: Final = 500
"""How many instructions of SQLite's machine run between two looks at the clock."""

_CACHED_STATEMENTS: Final = 256
_MAX_KNOWN: Final = 1_024
# The database's clock decides, never this machine's: such a query is the primary's to answer.
_ASKS_THE_TIME: Final = re.compile(
    r"'now'|\bcurrent_(?:time|date|timestamp)\b|\b(?:date|time|datetime|julianday|unixepoch)\s*\(\s*\)",
    re.IGNORECASE,
)


class TooLong(Exception):
    """The query did not end within its time."""


@lru_cache(maxsize=_MAX_KNOWN)
def asks_the_time(sql: str) -> bool:
    """Whether the answer depends on the clock of whoever answers."""
    return _ASKS_THE_TIME.search(sql) is not None


class Reader:
    """Queries on a file that nobody changes meanwhile: the caller sees to that, with the gate."""

    def __init__(self, path: Path) -> None:
        self._uri = f"file:{quote(str(path.absolute()))}?immutable=1&mode=ro"
        self._connection: sqlite3.Connection | None = None
        self._until = 0.0
        self._long: dict[str, None] = {}  # queries that took too long before, the oldest first

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
        except TooLong:
            if len(self._long) >= _MAX_KNOWN:
                del self._long[next(iter(self._long))]
            self._long[statement.sql] = None
            raise

    def slowly(self, statement: Statement, limit_s: float) -> Rows:
        """Answer on a connection of its own, in whichever thread this is called, or raise `TooLong`."""
        until = time.perf_counter() + limit_s
        with closing(self._connect()) as connection:
            connection.set_progress_handler(lambda: time.perf_counter() > until, _STEPS)
            return _rows(connection, statement)

    def forget(self) -> None:
        """Close the kept connection: it would go on answering from the pages it has seen."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _is_late(self) -> bool:
        return time.perf_counter() > self._until

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._uri,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )


def _rows(connection: sqlite3.Connection, statement: Statement) -> Rows:
    try:
        cursor = connection.execute(statement.sql, statement.params)
        columns = tuple(column[0] for column in cursor.description or ())
        return Rows(columns, cursor.fetchall())
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise TooLong from None
        raise
