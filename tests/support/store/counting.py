"""A gateway before a server that lets everything through and counts it; a call can be refused or held."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from aiohttp import web

from tests.support.store.gateways import serving
from tools.sqld import Server, free_port

WAL_LOG: Final = "/wal_log."
HELLO: Final = "/wal_log.ReplicationLog/Hello"
SNAPSHOT: Final = "/wal_log.ReplicationLog/Snapshot"
_PASSED_ON: Final = ("content-type", "grpc-status", "grpc-message")
_NO_SNAPSHOT: Final = {
    "content-type": "application/grpc-web+proto",
    "grpc-status": "14",
    "grpc-message": "snapshot%20not%20found",
}
_LINGER_S: Final = 0.2


class CountingGateway:
    """Forwards HTTP as it streams, and WebSockets message by message."""

    def __init__(self, server: Server, refused: tuple[str, int] | None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.calls: Counter[str] = Counter()
        """How often each path was asked for."""
        self.messages = 0
        """How many messages went to the server over WebSockets."""
        self._target = server.url
        self._refused = refused
        self._held_path = ""
        self._without_snapshots = False
        self._holding = asyncio.Event()
        self._released = asyncio.Event()

    def hold(self, path: str) -> None:
        """Keep back the server's next answers to this call."""
        self._held_path = path
        self._holding.clear()
        self._released.clear()

    def withhold_snapshots(self) -> None:
        """Answer as a server that is still making its snapshots, until `release`."""
        self._without_snapshots = True

    async def holding(self) -> None:
        """Wait until an answer is being kept back."""
        async with asyncio.timeout(10):
            await self._holding.wait()

    def release(self) -> None:
        """Pass on what was kept back."""
        self._held_path = ""
        self._without_snapshots = False
        self._released.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on, and its answer back."""
        if self._refused is not None and request.path.startswith(self._refused[0]):
            return web.Response(status=self._refused[1])
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            if request.headers.get("upgrade", "").lower() == "websocket":
                return await self._pass_messages(request, session)
            self.calls[request.path] += 1
            if self._without_snapshots and request.path == SNAPSHOT:
                return web.Response(headers=_NO_SNAPSHOT)
            return await self._pass_call(request, session)

    async def _pass_call(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        async with session.request(
            request.method, f"{self._target}{request.path}", data=await request.read(), headers=headers
        ) as got:
            if request.path == self._held_path:
                await got.read()
                self._holding.set()
                await self._released.wait()
            passed_on = {name: got.headers[name] for name in _PASSED_ON if name in got.headers}
            response = web.StreamResponse(status=got.status, headers=passed_on)
            await response.prepare(request)
            if got.closed:
                await response.write(await got.read())
                return response
            async for chunk in got.content.iter_any():
                await response.write(chunk)
            return response

    async def _pass_messages(
        self, request: web.Request, session: aiohttp.ClientSession
    ) -> web.WebSocketResponse:
        protocols = [name.strip() for name in request.headers.get("sec-websocket-protocol", "").split(",")]
        async with session.ws_connect(self._target, protocols=protocols, max_msg_size=0) as server:
            client = web.WebSocketResponse(protocols=[server.protocol or ""], max_msg_size=0)
            await client.prepare(request)

            async def pass_answers() -> None:
                async for message in server:
                    await client.send_str(message.data)
                await client.close()

            answering = asyncio.create_task(pass_answers())
            try:
                async for message in client:
                    self.messages += 1
                    await server.send_str(message.data)
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
            return client


@asynccontextmanager
async def counting(
    server: Server, *, refused: tuple[str, int] | None = None
) -> AsyncIterator[CountingGateway]:
    """A running gateway. `refused`: the beginning of a path, and the status that it is answered with."""
    gate = CountingGateway(server, refused)
    async with serving(gate.answer, gate.port, handler_cancellation=True, shutdown_timeout=_LINGER_S):
        yield gate
