"""The pipe: messages of a host on stdin go to the node over HTTP, and its answers to stdout.

A node that restarts is no end: the pipe connects again and opens a new session as the host had opened it. A
request that may have reached the node is not sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

import httpx
import orjson

from vox_mesh.errors import MeshError, NoAnswer
from vox_mesh.hosts.mcp.stdio.lines import MAX_LINE_BYTES, LineReader, LineWriter
from vox_mesh.hosts.mcp.stdio.messages import (
    CANCELLED,
    INITIALIZE,
    INITIALIZED,
    SESSION,
    VERSION,
    PipedMessage,
    error_reply,
)
from vox_mesh.hosts.mcp.toolbox import error_line

Connect = Callable[[], Awaitable[httpx.AsyncClient]]
"""Returns a client of a node that runs now. Raises an error of the mesh if there is none."""

_HEADERS: Final = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_MAX_RUNNING: Final = 64
_MAX_EVENT: Final = 16 * 2**20
_FINISH_S: Final = 30.0  # after the end of stdin; on a busy machine a node takes seconds to start
_END_S: Final = 2.0
_AGAIN_S: Final = 1.0
_TRIES: Final = 2
_UNKNOWN_OUTCOME: Final = (
    "no_answer: connection to the node lost: outcome unknown. Check the current state before retrying"
)


class StdioPipe:
    """Passes messages between a host and a node until the host closes stdin."""

    def __init__(
        self,
        path: str,
        headers: Mapping[str, str],
        connect: Connect,
        reader: LineReader,
        writer: LineWriter,
    ) -> None:
        self._path = path
        self._headers = {**_HEADERS, **headers}
        self._connect = connect
        self._reader = reader
        self._writer = writer
        self._client: httpx.AsyncClient | None = None
        self._finding = asyncio.Lock()
        self._reopening = asyncio.Lock()
        self._opening: PipedMessage | None = None
        self._session: dict[str, str] = {}
        self._version: str | None = None
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._events: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(_MAX_RUNNING)

    async def run(self) -> None:
        """Pass messages until stdin ends, finish running requests, and end the session."""
        try:
            while (line := await self._reader.next()) is not None and not self._writer.is_broken.is_set():
                await self._accept(line)
            if self._running and not self._writer.is_broken.is_set():  # a host that leaves sends a signal
                await asyncio.wait(self._running.values(), timeout=_FINISH_S)
        finally:
            tasks = [*self._running.values(), *([] if self._events is None else [self._events])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_session()

    async def _accept(self, line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            text = f"too_large: message must have at most {MAX_LINE_BYTES} bytes"
            self._writer.write(error_reply(None, text, is_invalid=True))
        elif line.strip():
            message = PipedMessage.read(line)
            if message is None:
                self._writer.write(error_reply(None, "message must be a JSON object", is_invalid=True))
            elif message.is_request:
                await self._start(message)
            else:
                await self._notify(message)

    async def _start(self, message: PipedMessage) -> None:
        """Send a request in a task of its own; the session begins before anything else is sent."""
        await self._room.acquire()
        task = asyncio.create_task(self._answer(message))
        key = _key(message.request_id)
        self._running[key] = task

        def ended(_: Any) -> None:
            self._room.release()
            if self._running.get(key) is task:
                del self._running[key]

        task.add_done_callback(ended)
        if message.method == INITIALIZE:
            await asyncio.wait({task})

    async def _notify(self, message: PipedMessage) -> None:
        """Send what gets no answer, in order."""
        if message.method == CANCELLED and not self._session:  # without a session, leaving is cancelling
            task = self._running.get(_key(message.params.get("requestId")))
            if task is not None:
                task.cancel()
            return
        with suppress(MeshError, httpx.TransportError):
            await self._send(message)
        if message.method == INITIALIZED and self._session and self._events is None:
            self._events = asyncio.create_task(self._follow_events())

    # --- requests --------------------------------------------------------------------------------

    async def _answer(self, message: PipedMessage) -> None:
        try:
            await self._send(message)
        except MeshError as error:
            self._writer.write(
                error_reply(message.request_id, error_line(error.code, str(error), error.hint))
            )
        except httpx.TransportError:
            self._writer.write(error_reply(message.request_id, _UNKNOWN_OUTCOME))

    async def _send(self, message: PipedMessage) -> None:
        """Send a message and pass on its answers; open the session again if the node does not know it."""
        self._version = self._version or message.stateless_version
        if message.method == INITIALIZE:
            self._opening, self._session = message, {}
        session = self._session
        if await self._exchange(message, message):
            return
        async with self._reopening:  # the node was started again
            if session is self._session and self._opening is not None:
                self._session = {}
                await self._exchange(self._opening, None)
                initialized = orjson.dumps({"jsonrpc": "2.0", "method": INITIALIZED})
                await self._exchange(PipedMessage(initialized, INITIALIZED, None, {}), None)
        await self._exchange(message, message, is_last=True)

    async def _exchange(
        self, message: PipedMessage, answered: PipedMessage | None, *, is_last: bool = False
    ) -> bool:
        """Post a message; return `False` if its session is not known. Without `answered`, write nothing."""
        headers = {**self._headers, **(message.headers or self._session or self._headers_without(message))}
        response = await self._post(message.line, headers)
        try:
            if response.status_code == HTTPStatus.NOT_FOUND and SESSION in headers and not is_last:
                return False
            if message.method == INITIALIZE and SESSION in response.headers:
                self._session = {SESSION: response.headers[SESSION]}
            async for reply in _replies(response):
                if message.method == INITIALIZE:
                    self._note_version(reply)
                if answered is not None:
                    self._writer.write(_checked(reply, answered, response))
        finally:
            await response.aclose()
        return True

    def _headers_without(self, message: PipedMessage) -> dict[str, str]:
        """Return the headers of a message that names no revision: the first request has decided on it."""
        if message.method == INITIALIZE or self._version is None:
            return {}
        return message.headers_at(self._version)

    async def _post(self, line: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Return the response; connect again if the connection was refused, as nothing was sent then."""
        for _ in range(_TRIES):
            client = await self._connected()
            try:
                request = client.build_request("POST", self._path, content=line, headers=headers)
                return await client.send(request, stream=True)
            except httpx.ConnectError:
                await self._disconnect(client)
        raise NoAnswer("node does not answer", hint="start one with `vox-mesh up`, or check VOX_MESH_NODE")

    async def _connected(self) -> httpx.AsyncClient:
        async with self._finding:
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def _disconnect(self, client: httpx.AsyncClient) -> None:
        if self._client is client:
            self._client = None
            await client.aclose()

    # --- the session -----------------------------------------------------------------------------

    def _note_version(self, reply: bytes) -> None:
        with suppress(orjson.JSONDecodeError, TypeError, KeyError):
            self._session[VERSION] = str(orjson.loads(reply)["result"]["protocolVersion"])

    async def _follow_events(self) -> None:
        """Pass on what the node says by itself, for as long as the session lives."""
        while True:
            with suppress(httpx.TransportError, MeshError):
                client = await self._connected()
                headers = {**self._headers, **self._session}
                async with client.stream("GET", self._path, headers=headers) as response:
                    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                        return
                    if response.status_code == HTTPStatus.OK:
                        async for event in _events(response):
                            self._writer.write(event)
            await asyncio.sleep(_AGAIN_S)

    async def _end_session(self) -> None:
        client = self._client
        if client is None:
            return
        with suppress(httpx.TransportError, TimeoutError):
            async with asyncio.timeout(_END_S):
                if SESSION in self._session:
                    await client.delete(self._path, headers={**self._headers, **self._session})
        await client.aclose()


