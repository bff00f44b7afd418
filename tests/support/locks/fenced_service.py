"""A resource outside the database that our locks protect: it remembers the highest token of each key."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from aiohttp import web


class FencedService:
    """Takes `PUT /{key}` with the header `Fence-Token`, and refuses an older token than it has seen: 409."""

    def __init__(self) -> None:
        self.url = ""
        self.accepted: list[tuple[str, int]] = []
        self.refused: list[tuple[str, int]] = []
        self._highest: dict[str, int] = {}
        app = web.Application()
        app.router.add_put("/{key}", self._put)
        self._runner = web.AppRunner(app)

    async def _put(self, request: web.Request) -> web.Response:
        key, token = request.match_info["key"], int(request.headers["Fence-Token"])
        # Nothing is awaited between the comparison and the note: two requests can't come between each other.
        if token < self._highest.get(key, 0):
            self.refused.append((key, token))
            return web.Response(status=409, text="a newer holder was here")
        self._highest[key] = token
        self.accepted.append((key, token))
        return web.Response(status=204)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
