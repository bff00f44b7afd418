"""Timestamps in the database: after a rollback the newest one left shows what was kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from proof.final_state import Ask
from vox_mesh import MeshError, Script, Statement, Store

TABLE: Final = "proof_marks"
DDL: Final = f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY, at REAL NOT NULL)"

_EVERY_S: Final = 0.15
_WRITE: Final = (
    f"INSERT INTO {TABLE} (id, at) VALUES (1, ?) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)"
)


class Marks:
    """Write the time again and again. Writes acknowledged before a mark was begun are older than the mark."""

    def __init__(self, store: Store | None, ask: Ask) -> None:
        """Without a store no marks are written, and nothing may be rolled back."""
        self._store = store
        self._ask = ask
        self._marking = asyncio.Lock()

    async def run(self) -> None:
        """Write marks until cancelled; skip while the database is unreachable."""
        while True:
            async with self._marking:
                await self._mark()
            await asyncio.sleep(_EVERY_S)

    async def _mark(self) -> bool:
        assert self._store is not None
        with suppress(MeshError):
            await self._store.write(Script(Statement(_WRITE, (time.monotonic(),))))
            return True
        return False

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[Callable[[], Awaitable[float]]]:
        """Write no marks during a rollback; yield a function that returns the newest mark kept."""
        async with self._marking:
            yield self._newest
            is_marked = await self._mark()
            while not is_marked:
                await asyncio.sleep(_EVERY_S)
                is_marked = await self._mark()

    async def _newest(self) -> float:
        """Return the newest mark, as soon as the database answers; minus infinity if there is none."""
        while True:
            with suppress(MeshError):
                rows = await self._ask(f"SELECT at FROM {TABLE}")
                return float(rows[0]["at"]) if rows else 0.0
            await asyncio.sleep(_EVERY_S)
