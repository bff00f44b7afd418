"""Implement the memory backend: SQLite in this process, for local work and tests."""

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
    """Runs everything in the caller's thread: a statement costs less than a switch to another thread."""

    max_scripts = 256

    def __init__(self) -> None:
        self._connection = self._connect()

    def _connect(self) -> sqlite3.Connection:
        return sqlite.connect(":memory:")

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        return sqlite.walk(self._connection, batch)

    async def query(self, statement: Statement) -> Rows:
        """Run a query."""
        return sqlite.query(self._connection, statement)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Return a context in which all queries see the same state: that of a copy, made at its start."""
        with closing(self._connect()) as copy:
            self._connection.backup(copy)

            async def ask(statement: Statement) -> Rows:
                return sqlite.query(copy, statement, is_exact=True)

            yield ask

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""
        return EngineFacts("sqlite", ":memory:", f"SQLite {sqlite3.sqlite_version}")

    async def close(self) -> None:
        """Drop the database."""
        self._connection.close()


class SharedHome(Engine, Protocol):
    """A memory backend shared by several nodes, as one of them sees it."""

    changes: Changes
    """Notifies each node of the commits of all nodes."""
    keys: dict[str, SigningKey]
    """The signing key of each node, kept across its restarts."""
    memories: dict[str, StoreMemory]
    """What each node has seen of the database, kept across its restarts."""
    is_remote: bool
    """Whether it is reached over a simulated network."""


class SharedMemory(MemoryEngine):
    """A memory backend for several nodes of one event loop, with an injected clock.

    With the `image` of another database, it starts with the content of that one.
    """

    is_remote: bool = False

    def __init__(self, now_ms: Callable[[], int], image: bytes | None = None) -> None:
        from vox_mesh.store.engines.sqlite import SqliteClock

        self._clock = SqliteClock(now_ms)
        super().__init__()
        if image is not None:
            self._connection.deserialize(image)
        self.changes = Changes()
        self.keys: dict[str, SigningKey] = {}
        self.memories: dict[str, StoreMemory] = {}

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        self._clock.install(connection)
        return connection

    def image(self) -> bytes:
        """Return the content of the database as bytes."""
        return self._connection.serialize()

    def restore(self, image: bytes) -> None:
        """Replace the content of the database by an image."""
        with closing(sqlite3.connect(":memory:")) as copy:
            copy.deserialize(image)
            copy.backup(self._connection)

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction at one instant of the clock."""
        return self.run_now(batch)

    def run_now(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction synchronously."""
        self._clock.begin()
        return sqlite.walk(self._connection, batch)

    async def query(self, statement: Statement) -> Rows:
        """Run a query at one instant of the clock."""
        return self.query_now(statement)

    def query_now(self, statement: Statement) -> Rows:
        """Run a query synchronously."""
        self._clock.begin()
        return sqlite.query(self._connection, statement)

    async def close(self) -> None:
        """Do nothing: the database stays for the other nodes."""

    async def drop(self) -> None:
        """Drop the database."""
        self.drop_now()

    def drop_now(self) -> None:
        """Drop the database synchronously."""
        self._connection.close()
        self._clock.close()
