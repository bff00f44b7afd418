"""Hrana 3 over WebSocket: a line for writing and one for reading, kept open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from vox_mesh.errors import MeshError, StoreClosed
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, EngineFacts, Note, ignore_note
from vox_mesh.store.engines.hrana import codec
from vox_mesh.store.engines.hrana.line import HranaConnection, HungUp
from vox_mesh.store.engines.hrana.token import is_read_only
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement


class StandingLine:
    """A line that is opened when it is first needed, and again after every loss."""

    def __init__(self, endpoint: str, token: str | None, timeout: float) -> None:
        self._endpoint = endpoint
        self._token = token
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None
        self._line: HranaConnection | None = None
        self._opening = asyncio.Lock()
        self._is_given_up = False

    async def get(self) -> HranaConnection:
        """The open line, or a new one."""
        line = self._line
        if line is not None and line.is_open:
            return line
        async with self._opening:
            if self._is_given_up:
                raise StoreClosed("the store is closed")
            if self._line is None or not self._line.is_open:
                await self.close()
                self._session = aiohttp.ClientSession()
                self._line = await HranaConnection.open(
                    self._session, self._endpoint, self._token, self._timeout
                )
            return self._line

    async def give_up(self) -> None:
        """Hang up for good."""
        async with self._opening:
            self._is_given_up = True
            await self.close()

    async def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            await self._line.close()
        if self._session is not None:
            await self._session.close()


class WsEngine:
    """Reads have a line of their own, so that they never wait behind a write."""

    max_scripts = 256

    def __init__(self, endpoint: str, token: str | None, timeout: float, note: Note = ignore_note) -> None:
        self._endpoint = endpoint
        self._note = note
        self._is_read_only = is_read_only(token)
        self._destination = endpoint, token, timeout
        self._writing = StandingLine(*self._destination)
        self._reading = StandingLine(*self._destination)

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        if self._is_read_only:
            raise codec.unauthorized("it may only read")
        line = await self._writing.get()
        try:
            response = await line.ask({"type": "batch", "batch": codec.encode_batch(batch)})
        except MeshError:
            await line.close()  # cut off in the middle, a batch may have left its transaction open
            raise
        self._note(codec.last_frame(response["result"]), line.number)
        result = codec.decode_batch(response["result"])
        if not result.is_over:
            await line.close()
        return result

    async def query(self, statement: Statement) -> Rows:
        """Answer a query."""
        while True:
            with suppress(HungUp):  # by a query before this one that failed: no fault of the server
                line = await self._reading.get()
                result = await _query(line, statement)
                self._note(codec.last_frame(result), line.number)
                return codec.decode_rows(result)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Several queries of one moment, in a read transaction on a line of its own."""
        async with aiohttp.ClientSession() as session:
            line = await HranaConnection.open(session, *self._destination)
            try:

                async def ask(statement: Statement) -> Rows:
                    return codec.decode_rows(await _query(line, statement))

                await ask(Statement("BEGIN"))
                yield ask
            finally:
                await line.close()

    async def connect(self) -> None:
        """Make sure that the server can be reached this way."""
        await self._reading.get()

    async def facts(self) -> EngineFacts:
        """Which way the database is reached."""
        version = await self.query(Statement("SELECT sqlite_version()"))
        return EngineFacts("hrana over WebSocket", self._endpoint, f"libSQL, SQLite {version.value}")

    async def close(self) -> None:
        """Hang up."""
        await self._writing.give_up()
        await self._reading.give_up()


async def _query(line: HranaConnection, statement: Statement) -> dict[str, Any]:
    response = await line.ask({"type": "execute", "stmt": codec.encode_statement(statement)})
    result: dict[str, Any] = response["result"]
    return result
