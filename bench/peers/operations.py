"""Lines on peers' locks and messages: one operation of one caller, by a peer's server and by ours, in turn.

None of the peers does all of ours: only the table of PostgreSQL has leases and tokens that rise, and no
message of a peer is signed. By default `sqld`, as NATS, does not wait for the disk after each commit; Redis
and PostgreSQL do here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut, at_most
from bench.measure import Call, alternate, median_us
from bench.peers.servers import lacks, lacks_postgres, nats_server, postgres_server, redis_server
from tools.homes import MESH
from vox_mesh import Mesh
from vox_mesh.node import MeshNode

_KEY: Final = "task:42"
_NUMBER: Final = 42
_TTL_S: Final = 300
_CREATE: Final = (
    "CREATE TABLE locks (key text PRIMARY KEY, token bigserial, holder text, expires_at timestamptz)"
)
_TAKE: Final = (
    "INSERT INTO locks (key, holder, expires_at) VALUES (%s, %s, now() + interval '300 s') "
    "ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token, holder = EXCLUDED.holder, "
    "expires_at = EXCLUDED.expires_at WHERE locks.expires_at < now() RETURNING token"
)
_RELEASE: Final = "DELETE FROM locks WHERE key = %s AND token = %s"


_BODY: Final = {"task": "review the change to the parser", "files": ["src/parser/lexer.py"], "step": 42}
_STREAM: Final = "receiver"


@dataclass(frozen=True, slots=True)
class OperationKind:
    """What is compared, and how it is done with ours."""

    name: str
    what: str
    ours: Callable[[MeshNode], Call]


def _lock_pair(node: MeshNode) -> Call:
    async def pair() -> None:
        await node.locks.release(await node.locks.acquire(_KEY))

    return pair


def _message(node: MeshNode) -> Call:
    async def send_and_receive() -> None:
        await node.messages.send(_STREAM, _BODY, sender="sender")
        await node.messages.ack(*await node.messages.inbox(_STREAM))

    return send_and_receive


LOCK: Final = OperationKind("lock", "a lock acquired and released", _lock_pair)
MESSAGE: Final = OperationKind("message", "a message sent, received and acknowledged", _message)


@dataclass(frozen=True, slots=True)
class OperationPeer:
    """Another service. `open` connects to the address that `serve` yields; its call is one operation."""

    kind: OperationKind
    name: str
    title: str
    package: str
    serve: Callable[[Path], AbstractContextManager[str]]
    open: Callable[[str], AbstractAsyncContextManager[Call]]
    lacks_server: Callable[[], str]
    most: float
    """How many times as long ours may take."""

    @property
    def line(self) -> str:
        """The name of its line."""
        return f"{self.kind.name}-peer-{self.name}"

    def why_not(self) -> str:
        """Why it can't be measured here; empty if it can."""
        if importlib.util.find_spec(self.package) is None:
            return f"the Python package {self.package} is not installed"
        return self.lacks_server()


@asynccontextmanager
async def _redis(url: str) -> AsyncIterator[Call]:
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:

        async def pair() -> None:
            async with client.lock(_KEY, timeout=_TTL_S):
                pass

        yield pair


@asynccontextmanager
async def _redis_stream(url: str) -> AsyncIterator[Call]:
    from redis.asyncio import Redis

    async with Redis.from_url(url) as client:
        await client.xgroup_create(_STREAM, "group", mkstream=True)
        fields = {"body": orjson.dumps(_BODY)}

        async def send_and_receive() -> None:
            await client.xadd(_STREAM, fields)
            ((_, entries),) = await client.xreadgroup("group", "one", {_STREAM: ">"}, count=100)
            await client.xack(_STREAM, "group", *(entry for entry, _ in entries))

        yield send_and_receive


@asynccontextmanager
async def _nats_stream(url: str) -> AsyncIterator[Call]:
    import nats

    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        await stream.add_stream(name=_STREAM, subjects=[_STREAM])
        subscription = await stream.pull_subscribe(_STREAM, durable=_STREAM)
        body = orjson.dumps(_BODY)

        async def send_and_receive() -> None:
            await stream.publish(_STREAM, body)
            for message in await subscription.fetch(1):
                await message.ack_sync()

        yield send_and_receive
    finally:
        await client.close()


@asynccontextmanager
async def _advisory(url: str) -> AsyncIterator[Call]:
    from psycopg import AsyncConnection

    async with await AsyncConnection.connect(url, autocommit=True) as connection:

        async def pair() -> None:
            await connection.execute("SELECT pg_advisory_lock(%s)", (_NUMBER,))
            await connection.execute("SELECT pg_advisory_unlock(%s)", (_NUMBER,))

        yield pair


@asynccontextmanager
async def _table(url: str) -> AsyncIterator[Call]:
    from psycopg import AsyncConnection

    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(_CREATE)

        async def pair() -> None:
            taken = await connection.execute(_TAKE, (_KEY, "holder"))
            row = await taken.fetchone()
            assert row is not None, "the lock is held"
            await connection.execute(_RELEASE, (_KEY, row[0]))

        yield pair


OPERATION_PEERS: Final = (
    OperationPeer(
        LOCK,
        "redis",
        "redis-py's lock, `appendfsync=always`",
        "redis",
        redis_server,
        _redis,
        lacks("redis-server"),
        most=3.0,
    ),
    OperationPeer(
        LOCK,
        "postgres-table",
        "a table of leases in PostgreSQL",
        "psycopg",
        postgres_server,
        _table,
        lacks_postgres,
        most=1.0,
    ),
    OperationPeer(
        LOCK,
        "postgres-advisory",
        "an advisory lock of PostgreSQL, which writes nothing",
        "psycopg",
        postgres_server,
        _advisory,
        lacks_postgres,
        most=4.0,
    ),
    OperationPeer(
        MESSAGE,
        "redis",
        "a stream of Redis, `appendfsync=always`",
        "redis",
        redis_server,
        _redis_stream,
        lacks("redis-server"),
        most=4.0,
    ),
    OperationPeer(
        MESSAGE,
        "nats",
        "a stream of NATS JetStream, which leaves `fsync` to the system",
        "nats",
        nats_server,
        _nats_stream,
        lacks("nats-server"),
        most=8.0,
    ),
)


def compare_operation_with(
    peer: OperationPeer,
) -> Callable[[BenchEnvironment], Coroutine[Any, Any, Sequence[Found]]]:
    """The line of a peer."""

    async def measure(environment: BenchEnvironment) -> Sequence[Found]:
        name, what = peer.line, f"{peer.kind.what}, ours on sqld / {peer.title}, p50"
        if why_not := peer.why_not():
            return [LeftOut(name, what, why_not)]
        seconds = environment.pace.seconds
        settings = MESH.settings(environment.folder / "ours", environment.sqld, scope_id="bench")
        with peer.serve(environment.folder / peer.name) as url:
            async with Mesh.open(settings) as node, peer.open(url) as theirs:
                ours = peer.kind.ours(node)
                sides = {
                    "ours": lambda: median_us(ours, seconds),
                    "theirs": lambda: median_us(theirs, seconds),
                }
                found = await alternate(sides, environment.pace.few_rounds)
        return [Figure(name, what, "us", found["ours"], found["theirs"], at_most(peer.most))]

    return measure
