"""A random workload that leaves no kind of page out: rows, indices, overflow, free pages, schema changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from vox_mesh import Script, Statement, Store

_PATIENCE_S: Final = 90.0
_MAX_TABLES: Final = 8
_MANY: Final = "WITH RECURSIVE many(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM many WHERE x < ?)"
_BODY: Final = "id INTEGER PRIMARY KEY, name TEXT, body BLOB"


class Workload:
    """Changes one after another, the same ones for the same seed, each when the server is `ready` for it."""

    def __init__(self, store: Store, ready: Callable[[], Awaitable[None]], random: Random) -> None:
        self.done = 0
        self._store = store
        self._ready = ready
        self._random = random
        self._tables: list[str] = []
        self._indices: list[str] = []
        self._made = 0
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Go on for as long as the block runs; the last change is whole at its end."""
        stop = asyncio.Event()

        async def run() -> None:
            while not stop.is_set():
                await self.step()

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            stop.set()
            await task

    async def until_more(self, count: int) -> None:
        """Wait for this many more changes."""
        wanted = self.done + count
        async with asyncio.timeout(_PATIENCE_S):
            while self.done < wanted:
                self._moved.clear()
                await self._moved.wait()

    async def step(self) -> None:
        """Make one change, in one transaction."""
        if not self._tables:
            statements = self._create()
        else:
            changes = (
                *((self._insert, 6), (self._update, 4), (self._delete, 4), (self._insert_long, 3)),
                *((self._create, 2), (self._drop, 2), (self._alter, 1), (self._rename, 1)),
                *((self._index, 2), (self._drop_index, 1), (self._insert_pages, 1), (self._come_and_go, 1)),
            )
            (change,) = self._random.choices([each for each, _ in changes], [weight for _, weight in changes])
            statements = change()
        if statements:
            await self._ready()
            await self._store.write(Script(*statements), timeout=_PATIENCE_S)
        self.done += 1
        self._moved.set()

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}_{self._made}"

    def _any_table(self) -> str:
        return self._random.choice(self._tables)

    def _create(self) -> list[Statement]:
        if len(self._tables) >= _MAX_TABLES:
            return self._drop()
        name = self._name("rows")
        self._tables.append(name)
        keyed_by_row = self._random.random() < 0.7
        body = _BODY if keyed_by_row else f"{_BODY}) WITHOUT ROWID"
        return [Statement(f"CREATE TABLE {name} ({body}" + (")" if keyed_by_row else ""))]

    def _drop(self) -> list[Statement]:
        if len(self._tables) < 2:
            return []
        name = self._any_table()
        self._tables.remove(name)
        self._indices = [each for each in self._indices if not each.endswith(f" {name}")]
        return [Statement(f"DROP TABLE {name}")]

    def _alter(self) -> list[Statement]:
        column = self._name("extra")
        return [Statement(f"ALTER TABLE {self._any_table()} ADD COLUMN {column} TEXT DEFAULT 'none'")]

    def _rename(self) -> list[Statement]:
        old, new = self._any_table(), self._name("rows")
        self._tables[self._tables.index(old)] = new
        self._indices = [
            f"{each.removesuffix(old)}{new}" if each.endswith(f" {old}") else each for each in self._indices
        ]
        return [Statement(f"ALTER TABLE {old} RENAME TO {new}")]

    def _index(self) -> list[Statement]:
        name, table = self._name("index"), self._any_table()
        self._indices.append(f"{name} {table}")
        return [Statement(f"CREATE INDEX {name} ON {table} (name, id)")]

    def _drop_index(self) -> list[Statement]:
        if not self._indices:
            return []
        name, _, _ = self._indices.pop(self._random.randrange(len(self._indices))).partition(" ")
        return [Statement(f"DROP INDEX {name}")]

    def _insert(self) -> list[Statement]:
        return self._fill(self._any_table(), self._random.randint(1, 60), self._random.randint(0, 200))

    def _insert_long(self) -> list[Statement]:
        """Values that go on for pages of their own."""
        return self._fill(self._any_table(), self._random.randint(1, 4), self._random.randint(5_000, 90_000))

    def _insert_pages(self) -> list[Statement]:
        """A transaction of thousands of pages."""
        return self._fill(self._any_table(), self._random.randint(1_000, 2_500), 4_000)

    def _come_and_go(self) -> list[Statement]:
        """Pages that are used and freed in one transaction."""
        name = self._name("passing")
        return [
            Statement(f"CREATE TABLE {name} ({_BODY})"),
            *self._fill(name, self._random.randint(50, 500), 4_000),
            Statement(f"DROP TABLE {name}"),
        ]

    def _fill(self, table: str, rows: int, length: int) -> list[Statement]:
        name = f"{self._random.getrandbits(64):016x}"
        return [
            Statement(
                f"INSERT INTO {table} (id, name, body) {_MANY} "
                f"SELECT (SELECT coalesce(max(id), 0) FROM {table}) + x, ? || x, randomblob(?) FROM many",
                (rows, name, length),
            )
        ]

    def _update(self) -> list[Statement]:
        part, parts = self._random.randrange(7), self._random.randint(7, 70)
        length = self._random.randint(0, 9_000)
        return [
            Statement(
                f"UPDATE {self._any_table()} SET body = randomblob(?), name = name || '.' WHERE id % ? = ?",
                (length, parts, part),
            )
        ]

    def _delete(self) -> list[Statement]:
        parts = self._random.randint(2, 6)
        part = self._random.randrange(parts)
        return [Statement(f"DELETE FROM {self._any_table()} WHERE id % ? = ?", (parts, part))]
