"""Foreign clients of the database, which hold transactions open for seconds, as a shell or a backup may."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from proof.chaos.infrastructure import Infrastructure
from tools.sqld import Server

WRITES: Final = ("BEGIN IMMEDIATE",)
READS: Final = ("BEGIN", "SELECT count(*) FROM sqlite_schema")
"""The statements that begin the transaction."""

_LOOK_S: Final = 0.002
_PATIENCE_S: Final = 20.0


@asynccontextmanager
async def holding(infrastructure: Infrastructure, statements: Sequence[str]) -> AsyncIterator[None]:
    """Hold a transaction open until the end of the block."""
    if infrastructure.server is None:
        async with _on_file(infrastructure.own_settings.file_path, statements):
            yield
    else:
        async with _on_server(infrastructure.server, statements):
            yield


@asynccontextmanager
async def _on_file(path: Path, statements: Sequence[str]) -> AsyncIterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as connection:
        while not connection.in_transaction:
            with suppress(sqlite3.OperationalError):
                for statement in statements:
                    connection.execute(statement).fetchall()
            await asyncio.sleep(_LOOK_S)
        yield


@asynccontextmanager
async def _on_server(server: Server, statements: Sequence[str]) -> AsyncIterator[None]:
    """Hold it over a separate stream. The server may end a transaction that lasts too long.

    A server that begins none in time hangs: then nothing is held, and the next fault may start it again.
    """
    headers = {"Authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(_PATIENCE_S)) as client:
        baton: str | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while baton is None:
                    with suppress(aiohttp.ClientError):
                        baton = await _begun(client, server.url, statements)
                    await asyncio.sleep(_LOOK_S)
        yield
        if baton is not None:
            with suppress(aiohttp.ClientError, TimeoutError):
                await _sent(client, server.url, baton, [{"type": "close"}])


async def _begun(client: aiohttp.ClientSession, url: str, statements: Sequence[str]) -> str | None:
    requests = [{"type": "execute", "stmt": {"sql": each}} for each in statements]
    answer = await _sent(client, url, None, requests)
    is_begun = all(each["type"] == "ok" for each in answer["results"])
    return str(answer["baton"]) if is_begun else None


async def _sent(
    client: aiohttp.ClientSession, url: str, baton: str | None, requests: list[dict[str, Any]]
) -> dict[str, Any]:
    async with client.post(f"{url}/v3/pipeline", json={"baton": baton, "requests": requests}) as answer:
        answer.raise_for_status()
        found: dict[str, Any] = await answer.json()
        return found
