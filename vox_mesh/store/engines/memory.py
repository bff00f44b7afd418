"""The memory home: SQLite in this process, for local work and tests."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Protocol

from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.nodes.store_memory import StoreMemory
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, Engine, EngineFacts
from vox_mesh.store.engines import sqlite
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import Changes


class MemoryEngine:
    """Runs everything at once, in the caller's thread: a statement here costs less than handing it over."""

    max_scripts = 256

    def __init__(self) -> None:
        self._connection = self._connect()

    def _connect(self) -> sqlite3.Connection:
        return sqlite.connect(":memory:")

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        return sqlite.walk(self._connection, batch)

    async def query(self, statement: Statement) -> Rows:
        """Answer a query."""
        return sqlite.query(self._connection, statement)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Several queries of one moment: of a copy, since there is but one connection."""
        with closing(self._connect()) as copy:
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


class SharedHome(Engine, Protocol):
    """A memory home as one of several nodes sees it."""

    changes: Changes
    """Each node is told of the commits of all."""
    keys: dict[str, SigningKey]
    """A node that begins again has the key that it had."""
    memories: dict[str, StoreMemory]
    """And remembers, at its place, what it has seen of the database."""
    is_remote: bool
    """Whether it is reached over a simulated network, which may fail."""


class SharedMemory(MemoryEngine):
    """A memory home on which several nodes of one event loop begin and end, by a clock that can be turned.

    With the `image` of another one, it begins as that was.
    """

    def __init__(self, now_ms: Callable[[], int], image: bytes | None = None) -> None:
        from vox_mesh.store.engines.sqlite_clock import SqliteClock

        self._clock = SqliteClock(now_ms)
        super().__init__()
        if image is not None:
            self._connection.deserialize(image)
        self.is_remote = False
        self.changes = Changes()
        self.keys: dict[str, SigningKey] = {}
        self.memories: dict[str, StoreMemory] = {}

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        self._clock.install(connection)
        return connection

    def image(self) -> bytes:
        """All that it holds."""
        return self._connection.serialize()

    def restore(self, image: bytes) -> None:
        """Hold what an image of this database holds, and nothing else."""
        with closing(sqlite3.connect(":memory:")) as copy:
            copy.deserialize(image)
            copy.backup(self._connection)

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction, at one moment."""
        return self.run_now(batch)

    def run_now(self, batch: Batch) -> BatchResult:
        """The same, for who does not wait."""
        self._clock.begin()
        return sqlite.walk(self._connection, batch)

    async def query(self, statement: Statement) -> Rows:
        """Answer a query, as of one moment."""
        return self.query_now(statement)

    def query_now(self, statement: Statement) -> Rows:
        """The same, for who does not wait."""
        self._clock.begin()
        return sqlite.query(self._connection, statement)

    async def close(self) -> None:
        """A store is done with it: the database stays for the others."""

    async def drop(self) -> None:
        """Drop the database."""
        self.drop_now()

    def drop_now(self) -> None:
        """The same, for who does not wait."""
        self._connection.close()
        self._clock.close()
