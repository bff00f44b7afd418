"""Speak Hrana over HTTP: one stream per request."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
import orjson

from vox_mesh.errors import (
    BadStatement,
    MeshError,
    NoAnswer,
    Unreachable,
    UnreadableText,
)
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, EngineFacts, Note, ignore_note
from vox_mesh.store.engines.hrana import codec
from vox_mesh.store.engines.hrana.text_fallback import TextFallback
from vox_mesh.store.engines.text import is_unreadable, unreadable
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement

_VERSIONS: Final = ("v3", "v2")
_RETRYABLE: Final = frozenset({408, 425, 429})  # rejected before it was processed
_CLOSE: Final = {"type": "close"}


class HttpEngine:
    """An engine for servers without WebSocket, such as Turso Cloud."""

    max_scripts = 256

    def __init__(self, endpoint: str, token: str | None, timeout: float, note: Note = ignore_note) -> None:
        self._endpoint = endpoint
        self._note = note
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._timeout = timeout
        self._version: str | None = None
        self._session: aiohttp.ClientSession | None = None
        self._fallback = TextFallback(self._ask, self._describe)

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction."""
        try:
            result = await self._result(_batch(batch), batch.patience_s)
            self._note(codec.last_frame(result), 0, False)
            return codec.decode_batch(result)
        except UnreadableText as error:
            if batch.is_single_statement:  # it took effect before its rows were read
                raise NoAnswer(str(error), hint=error.hint) from None
            raise

    async def explain_drop(self, batch: Batch) -> None:
        """Raise `UnreadableText` if that is why the server dropped a connection instead of answering a batch.

        The server runs a rehearsal of the batch, which changes nothing.
        """
        if batch.is_single_statement or not batch.wants_rows:
            return
        try:
            await self._exchange([_batch(batch.rehearsal()), _CLOSE])
        except UnreadableText:
            raise
        except MeshError:
            return  # the server is really away, or the batch would fail for another reason

    async def query(self, statement: Statement) -> Rows:
        """Run a query."""
        return await self._fallback.query(statement)

    async def _ask(self, statement: Statement) -> Rows:
        result = await self._result(_execute(statement))
        self._note(codec.last_frame(result), 0, True)
        return codec.decode_rows(result)

    async def _describe(self, sql: str) -> dict[str, Any]:
        answer = await self._exchange([{"type": "describe", "sql": sql}, _CLOSE])
        described: dict[str, Any] = _first_response(answer)["result"]
        return described

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Ask]:
        """Return a context in which all queries see the same state, in one transaction on an open stream."""
        baton: str | None = None

        async def ask(statement: Statement) -> Rows:
            nonlocal baton
            answer = await self._exchange([_execute(statement)], baton)
            baton = answer["baton"]
            return codec.decode_rows(_first_response(answer)["result"])

        try:
            await ask(Statement("BEGIN"))
            yield ask
        finally:
            if baton is not None:
                with suppress(MeshError):
                    await self._exchange([_CLOSE], baton)

    async def _result(self, request: dict[str, Any], patience_s: float = 0.0) -> dict[str, Any]:
        answer = await self._exchange([request, _CLOSE], patience_s=patience_s)
        result: dict[str, Any] = _first_response(answer)["result"]
        return result

    async def _exchange(
        self, requests: list[dict[str, Any]], baton: str | None = None, patience_s: float = 0.0
    ) -> dict[str, Any]:
        body = orjson.dumps({"baton": baton, "requests": requests})
        for version in _VERSIONS if self._version is None else (self._version,):
            status, answer = await self._post(f"{self._endpoint}/{version}/pipeline", body, patience_s)
            if status != 404:
                self._version = version
                return _pipeline(status, answer)
        raise Unreachable(
            f"{self._endpoint} is no libSQL server: it knows neither /v3/pipeline nor /v2/pipeline",
            hint="check VOX_DB_URL",
        )

    async def _post(self, url: str, body: bytes, patience_s: float) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        # aiohttp warns of raw bytes of more than a megabyte; a file object is sent in chunks.
        data = body if len(body) < 2**20 else io.BytesIO(body)
        timeout = max(self._timeout, patience_s)
        try:
            async with (
                asyncio.timeout(timeout),
                self._session.post(url, data=data, headers=self._headers, allow_redirects=False) as response,
            ):
                return response.status, await response.read()
        except TimeoutError:
            raise NoAnswer(f"the server did not answer within {timeout:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"{self._endpoint} can't be reached: {error}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(f"the connection to the server broke: {error}") from None

    async def facts(self) -> EngineFacts:
        """Return how the database is reached."""
        version = await self.query(Statement("SELECT sqlite_version()"))
        return EngineFacts(
            f"hrana over HTTP (/{self._version})", self._endpoint, f"libSQL, SQLite {version.value}"
        )

    async def close(self) -> None:
        """Close idle connections."""
        if self._session is not None:
            await self._session.close()


def _batch(batch: Batch) -> dict[str, Any]:
    return {"type": "batch", "batch": codec.encode_batch(batch)}


def _execute(statement: Statement) -> dict[str, Any]:
    return {"type": "execute", "stmt": codec.encode_statement(statement)}


def _pipeline(status: int, body: bytes) -> dict[str, Any]:
    """Return the answer to all requests, or raise the error of its status."""
    if status in (401, 403):
        raise codec.unauthorized(_message(body))
    if status == 500 and is_unreadable(_message(body)):
        raise unreadable(_message(body))
    if status >= 500:
        raise NoAnswer(f"the server failed with status {status}: {_message(body)}")
    if status < 400 and status != 200:
        raise Unreachable(f"the server answered with status {status}", hint="check VOX_DB_URL")
    if status in _RETRYABLE:
        raise Unreachable(f"the server has no time for us, with status {status}: {_message(body)}")
    if status != 200:
        reason = f"the server refused the request with status {status}: {_message(body)}"
        raise BadStatement(reason, statement=0)
    return codec.parse(body)


def _first_response(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer.get("results"):
        raise NoAnswer("the server answered without a result")
    result = answer["results"][0]
    if result["type"] != "ok":
        raise codec.request_error(result["error"])
    response: dict[str, Any] = result["response"]
    return response


def _message(body: bytes) -> str:
    """Return the server's reason, from JSON or plain text."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode(errors="replace").strip() or "no reason given"
    return str(found.get("error") or found.get("message") or found) if isinstance(found, dict) else str(found)
