"""Messages of ours, of Redis and of NATS: sent, received one by one, and acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import orjson

from bench.peers.channels.channel import Channel, ChannelService, Taken, delay_ms, stamp
from bench.peers.ours import in_file, on_server, open_node
from bench.peers.peer import Service
from bench.peers.servers import lacks, nats_server, redis_server
from vox_mesh.node import MeshNode

_NAME: Final = "receiver"
_AT_ONCE: Final = 100
_BLOCK_MS: Final = 5_000
_BODY: Final = {"task": "review the change to the parser", "files": ["src/parser/lexer.py"], "step": 42}


def _body(sent: int) -> dict[str, Any]:
    return {**_BODY, "sent": sent}


class _Ours:
    def __init__(self, node: MeshNode) -> None:
        self._node = node

    async def send(self, stamp: int) -> None:
        await self._node.messages.send(_NAME, _body(stamp), sender="sender")

    async def take(self, count: int) -> Taken:
        delays: list[float] = []
        async with aclosing(self._node.messages.receive(_NAME)) as receiving:
            async for message in receiving:
                delays.append(delay_ms(message.body["sent"]))
                await self._node.messages.ack(message)
                if len(delays) == count:
                    break
        return Taken(delays, stamp())


class _Redis:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def send(self, stamp: int) -> None:
        await self._client.xadd(_NAME, {"body": orjson.dumps(_body(stamp))})

    async def take(self, count: int) -> Taken:
        delays: list[float] = []
        while len(delays) < count:
            found = await self._client.xreadgroup(
                _NAME, "one", {_NAME: ">"}, count=min(_AT_ONCE, count - len(delays)), block=_BLOCK_MS
            )
            for _, entries in found:
                for entry, fields in entries:
                    delays.append(delay_ms(orjson.loads(fields[b"body"])["sent"]))
                    await self._client.xack(_NAME, _NAME, entry)
        return Taken(delays, stamp())


class _Nats:
    def __init__(self, stream: Any, subscription: Any) -> None:
        self._stream = stream
        self._subscription = subscription

    async def send(self, stamp: int) -> None:
        await self._stream.publish(_NAME, orjson.dumps(_body(stamp)))

    async def take(self, count: int) -> Taken:
        delays: list[float] = []
        while len(delays) < count:
            batch = min(_AT_ONCE, count - len(delays))
            for message in await self._subscription.fetch(batch, timeout=_BLOCK_MS / 1e3):
                delays.append(delay_ms(orjson.loads(message.data)["sent"]))
                await message.ack_sync()
        return Taken(delays, stamp())


@asynccontextmanager
async def _open_ours(place: str) -> AsyncIterator[Channel]:
    async with open_node(place, http=True) as node:
        yield _Ours(node)


@asynccontextmanager
async def _open_redis(url: str) -> AsyncIterator[Channel]:
    from redis.asyncio import Redis
    from redis.exceptions import ResponseError

    async with Redis.from_url(url) as client:
        try:
            await client.xgroup_create(_NAME, _NAME, mkstream=True)
        except ResponseError as error:  # the other process has made it
            if "BUSYGROUP" not in str(error):
                raise
        yield _Redis(client)


@asynccontextmanager
async def _open_nats(url: str) -> AsyncIterator[Channel]:
    import nats

    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        await stream.add_stream(name=_NAME, subjects=[_NAME])
        yield _Nats(stream, await stream.pull_subscribe(_NAME, durable=_NAME))
    finally:
        await client.close()


OURS_IN_FILE: Final[ChannelService] = Service("file", "ours in a file", "vox-mesh", in_file, _open_ours)
OURS_ON_SERVER: Final[ChannelService] = Service("sqld", "ours on sqld", "vox-mesh", on_server, _open_ours)
REDIS: Final[ChannelService] = Service(
    "redis",
    "a stream of Redis, `appendfsync=always`",
    "redis",
    redis_server,
    _open_redis,
    lacks("redis-server"),
)
NATS: Final[ChannelService] = Service(
    "nats",
    "a stream of NATS JetStream, which leaves `fsync` to the system",
    "nats-py",
    nats_server,
    _open_nats,
    lacks("nats-server"),
)
