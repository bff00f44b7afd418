"""Speak Hrana 3 over WebSocket, with one persistent connection for writes and one for reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from vox_mesh.errors import MeshError, StoreClosed
from vox_mesh.model.base.keys import is_read_only
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, EngineFacts, Note, ignore_note
from vox_mesh.store.engines.hrana import codec
from vox_mesh.store.engines.hrana.connection import (
    ConnectionClosed,
    ConnectionDropped,
    HranaConnection,
    new_session,
)
from vox_mesh.store.engines.hrana.http import HttpEngine
from vox_mesh.store.engines.hrana.text_fallback import TextFallback
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement


class PersistentConnection:
    """A connection that is opened on first use, and again after every loss."""

    def __init__(self, endpoint: str, token: str | None, timeout: float) -> None:
        self._endpoint = endpoint
        self._token = token
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._connection: HranaConnection | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def get(self) -> HranaConnection:
        """Return the open connection, or a new one."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        async with self._opening:
            if self._is_closed:
                raise StoreClosed("the store is closed")
            if self._connection is None or not self._connection.is_open:
                await self.close()
                self._session = new_session()
                self._connection = await HranaConnection.open(
                    self._session, self._endpoint, self._token, self._timeout
                )
            return self._connection

    async def close_permanently(self) -> None:
        """Close the connection permanently."""
        async with self._opening:
            self._is_closed = True
            await self.close()

    async def close(self) -> None:
        """Close the connection; `get` opens a new one."""
        if self._connection is not None:
            await self._connection.close()
        if self._session is not None:
            await self._session.close()


class WsEngine:
    """An engine with a separate connection for reads, so that they never wait behind a write."""

    max_scripts = 256

    def __init__(self, endpoint: str, token: str | None, timeout: float, note: Note = ignore_note) -> None:
        self._endpoint = endpoint
        self._note = note
        self._is_read_only = is_read_only(token)
        self._destination = endpoint, token, timeout
        self._writing = PersistentConnection(*self._destination)
        self._reading = PersistentConnection(*self._destination)
        self._http = HttpEngine(*self._destination, note)
        self._fallback = TextFallback(self._ask, self._describe)

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        if self._is_read_only:
            raise codec.unauthorized("it may only read")
        connection = await self._writing.get()
        try:
            request = {"type": "batch", "batch": codec.encode_batch(batch)}
            response = await connection.ask(request, batch.patience_s)
        except ConnectionDropped:
            await self._http.explain_drop(batch)
            raise
        except MeshError:
            await connection.close()  # an interrupted batch may have left its transaction open
            raise
        self._note(codec.last_frame(response["result"]), connection.number, False)
        result = codec.decode_batch(response["result"])
        if not result.is_over:
            await connection.close()
        return result

    async def query(self, statement: Statement) -> Rows:
        """Run a query."""
        return await self._fallback.query(statement)

    async def _ask(self, statement: Statement) -> Rows:
        while True:
            with suppress(ConnectionClosed):  # by an earlier query that failed, not by the server
                connection = await self._reading.get()
                result = await _query(connection, statement)
                self._note(codec.last_frame(result), connection.number, True)
                return codec.decode_rows(result)

    async def _describe(self, sql: str) -> dict[str, Any]:
        while True:
            with suppress(ConnectionClosed):
                connection = await self._reading.get()
                described = await connection.ask({"type": "describe", "sql": sql})
                result: dict[str, Any] = described["result"]
                return result

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Return a context in which all queries see the same state, on its own connection."""
        async with new_session() as session:
            connection = await HranaConnection.open(session, *self._destination)
            try:

                async def ask(statement: Statement) -> Rows:
                    return codec.decode_rows(await _query(connection, statement))

                await ask(Statement("BEGIN"))
                yield ask
            finally:
                await connection.close()

    async def connect(self) -> None:
        """Connect, or raise the reason why the server can't be reached by WebSocket."""
        await self._reading.get()

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""
        version = await self.query(Statement("SELECT sqlite_version()"))
        return EngineFacts("hrana over WebSocket", self._endpoint, f"libSQL, SQLite {version.value}")

    async def close(self) -> None:
        """Close both connections permanently."""
        await self._writing.close_permanently()
        await self._reading.close_permanently()
        await self._http.close()


async def _query(connection: HranaConnection, statement: Statement) -> dict[str, Any]:
    response = await connection.ask({"type": "execute", "stmt": codec.encode_statement(statement)})
    result: dict[str, Any] = response["result"]
    return result
