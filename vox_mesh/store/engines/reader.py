"""Reading a database's file: quickly in the event loop's own thread, or in another one for longer."""

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

from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

QUICK_S: Final = 0.002
SLOW_S: Final = 0.1
_STEPS: Final = 500
"""How many instructions of SQLite's machine run between two looks at the clock."""

_STEPS_ASIDE: Final = 50_000
"""The same in another thread, which has to wait for Python's lock with every look."""

_HOPELESS_S: Final = 60.0
_CACHED_STATEMENTS: Final = 256
_MAX_KNOWN: Final = 1_024
# The database's clock decides, never this machine's. Whether such a function asks for the time can hang on a
# value (`date(?)` with 'now'), so a query that uses one, if only through a view, is the primary's to answer.
_TIME: Final = frozenset(
    {"date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff"}
    | {"current_date", "current_time", "current_timestamp"}
)

# What is more than a query, a PRAGMA or a BEGIN, would stick to a connection that others read from.
_QUERY: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
# SQLite asks for this when a query is the first on its connection to use `json_each`. A statement that says
# so itself is refused by SQLite whatever we answer.
_DECLARES: Final = (sqlite3.SQLITE_UPDATE, "sqlite_master")
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


_DROP_PAGES: Final = "PRAGMA shrink_memory"
_OWN: Final = (_DECLARES, (sqlite3.SQLITE_PRAGMA, "shrink_memory"))
_HEADER: Final = 100


class Outline(NamedTuple):
    """What a connection knows of a file for good: which it is, its size in bytes and in pages, its schema."""

    inode: int
    size: int
    pages: bytes
    schema: bytes


@dataclass(slots=True)
class _Kept:
    """A connection that is kept for the next query, and of which state of the file its pages are."""

    connection: sqlite3.Connection
    cursor: sqlite3.Cursor
    outline: Outline | None
    as_of: int


class TooLong(Exception):
    """The query did not end within its time."""


class LoopTurn:
    """How much of a turn of the event loop was spent on reading.

    A quick read pauses nowhere: without this a loop of them would stop everything else, also what is read.
    """

    def __init__(self) -> None:
        self._began_at: float | None = None  # when this turn had its first read

    @property
    def has_time(self) -> bool:
        """Whether another read may follow at once."""
        now = time.perf_counter()
        if self._began_at is None:
            self._began_at = now
            asyncio.get_running_loop().call_soon(self._end)
        return now - self._began_at <= QUICK_S

    def _end(self) -> None:
        self._began_at = None


