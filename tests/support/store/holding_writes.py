"""A foreign client that keeps everybody else from writing to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from tools.sqld import Server

_PIPELINE: Final = "/v3/pipeline"


async def _ask(session: aiohttp.ClientSession, baton: str | None, sql: str) -> dict[str, Any]:
    requests = [{"type": "execute", "stmt": {"sql": sql}}]
    async with session.post(_PIPELINE, json={"baton": baton, "requests": requests}) as answer:
        result: dict[str, Any] = await answer.json()
        return result


@asynccontextmanager
async def write_transaction(server: Server) -> AsyncIterator[None]:
    """Hold the server's one write transaction open. The server takes it away after 5 s."""
    headers = {"authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        result = {"results": [{"type": "error"}]}
        while result["results"][0]["type"] == "error":  # another is writing
            result = await _ask(session, None, "BEGIN IMMEDIATE")
        yield
        await _ask(session, str(result["baton"]), "ROLLBACK")
