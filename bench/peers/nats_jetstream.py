"""A work queue on NATS JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from bench.peers.peer import Done, Peer, PeerQueue, Tally
from bench.peers.servers import lacks, nats_server

_SUBJECT: Final = "bench"
_BATCH: Final = 64
_PATIENCE_S: Final = 1.0


class _Nats:
    def __init__(self, stream: Any, subscription: Any) -> None:
        self._stream = stream
        self._subscription = subscription

    async def put(self, count: int, at_once: int) -> None:
        for first in range(0, count, at_once):
            steps = range(first, min(first + at_once, count))
            await asyncio.gather(*(self._stream.publish(_SUBJECT, b'{"step":%d}' % step) for step in steps))

    async def work(self) -> Done:
        tally = Tally()
        while (await self._subscription.consumer_info()).num_pending:
            try:
                batch = await self._subscription.fetch(_BATCH, timeout=_PATIENCE_S)
            except TimeoutError:  # another worker was quicker
                continue
            await asyncio.gather(*(message.ack_sync() for message in batch))
            tally.count(len(batch))
        return tally.done()


@asynccontextmanager
async def _open(url: str) -> AsyncIterator[PeerQueue]:
    import nats
    from nats.js.api import RetentionPolicy

    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        await stream.add_stream(name=_SUBJECT, subjects=[_SUBJECT], retention=RetentionPolicy.WORK_QUEUE)
        yield _Nats(stream, await stream.pull_subscribe(_SUBJECT, durable=_SUBJECT))
    finally:
        await client.close()


NATS: Final = Peer(
    "nats",
    "a work queue on NATS JetStream",
    "nats-py",
    "in the system's memory: `fsync` every 2 minutes, as it comes",
    "delivered again after 30 s",
    nats_server,
    _open,
    jobs_each_second=4_000,
    at_once=100,
    lacks_server=lacks("nats-server"),
    on_server=True,
)