def _key(request_id: Any) -> str:
    return orjson.dumps(request_id).decode()


async def _replies(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the messages of a response: one, or those of a stream."""
    if response.headers.get("Content-Type", "").startswith("text/event-stream"):
        async for event in _events(response):
            yield event
    elif body := await response.aread():
        yield body


def _checked(reply: bytes, message: PipedMessage, response: httpx.Response) -> bytes:
    """Return a reply on one line; a problem document becomes the error of its request.

    An error about the connection has no id over HTTP, where the request waits for it. Here it needs one.
    """
    if response.headers.get("Content-Type", "").startswith("application/problem+json"):
        problem = orjson.loads(reply)
        text = error_line(problem["code"], problem["detail"], problem.get("hint", ""))
        return error_reply(message.request_id, text)
    try:
        if response.is_error:
            document = orjson.loads(reply)
            return orjson.dumps(
                {**document, "id": message.request_id if document.get("id") is None else document["id"]}
            )
        return orjson.dumps(orjson.loads(reply)) if b"\n" in reply else reply
    except orjson.JSONDecodeError:
        return error_reply(message.request_id, f"bad_answer: node answered with HTTP {response.status_code}")


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events; comments, which keep the connection open, have none."""
    data: list[str] = []
    size = 0
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            size += len(line)
            if size <= _MAX_EVENT:
                data.append(line[5:].removeprefix(" "))
        elif not line:
            if data and size <= _MAX_EVENT:
                yield "\n".join(data).encode()
            data, size = [], 0
