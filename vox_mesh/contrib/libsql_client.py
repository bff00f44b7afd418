"""Use the `libsql-client` package as a driver. It has no conditional batches: each step is a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp

from vox_mesh.errors import DriverMissing, NoAnswer, Unreachable
from vox_mesh.model.base.keys import is_read_only
from vox_mesh.store.batch import DONE, Batch, BatchResult, StepError, StepResult, StepRows, StepVerdict
from vox_mesh.store.engine import Ask, EngineFacts, Note, ignore_note
from vox_mesh.store.engines.hrana import codec
from vox_mesh.store.engines.hrana.connection import HranaConnection, new_session
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

try:
    import libsql_client
except ImportError:
    libsql_client = None

_TRANSPORT_CODES: Final = ("HRANA_WEBSOCKET_ERROR", "HRANA_CLOSED", "CLIENT_CLOSED", "HRANA_PROTO_ERROR")


class LibsqlClientEngine:
    """An engine that runs a batch inside the package's `transaction()`, over its WebSocket."""

    max_scripts = 16  # a transaction here lasts a round trip per step, and the server ends it after 5 s

    def __init__(self, endpoint: str, token: str | None, timeout: float, note: Note = ignore_note) -> None:
        if libsql_client is None:
            raise DriverMissing(
                "VOX_DB_DRIVER: the package libsql-client is not installed",
                hint="pip install 'vox-mesh[libsql-client]', or VOX_DB_DRIVER=auto",
            )
        self._endpoint = endpoint
        self._note = note
        self._token = token
        self._is_read_only = is_read_only(token)
        self._timeout = timeout
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        if self._is_read_only:
            raise codec.unauthorized("it may only read")
        client = await self._open_client()
        try:
            async with asyncio.timeout(max(self._timeout, batch.patience_s)):
                if batch.is_single_statement:
                    (step,) = batch.steps
                    result = BatchResult([await self._run_step(client, step.sql, step.params)])
                else:
                    result = await self._walk(client.transaction(), batch)
        except BaseException as error:
            await self._drop()
            raise self._convert_error(error) from None
        self._note(None, 0, False)  # the package does not expose the frame
        return result

    async def _walk(self, transaction: Any, batch: Batch) -> BatchResult:
        """Run the steps. The package sends `BEGIN`; the first statement is a write, so it takes the lock."""
        verdicts: list[StepVerdict] = [True]
        results: list[StepResult] = [DONE]
        try:
            for step in batch.steps[1:]:
                if not step.is_due(verdicts):
                    results.append(None)
                    verdicts.append(None)
                    continue
                result = await self._run_step(transaction, step.sql, step.params)
                results.append(result)
                verdicts.append(isinstance(result, StepRows))
        finally:
            transaction.close()
        return BatchResult(results)

    async def _run_step(self, transaction: Any, sql: str, params: Any) -> StepResult:
        try:
            if sql == "COMMIT":
                await transaction.commit()
                return DONE
            if sql == "ROLLBACK":
                await transaction.rollback()
                return DONE
            result = await transaction.execute(sql, list(params))
        except libsql_client.LibsqlError as error:
            if error.code in _TRANSPORT_CODES:
                raise
            return StepError(error.code, error.explanation.removeprefix("SQLite error: "))
        return StepRows([tuple(row) for row in result.rows])

    async def query(self, statement: Statement) -> Rows:
        """Run a query."""
        rows = await self._query(await self._open_client(), statement)
        self._note(None, 0, True)
        return rows

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Return a context in which all queries see the same state, in the package's `transaction()`."""
        transaction = (await self._open_client()).transaction()

        async def ask(statement: Statement) -> Rows:
            return await self._query(transaction, statement)

        try:
            yield ask
        finally:
            transaction.close()

    async def _query(self, asked: Any, statement: Statement) -> Rows:
        try:
            async with asyncio.timeout(self._timeout):
                result = await asked.execute(statement.sql, list(statement.params))
        except libsql_client.LibsqlError as error:
            if error.code not in _TRANSPORT_CODES:
                raise codec.request_error({"code": error.code, "message": error.explanation}) from None
            await self._drop()
            raise self._convert_error(error) from None
        except asyncio.CancelledError:
            raise  # a write may be in flight on the same client
        except BaseException as error:
            await self._drop()
            raise self._convert_error(error) from None
        return Rows(tuple(result.columns), [tuple(row) for row in result.rows])

    async def _open_client(self) -> Any:
        """Return a client with an open socket; a closed one is replaced."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Any:
        client = libsql_client.create_client(self._endpoint.replace("http", "ws", 1), auth_token=self._token)
        try:
            async with asyncio.timeout(self._timeout):
                await client.execute("SELECT 1")
        except BaseException as error:
            await _close(client)
            converted = self._convert_error(error)
            if not isinstance(converted, NoAnswer):
                raise converted from None
            if isinstance(error, aiohttp.ClientConnectionResetError):
                await self._raise_refusal()
            raise Unreachable(f"{self._endpoint} can't be reached: {converted}") from None
        return client

    async def _raise_refusal(self) -> None:
        """Raise the server's reason for closing, if it gives one: the package may fail before reading it."""
        async with new_session() as session:
            connection = await HranaConnection.open(session, self._endpoint, self._token, self._timeout)
            await connection.close()

    def _convert_error(self, error: BaseException) -> BaseException:
        if isinstance(error, TimeoutError):
            return NoAnswer(f"the server did not answer within {self._timeout:g} s")
        if isinstance(error, libsql_client.LibsqlError):
            if error.code in _TRANSPORT_CODES:
                return NoAnswer(f"the connection to the server broke: {error.explanation}")
            return codec.request_error({"code": error.code, "message": error.explanation})
        if isinstance(error, aiohttp.ClientError | aiohttp.WebSocketError | OSError):
            return NoAnswer(f"the connection to the server broke: {error}")
        return error

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""
        version = await self.query(Statement("SELECT sqlite_version()"))
        return EngineFacts("libsql-client", self._endpoint, f"libSQL, SQLite {version.value}")

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def close(self) -> None:
        """Close the client."""
        await self._drop()


async def _close(client: Any) -> None:
    # The package's `close` raises the error that broke the connection, and then leaves its session open.
    with suppress(Exception):
        async with asyncio.timeout(1.0):
            await client.close()
    session: aiohttp.ClientSession | None = getattr(client, "_session", None)
    if session is not None:
        await session.close()
