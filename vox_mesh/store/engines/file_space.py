"""The space of a database file: what is free in it, and how free pages are given back to the file system."""

from __future__ import annotations

import sqlite3
from typing import Final

from vox_mesh.store.engine import Space

_INCREMENTAL: Final = 2


def space_of(connection: sqlite3.Connection) -> Space:
    """Return the pages of the database, and how many of them are free."""

    def ask(name: str) -> int:
        value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    pages, free_pages = ask("page_count"), ask("freelist_count")
    # Asked last: it is as the file was when something was last read from it.
    return Space(pages, free_pages, ask("page_size"), can_shrink=ask("auto_vacuum") == _INCREMENTAL)


def shrink(connection: sqlite3.Connection, pages: int) -> None:
    """Give up to this number of free pages back, in a transaction."""
    # A script runs the pragma to its end: `execute` stops after the first page.
    connection.executescript(f"PRAGMA incremental_vacuum({int(pages)})")


def compact(connection: sqlite3.Connection) -> None:
    """Rewrite the whole database without free pages, so that it can shrink from now on."""
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
