"""A bridge from streamable HTTP to a server on standard input and output: the suite speaks HTTP only.

Each session of an older revision has a process of its own, as each client of a host has; requests without a
session share one. The bridge passes messages on as they are. It gives requests ids of its own, since several
clients share a process, and puts the clients' ids back into the answers.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import TestServer

Message = dict[str, Any]

_SESSION: Final = "Mcp-Session-Id"
_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
_MAX_LINE: Final = 8 * 1024 * 1024
_STOP_S: Final = 20.0
_STATUS: Final = {-32601: HTTPStatus.NOT_FOUND}
_STATELESS: Final = "2026-07-28"


class StdioServer:
    """A process that serves MCP on its standard input and output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._next_id = 0
        self._waiting: dict[int, tuple[Any, asyncio.Queue[Message]]] = {}
        self.others: asyncio.Queue[Message] = asyncio.Queue()
        """What belongs to no request: for the stream that a client opens with GET."""
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: Sequence[str], variables: Mapping[str, str]) -> StdioServer:
        """Start a process."""
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, env=dict(variables), limit=_MAX_LINE
            )
        )

    async def send(self, message: Message) -> None:
        """Send a message that needs no answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def ask(self, message: Message) -> AsyncGenerator[Message, None]:
        """Send a request, and yield what comes for it: notifications, requests, and last its answer."""
        self._next_id += 1
        ours, queue = self._next_id, asyncio.Queue[Message]()
        self._waiting[ours] = (message["id"], queue)
        is_answered = False
        try:
            await self.send({**message, "id": ours})
            while not is_answered:
                found = await queue.get()
                is_answered = "method" not in found
                yield found
        finally:
            del self._waiting[ours]
            if not is_answered:  # the client has left
                cancelled = {"requestId": ours, "reason": "client left"}
                with suppress(ConnectionError):
                    await self.send(
                        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
                    )

    async def stop(self) -> int:
        """Close the input of the process, and return how it ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                return await self._process.wait()
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()
        finally:
            self._reading.cancel()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._pass_on(json.loads(line))

    def _pass_on(self, message: Message) -> None:
        if "method" not in message:
            theirs, queue = self._waiting.get(message["id"], (None, None))
            if queue is not None:
                queue.put_nowait({**message, "id": theirs})
            return
        meta = message.get("params", {}).get("_meta", {})
        if (subscribed := self._waiting.get(meta.get(_SUBSCRIPTION))) is not None:
            theirs, queue = subscribed
            meta[_SUBSCRIPTION] = theirs
            queue.put_nowait(message)
        elif self._waiting:  # the suite has one call at a time that is talked to
            _, queue = self._waiting[max(self._waiting)]
            queue.put_nowait(message)
        else:
            self.others.put_nowait(message)


class StdioBridge:
    """Serves `/mcp` by processes."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._command = command
        self._variables = variables
        self._servers: dict[str, StdioServer] = {}
        self._starting = asyncio.Lock()
        self.endings: list[int] = []
        """How the processes have ended."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of a client."""
        session = request.headers.get(_SESSION)
        if session is not None and session not in self._servers:
            return web.Response(status=HTTPStatus.NOT_FOUND)
        if request.method == "DELETE" and session is not None:
            self.endings.append(await self._servers.pop(session).stop())
            return web.Response()
        if request.method == "GET" and session is not None:
            return await _stream(request, _endless(self._servers[session].others), {})
        message = await request.json()
        is_stateless = request.headers.get("MCP-Protocol-Version", "") >= _STATELESS
        if session is None and message.get("method") == "initialize" and not is_stateless:
            session = secrets.token_hex(8)
        server = await self._server(session or "")
        if "method" not in message or "id" not in message:
            await server.send(message)
            return web.Response(status=HTTPStatus.ACCEPTED)
        headers = {} if session is None else {_SESSION: session}
        async with aclosing(server.ask(message)) as messages:
            return await _answer(request, messages, headers, is_stateless=is_stateless)

    async def stop(self) -> None:
        """Stop all processes."""
        servers, self._servers = list(self._servers.values()), {}
        self.endings += await asyncio.gather(*(server.stop() for server in servers))

    async def _server(self, session: str) -> StdioServer:
        async with self._starting:
            if session not in self._servers:
                server = await StdioServer.start(self._command, self._variables)
                if not session:
                    await _discover(server)
                self._servers[session] = server
            return self._servers[session]


async def _discover(server: StdioServer) -> None:
    """Begin as clients without sessions do: the first request on a pipe decides on the revision."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": _STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    asked = {"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": meta}}
    async with aclosing(server.ask(asked)) as messages:
        answer = await anext(messages)
    assert "result" in answer, answer


@asynccontextmanager
async def stdio_bridge(
    command: Sequence[str], variables: Mapping[str, str]
) -> AsyncIterator[tuple[str, StdioBridge]]:
    """Run a bridge; yield its URL."""
    bridge = StdioBridge(command, variables)
    app = web.Application()
    app.router.add_route("*", "/mcp", bridge.handle)
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("/mcp")), bridge
    finally:
        await bridge.stop()
        await server.close()


async def _endless(queue: asyncio.Queue[Message]) -> AsyncIterator[Message]:
    while True:
        yield await queue.get()


async def _answer(
    request: web.Request, messages: AsyncIterator[Message], headers: Mapping[str, str], *, is_stateless: bool
) -> web.StreamResponse:
    """Answer with JSON if the first message is the answer, and otherwise with a stream."""
    first = await anext(messages)
    if "method" not in first:
        status = HTTPStatus.OK
        if "error" in first and is_stateless:
            status = _STATUS.get(first["error"]["code"], HTTPStatus.BAD_REQUEST)
        return web.json_response(first, status=status, headers=headers)

    async def every() -> AsyncIterator[Message]:
        yield first
        async for message in messages:
            yield message

    return await _stream(request, every(), headers)


async def _stream(
    request: web.Request, messages: AsyncIterator[Message], headers: Mapping[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **headers})
    await response.prepare(request)
    with suppress(ConnectionError):
        async for message in messages:
            await response.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
    return response
