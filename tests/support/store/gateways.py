"""A gateway in front of a server that lets through only some ways of talking to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from tools.sqld import Server, free_port


class Gateway:
    """Refuses every WebSocket, and forwards only the paths it knows."""

    def __init__(self, server: Server, paths: tuple[str, ...], refusal: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.seen: list[str] = []
        """What was asked for, in order."""
        self._server = server
        self._paths = paths
        self._refusal = refusal

    async def answer(self, request: web.Request) -> web.Response:
        """Refuse an upgrade, forward what is known."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            self.seen.append("upgrade")
            return web.Response(status=self._refusal)
        self.seen.append(request.path)
        if not request.path.startswith(self._paths):
            return web.Response(status=404)
        headers = {name: request.headers[name] for name in ("authorization",) if name in request.headers}
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{self._server.url}{request.path}", data=await request.read(), headers=headers
            ) as got,
        ):
            return web.Response(status=got.status, body=await got.read(), content_type="application/json")


@asynccontextmanager
async def serving(handler: Handler, port: int, **options: Any) -> AsyncIterator[None]:
    """Serve every path on loopback until the end of the block; `options` are those of the runner."""
    app = web.Application(client_max_size=16 * 2**20)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, **options)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway(
    server: Server, *, paths: tuple[str, ...] = ("/v2/", "/v3/"), refusal: int = 404
) -> AsyncIterator[Gateway]:
    """A running gateway."""
    gate = Gateway(server, paths, refusal)
    async with serving(gate.answer, gate.port):
        yield gate
