"""The memory home: SQLite in this process, for local work and tests."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from vox_mesh.store import sqlite
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, EngineFacts
from vox_mesh.store.script import Statement
from vox_mesh.store.values import Rows


class MemoryEngine:
    """Runs everything at once, in the caller's thread: a statement here costs less than handing it over."""

    max_scripts = 256

    def __init__(self) -> None:
        self._connection = sqlite.connect(":memory:")

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        return sqlite.walk(self._connection, batch)

    async def query(self, statement: Statement) -> Rows:
        """Answer a query."""
        return sqlite.query(self._connection, statement)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Several queries of one moment: of a copy, since there is but one connection."""
        with closing(sqlite.connect(":memory:")) as copy:
            self._connection.backup(copy)

            async def ask(statement: Statement) -> Rows:
                return sqlite.query(copy, statement)

            yield ask

    async def facts(self) -> EngineFacts:
        """Which way the database is reached."""
        return EngineFacts("sqlite", ":memory:", f"SQLite {sqlite3.sqlite_version}")

    async def close(self) -> None:
        """Drop the database."""
        self._connection.close()
