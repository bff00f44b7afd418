"""A new database file that is filled with the content of another database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from vox_mesh.store.engines import sqlite
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.tables import SQL, TableColumns

_FILLING: Final = frozenset(
    {
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,  # of `sqlite_master`, by SQLite itself
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_REINDEX,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_TRANSACTION,
    }
)
"""What filling a file needs, and nothing that reaches another file."""


class DatabaseFile:
    """A file that gets definitions and rows, in one thread at a time. It counts once it is complete."""

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._connection = sqlite.connect(str(path))
        # An incomplete file is discarded, so it needs no protection against crashes.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA trusted_schema = OFF")
        # The definitions come from a server or a stored backup, which may be anyone's.
        self._connection.set_authorizer(_authorize)
        self._connection.execute("BEGIN")

    def define(self, statements: Iterable[str]) -> None:
        """Create tables, indexes, triggers or views."""
        for sql in statements:
            self._connection.execute(sql)

    def add(self, table: TableColumns, rows: Iterable[Sequence[Value]]) -> None:
        """Insert rows of a table."""
        self._connection.executemany(table.insert(1), rows)

    def finish(self, sequences: Iterable[Sequence[Value]]) -> None:
        """Set the last ids of AUTOINCREMENT tables, and end."""
        for name, last in sequences:
            self._connection.execute(SQL["forget_sequence"], (name,))
            self._connection.execute(SQL["set_sequence"], (name, last))
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file, also one that is not complete."""
        self._connection.close()


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _FILLING else sqlite3.SQLITE_DENY
