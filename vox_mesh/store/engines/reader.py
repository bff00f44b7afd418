"""Query a database file, in the event loop's thread if that is fast, otherwise in another thread."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from vox_mesh.store.engines.sqlite import query_replaced
from vox_mesh.store.engines.text import is_undecodable
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

QUICK_S: Final = 0.002
SLOW_S: Final = 0.1
_STEPS_INLINE: Final = 500
"""The number of SQLite VM instructions between two checks of the clock."""

_STEPS_IN_THREAD: Final = 50_000
"""The number of instructions between two checks in another thread, each of which waits for the GIL."""

_TOO_SLOW_S: Final = 60.0
_CACHED_STATEMENTS: Final = 256
_MAX_KNOWN: Final = 1_024
# The database's clock decides, never this machine's. Whether such a function reads the clock can depend on a
# value (`date(?)` with 'now'), so the primary answers every query that uses one, even through a view.
_TIME_FUNCTIONS: Final = frozenset(
    {"date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff"}
    | {"current_date", "current_time", "current_timestamp"}
)

# Anything but a query, such as a PRAGMA or BEGIN, would change the state of a shared connection.
_QUERY_ACTIONS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
# SQLite requests this permission for the first query on a connection that uses `json_each`. A statement that
# updates sqlite_master itself is rejected by SQLite in any case.
_DECLARES: Final = (sqlite3.SQLITE_UPDATE, "sqlite_master")
_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


_DROP_PAGES: Final = "PRAGMA shrink_memory"
_LOAD_SCHEMA: Final = "SELECT 1 FROM sqlite_master LIMIT 0"
_ALLOWED: Final = (_DECLARES, (sqlite3.SQLITE_PRAGMA, "shrink_memory"))
_HEADER_BYTES: Final = 100


class Outline(NamedTuple):
    """What a connection caches about a file: its inode, its size and its schema cookie.

    It reads the number of the database's pages for each query, which must not exceed that size.
    """

    inode: int
    size: int
    schema: bytes


@dataclass(slots=True)
class _KeptConnection:
    """A connection kept for the next query, and the state of the file that its cached pages belong to."""

    connection: sqlite3.Connection
    cursor: sqlite3.Cursor
    outline: Outline | None
    as_of: int


class TooLong(Exception):
    """The query exceeded its time limit."""


class LoopTurn:
    """Limits the time that one iteration of the event loop spends on reads.

    A fast read never yields to the loop: without this limit, a series of them would block everything else.
    """

    def __init__(self) -> None:
        self._began_at: float | None = None  # the time of this iteration's first read

    @property
    def has_time(self) -> bool:
        """Return whether another read may run in this iteration."""
        now = time.perf_counter()
        if self._began_at is None:
            self._began_at = now
            asyncio.get_running_loop().call_soon(self._end)
        return now - self._began_at <= QUICK_S

    def _end(self) -> None:
        self._began_at = None


class Reader:
    """Runs queries on a copy. The caller must prevent changes to the file during a query.

    `is_original`: the file is the database itself. Then this machine's clock is the right one, and other
    processes may change anything, including tables, between two queries.
    """

    def __init__(self, path: Path, mode: str = "immutable=1&mode=ro", *, is_original: bool = False) -> None:
        self._path = path
        self._uri = f"file:{quote(str(path.absolute()))}?{mode}"
        self._is_original = is_original
        self._is_immutable = "immutable=1" in mode
        self._inline: _KeptConnection | None = None
        self._thread_connections: list[_KeptConnection] = []  # idle connections for other threads
        self._columns: dict[str, tuple[str, ...]] = {}  # by query, for the inline connection
        self._refused: set[str] = set()  # queries that it does not answer
        self._prepared: set[str] = set()  # queries that it has run
        self._as_of = 0  # rises whenever the file may have changed
        self._until = 0.0
        self._limit_s = math.inf
        self._last_late = ""
        self.found_damage = False
        """Whether SQLite has found a damaged page."""
        self._too_slow_until: dict[str, float] = {}  # queries too slow even for a thread, and until when
        self._slow_queries: dict[str, float] = {}  # queries that exceeded this limit before, oldest first

    @property
    def is_open(self) -> bool:
        """Return whether the inline connection is open."""
        return self._inline is not None

    def is_slow(self, statement: Statement) -> bool:
        """Return whether this query exceeded the inline limit before."""
        return statement.sql in self._slow_queries

    def is_worth_a_thread(self, statement: Statement) -> bool:
        """Return whether this query is slow, but was not too slow for a thread recently."""
        is_too_slow = self._too_slow_until.get(statement.sql, 0.0) > time.perf_counter()
        return self.is_slow(statement) and not is_too_slow

    def query_inline(self, statement: Statement, limit_s: float) -> Rows | None:
        """Run a query in the calling thread, on the inline connection.

        Return `None` if the primary must answer: it is not a query, reads the clock, is wrong, or needs a
        newer SQLite.

        Raises:
            TooLong: The query took longer than `limit_s`.
        """
        sql = statement.sql
        if sql in self._refused:
            return None
        try:
            kept = self._inline
            if kept is None:
                kept = self._inline = self._open()
                kept.cursor.execute(_LOAD_SCHEMA).fetchall()  # steps of that are none of the query's
                kept.connection.set_progress_handler(self._is_late, _STEPS_INLINE)
            self._limit_s = limit_s
            self._until = math.inf if self._is_new(sql) else time.perf_counter() + limit_s
            return _rows(kept.cursor, statement, {} if self._is_original else self._columns)
        except TooLong:
            self._last_late = sql
            self._close_inline()  # Python 3.11 would prepare the interrupted query again at every read
            raise
        except (sqlite3.Error, sqlite3.Warning) as error:
            self._note_damage(error)
            if _code(error) == sqlite3.SQLITE_AUTH and len(self._refused) < _MAX_KNOWN:
                self._refused.add(sql)
            return None
        finally:
            if time.perf_counter() > self._until:  # checked at the end too: a count is a single instruction
                if self._last_late == sql:  # once may be due to a busy machine
                    if len(self._slow_queries) >= _MAX_KNOWN:
                        del self._slow_queries[next(iter(self._slow_queries))]
                    self._slow_queries[sql] = limit_s
                self._last_late = sql

    def _is_new(self, sql: str) -> bool:
        """Return whether the inline connection prepares a query first. That does not count as its time.

        Otherwise a long query would be interrupted, and prepared again, at every read.
        """
        if sql in self._prepared:
            return False
        if len(self._prepared) >= _MAX_KNOWN:
            self._prepared.clear()
        self._prepared.add(sql)
        return True

    def query_in_thread(self, statement: Statement, limit_s: float) -> Rows | None:
        """Run a query on its own connection; may be called in any thread.

        Raises:
            TooLong: The query took longer than `limit_s`.
        """
        began, idle = time.perf_counter(), self._thread_connections
        kept: _KeptConnection | None = None
        try:
            kept = self._take_thread_connection()
            kept.connection.set_progress_handler(
                lambda: time.perf_counter() > began + limit_s, _STEPS_IN_THREAD
            )
            rows = _rows(kept.cursor, statement, {})
        except TooLong:
            if len(self._too_slow_until) >= _MAX_KNOWN:
                self._too_slow_until.clear()
            self._too_slow_until[statement.sql] = began + _TOO_SLOW_S
            raise
        except (sqlite3.Error, sqlite3.Warning) as error:
            self._note_damage(error)
            return None
        else:
            if idle is self._thread_connections:
                idle.append(kept)
                kept = None
        finally:
            if kept is not None:
                kept.connection.close()
        self.note_duration(statement, time.perf_counter() - began)
        return rows

    def note_duration(self, statement: Statement, seconds: float) -> None:
        """Record how long a query took in another thread; run it inline again if it is clearly fast enough.

        A query close to the limit stays in the other thread: interrupting it costs more than the switch.
        """
        if seconds < self._slow_queries.get(statement.sql, 0.0) / 2:
            self._slow_queries.pop(statement.sql, None)

    def invalidate(self) -> None:
        """Invalidate the pages that kept connections have cached: the file is about to change."""
        self._as_of += 1

    def revalidate(self) -> None:
        """Revalidate the inline connection after a change of the file, or close it."""
        if self._inline is not None and self._inline.as_of != self._as_of:
            self._until = self._limit_s = math.inf  # the last query's limit does not apply here
            if not self._revalidate(self._inline):
                self._close_inline()

    def close_connections(self) -> None:
        """Close all kept connections, with the pages that they have cached."""
        self._close_inline()
        idle, self._thread_connections = self._thread_connections, []
        for kept in idle:
            kept.connection.close()

    def _close_inline(self) -> None:
        if self._inline is not None:
            self._inline.connection.close()
            self._inline = None
            self._columns.clear()
            self._refused.clear()
            self._prepared.clear()

    def _revalidate(self, kept: _KeptConnection) -> bool:
        """Drop a connection's cached pages. Return whether it is still usable.

        It is unless the schema or the size of the file has changed. A new connection would have to read the
        whole schema and prepare all queries again.
        """
        if kept.outline is None or kept.outline != _outline(self._path):
            return False
        kept.as_of = self._as_of
        try:
            kept.connection.execute(_DROP_PAGES)
        except sqlite3.Error:
            return False
        return True

    def _take_thread_connection(self) -> _KeptConnection:
        with suppress(IndexError):
            kept = self._thread_connections.pop()
            kept.connection.set_progress_handler(None, 0)
            if kept.as_of == self._as_of or self._revalidate(kept):
                return kept
            kept.connection.close()
        return self._open()

    def _open(self) -> _KeptConnection:
        # If others write to the file, opening and closing it here would drop SQLite's locks on it.
        outline = _outline(self._path) if self._is_immutable else None
        as_of, connection = self._as_of, self._connect()
        return _KeptConnection(connection, connection.cursor(), outline, as_of)

    def _note_damage(self, error: Exception) -> None:
        if _code(error) & 0xFF in _DAMAGE_CODES:
            self.found_damage = True

    def _is_late(self) -> bool:
        now = time.perf_counter()
        if self._until == math.inf:  # the query was prepared, and has begun
            self._until = now + self._limit_s
        return now > self._until

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._uri,
            uri=True,
            timeout=0.0,  # a locked file is read in another way
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        connection.set_authorizer(_only_queries if self._is_original else _only_queries_without_time)
        return connection


def _outline(path: Path) -> Outline | None:
    """Return what must be unchanged for a connection to stay usable; `None` if it can't be read."""
    try:
        with path.open("rb", buffering=0) as file:
            header, stat = file.read(_HEADER_BYTES), os.fstat(file.fileno())
    except OSError:
        return None
    return Outline(stat.st_ino, stat.st_size, header[40:44]) if header else None


def _only_queries(action: int, name: str | None, *_: str | None) -> int:
    is_allowed = action in _QUERY_ACTIONS or action == sqlite3.SQLITE_FUNCTION or (action, name) in _ALLOWED
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _only_queries_without_time(action: int, name: str | None, function: str | None, *_: str | None) -> int:
    asks_time = action == sqlite3.SQLITE_FUNCTION and function in _TIME_FUNCTIONS
    return sqlite3.SQLITE_DENY if asks_time else _only_queries(action, name)


def _code(error: Exception) -> int:
    """Return SQLite's code of an error; 0 for errors of Python itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code


def _rows(cursor: sqlite3.Cursor, statement: Statement, known: dict[str, tuple[str, ...]]) -> Rows:
    sql = statement.sql
    try:
        cursor.execute(sql, statement.params)
        columns = known.get(sql)
        if columns is None:
            columns = known[sql] = tuple(column[0] for column in cursor.description or ())
        return Rows(columns, cursor.fetchall())
    except sqlite3.OperationalError as error:
        if _code(error) == sqlite3.SQLITE_INTERRUPT:
            raise TooLong from None
        if is_undecodable(error):
            return query_replaced(cursor, statement)
        raise