class Reader:
    """Queries on a copy that nobody changes meanwhile: the caller sees to that, with the gate.

    `is_original`: it is the database itself. Then this machine's clock is the right one, and others may
    change anything, tables too, between any two queries.
    """

    def __init__(self, path: Path, mode: str = "immutable=1&mode=ro", *, is_original: bool = False) -> None:
        self._path = path
        self._uri = f"file:{quote(str(path.absolute()))}?{mode}"
        self._is_original = is_original
        self._is_immutable = "immutable=1" in mode
        self._quick: _Kept | None = None
        self._aside: list[_Kept] = []  # for other threads; while one uses it, it is not among them
        self._columns: dict[str, tuple[str, ...]] = {}  # of the queries that the quick connection has seen
        self._refused: set[str] = set()  # and those that it would not answer
        self._as_of = 0  # rises whenever the file may be another
        self._until = 0.0
        self._late_before = ""
        self.found_damage = False
        """Whether SQLite has come upon a page that can't be right."""
        self._hopeless: dict[
            str, float
        ] = {}  # those that took too long even aside, and until when that counts
        self._long: dict[str, float] = {}  # queries that took longer than this before, the oldest first

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that is kept for quick queries."""
        return self._quick is not None

    def is_long(self, statement: Statement) -> bool:
        """Whether this query took too long before."""
        return statement.sql in self._long

    def is_worth_a_thread(self, statement: Statement) -> bool:
        """Whether it took too long before, but not too long even aside, a short while ago."""
        is_hopeless = self._hopeless.get(statement.sql, 0.0) > time.perf_counter()
        return self.is_long(statement) and not is_hopeless

    def quickly(self, statement: Statement, limit_s: float) -> Rows | None:
        """Answer here and now, on a connection that is kept, or raise `TooLong`.

        `None`: it is no query, asks the time, is wrong, or needs a newer SQLite; the primary knows better.
        """
        sql = statement.sql
        if sql in self._refused:
            return None
        self._until = time.perf_counter() + limit_s
        try:
            quick = self._quick
            if quick is None:
                quick = self._quick = self._open()
                quick.connection.set_progress_handler(self._is_late, _STEPS)
                self._until = time.perf_counter() + limit_s  # to open it is not the query's fault
            return _rows(quick.cursor, statement, {} if self._is_original else self._columns)
        except TooLong:
            self._late_before = sql
            self._forget_quick()  # Python 3.11 would prepare the interrupted query anew at every read
            raise
        except (sqlite3.Error, sqlite3.Warning) as error:
            self._look_at(error)
            if _code(error) == sqlite3.SQLITE_AUTH and len(self._refused) < _MAX_KNOWN:
                self._refused.add(sql)
            return None
        finally:
            if time.perf_counter() > self._until:  # in the end, too: a count is a single instruction
                if self._late_before == sql:  # once may be the machine's fault
                    if len(self._long) >= _MAX_KNOWN:
                        del self._long[next(iter(self._long))]
                    self._long[sql] = limit_s
                self._late_before = sql

    def slowly(self, statement: Statement, limit_s: float) -> Rows | None:
        """Answer on a connection of its own, in whichever thread this is called, or raise `TooLong`."""
        began, aside = time.perf_counter(), self._aside
        kept: _Kept | None = None
        try:
            kept = self._take_aside()
            kept.connection.set_progress_handler(lambda: time.perf_counter() > began + limit_s, _STEPS_ASIDE)
            rows = _rows(kept.cursor, statement, {})
        except TooLong:
            if len(self._hopeless) >= _MAX_KNOWN:
                self._hopeless.clear()
            self._hopeless[statement.sql] = began + _HOPELESS_S
            raise
        except (sqlite3.Error, sqlite3.Warning) as error:
            self._look_at(error)
            return None
        else:
            if aside is self._aside:
                aside.append(kept)
                kept = None
        finally:
            if kept is not None:
                kept.connection.close()
        self.took(statement, time.perf_counter() - began)
        return rows

    def took(self, statement: Statement, seconds: float) -> None:
        """It was answered aside: if soon enough, the machine was busy before, or the table larger.

        What takes about as long as it may is left aside: to be broken off costs more than to go there.
        """
        if seconds < self._long.get(statement.sql, 0.0) / 2:
            self._long.pop(statement.sql, None)

    def doubt(self) -> None:
        """The file is about to change: what kept connections have seen of it counts no more."""
        self._as_of += 1

    def renew(self) -> None:
        """After a change: go on with the quick connection if it is of further use."""
        if self._quick is not None and self._quick.as_of != self._as_of:
            self._until = math.inf  # the time of the last query is over, and this is none
            if not self._is_renewed(self._quick):
                self._forget_quick()

    def forget(self) -> None:
        """Close what is kept: it would go on answering from the pages it has seen."""
        self._forget_quick()
        aside, self._aside = self._aside, []
        for kept in aside:
            kept.connection.close()

    def _forget_quick(self) -> None:
        if self._quick is not None:
            self._quick.connection.close()
            self._quick = None
            self._columns.clear()
            self._refused.clear()

    def _is_renewed(self, kept: _Kept) -> bool:
        """Whether a connection can go on: only pages have changed, and not their number.

        To open one is to read the whole schema, and prepare all queries, anew.
        """
        if kept.outline is None or kept.outline != _outline(self._path):
            return False
        kept.as_of = self._as_of
        try:
            kept.connection.execute(_DROP_PAGES)
        except sqlite3.Error:
            return False
        return True

    def _take_aside(self) -> _Kept:
        with suppress(IndexError):
            kept = self._aside.pop()
            kept.connection.set_progress_handler(None, 0)
            if kept.as_of == self._as_of or self._is_renewed(kept):
                return kept
            kept.connection.close()
        return self._open()

    def _open(self) -> _Kept:
        # Where others write to the file, to open and close it would end SQLite's locks on it.
        outline = _outline(self._path) if self._is_immutable else None
        as_of, connection = self._as_of, self._connect()
        return _Kept(connection, connection.cursor(), outline, as_of)

    def _look_at(self, error: Exception) -> None:
        if _code(error) & 0xFF in _DAMAGE:
            self.found_damage = True

    def _is_late(self) -> bool:
        return time.perf_counter() > self._until

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._uri,
            uri=True,
            timeout=0.0,  # whoever finds it locked asks elsewhere
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        connection.set_authorizer(_only_queries if self._is_original else _only_queries_without_time)
        return connection


def _outline(path: Path) -> Outline | None:
    """What must not have changed for a connection to be of further use; `None`: that can't be known."""
    try:
        with path.open("rb", buffering=0) as file:
            header, stat = file.read(_HEADER), os.fstat(file.fileno())
    except OSError:
        return None
    return Outline(stat.st_ino, stat.st_size, header[28:32], header[40:44]) if header else None


def _only_queries(action: int, name: str | None, *_: str | None) -> int:
    is_allowed = action in _QUERY or action == sqlite3.SQLITE_FUNCTION or (action, name) in _OWN
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _only_queries_without_time(action: int, name: str | None, function: str | None, *_: str | None) -> int:
    asks_time = action == sqlite3.SQLITE_FUNCTION and function in _TIME
    return sqlite3.SQLITE_DENY if asks_time else _only_queries(action, name)


def _code(error: Exception) -> int:
    """SQLite's number for a failure; 0 for one of Python's own."""
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
        raise
