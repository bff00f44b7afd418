"""Choose the transport: WebSocket if the server offers it, otherwise HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vox_mesh.errors import UpgradeRefused
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, Engine, EngineFacts, Note, ignore_note
from vox_mesh.store.engines.hrana.http import HttpEngine
from vox_mesh.store.engines.hrana.ws import WsEngine
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement


class AutoEngine:
    """Tries the WebSocket upgrade once, on first use, and keeps the result."""

    max_scripts = 256

    def __init__(self, endpoint: str, token: str | None, timeout: float, note: Note = ignore_note) -> None:
        self._ws = WsEngine(endpoint, token, timeout, note)
        self._http = HttpEngine(endpoint, token, timeout, note)
        self._chosen: Engine | None = None
        self._choosing = asyncio.Lock()

    async def _engine(self) -> Engine:
        if self._chosen is None:
            async with self._choosing:
                if self._chosen is None:
                    self._chosen = await self._choose()
        return self._chosen

    async def _choose(self) -> Engine:
        try:
            await self._ws.connect()
        except UpgradeRefused:
            return self._http
        return self._ws

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        return await (await self._engine()).run(batch)

    async def query(self, statement: Statement) -> Rows:
        """Run a query."""
        return await (await self._engine()).query(statement)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Return a context in which all queries see the same committed state."""
        async with (await self._engine()).snapshot() as ask:
            yield ask

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""
        return await (await self._engine()).facts()

    async def close(self) -> None:
        """Close both transports."""
        await self._ws.close()
        await self._http.close()
