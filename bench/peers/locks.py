"""Services that keep locks, each with the same call: take a lock, waiting for it, and release it.

Only ours and the table of PostgreSQL have leases with tokens that rise; only ours keeps waiting callers in
line, checks grants, and writes to the database of the jobs.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import aiohttp

from bench.peers.ours import in_file, on_server, open_node
from bench.peers.peer import Service
from bench.peers.servers import etcd_server, lacks, lacks_postgres, postgres_server, redis_server

CALLERS: Final = 8

Pair = Callable[[str], Awaitable[None]]
"""Takes the lock of this key, waiting for it, and releases it."""

LockService = Service[Sequence[Pair]]

_TTL_S: Final = 300
_WAIT_S: Final = 30.0
_RETRY_S: Final = 0.001
"""How long a caller waits before it asks again where a service sends no notice."""

_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS locks "
    "(key text PRIMARY KEY, token bigserial, holder text, expires_at timestamptz)"
)
_TAKE: Final = (
    "INSERT INTO locks (key, holder, expires_at) VALUES (%s, %s, now() + interval '300 s') "
    "ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token, holder = EXCLUDED.holder, "
    "expires_at = EXCLUDED.expires_at WHERE locks.expires_at < now() RETURNING token"
)
_RELEASE: Final = "DELETE FROM locks WHERE key = %s AND token = %s"


@asynccontextmanager
async def _ours(place: str) -> AsyncIterator[Sequence[Pair]]:
    async with open_node(place) as node:

        def caller(number: int) -> Pair:
            agent = f"caller-{number}"

            async def pair(key: str) -> None:
                async with node.locks.hold(key, agent=agent, wait=_WAIT_S):
                    pass

            return pair

        yield [caller(number) for number in range(CALLERS)]


@asynccontextmanager
async def _redis(url: str) -> AsyncIterator[Sequence[Pair]]:
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:

        async def pair(key: str) -> None:
            async with client.lock(key, timeout=_TTL_S, sleep=_RETRY_S, blocking_timeout=_WAIT_S):
                pass

        yield [pair] * CALLERS


@asynccontextmanager
async def _etcd(url: str) -> AsyncIterator[Sequence[Pair]]:
    """Over the gateway that speaks JSON: there is no maintained client for Python."""
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(_WAIT_S)) as session:

        async def ask(what: str, **fields: Any) -> dict[str, Any]:
            async with session.post(f"/v3/{what}", json=fields, raise_for_status=True) as answer:
                found: dict[str, Any] = await answer.json()
                return found

        async def caller() -> Pair:
            lease = (await ask("lease/grant", TTL=_TTL_S))["ID"]

            async def pair(key: str) -> None:
                name = base64.b64encode(key.encode()).decode()
                taken = await ask("lock/lock", name=name, lease=lease)
                await ask("lock/unlock", key=taken["key"])

            return pair

        yield [await caller() for _ in range(CALLERS)]


@asynccontextmanager
async def _advisory(url: str) -> AsyncIterator[Sequence[Pair]]:
    async with _connections(url) as connections:

        def caller(connection: Any) -> Pair:
            async def pair(key: str) -> None:
                await connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (key,))
                await connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", (key,))

            return pair

        yield [caller(each) for each in connections]


@asynccontextmanager
async def _table(url: str) -> AsyncIterator[Sequence[Pair]]:
    async with _connections(url) as connections:
        await connections[0].execute(_CREATE)

        def caller(number: int, connection: Any) -> Pair:
            async def pair(key: str) -> None:
                token = await _take(connection, key, f"caller-{number}")
                await connection.execute(_RELEASE, (key, token))

            return pair

        yield [caller(number, each) for number, each in enumerate(connections)]


@asynccontextmanager
async def _connections(url: str) -> AsyncIterator[list[Any]]:
    from psycopg import AsyncConnection

    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(await AsyncConnection.connect(url, autocommit=True))
            for _ in range(CALLERS)
        ]


async def _take(connection: Any, key: str, holder: str) -> int:
    while True:
        row: tuple[int] | None = await (await connection.execute(_TAKE, (key, holder))).fetchone()
        if row is not None:
            return row[0]
        await asyncio.sleep(_RETRY_S)


OURS_IN_FILE: Final[LockService] = Service("file", "ours in a file", "vox-mesh", in_file, _ours)
OURS_ON_SERVER: Final[LockService] = Service("sqld", "ours on sqld", "vox-mesh", on_server, _ours)
REDIS: Final[LockService] = Service(
    "redis", "redis-py's lock, `appendfsync=always`", "redis", redis_server, _redis, lacks("redis-server")
)
ETCD: Final[LockService] = Service(
    "etcd", "etcd's lock, over its JSON gateway", "aiohttp", etcd_server, _etcd, lacks("etcd")
)
POSTGRES_TABLE: Final[LockService] = Service(
    "postgres-table",
    "a table of leases in PostgreSQL",
    "psycopg",
    postgres_server,
    _table,
    lacks_postgres,
)
POSTGRES_ADVISORY: Final[LockService] = Service(
    "postgres-advisory",
    "an advisory lock of PostgreSQL, which writes nothing",
    "psycopg",
    postgres_server,
    _advisory,
    lacks_postgres,
)
