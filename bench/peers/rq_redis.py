"""RQ on Redis."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from bench.peers.peer import Done, Peer, PeerQueue, Tally
from bench.peers.servers import lacks, redis_server

_tally = Tally()


def job() -> None:
    """The job: `SimpleWorker` runs it in its own process, by its name."""
    _tally.count()


class _Rq:
    def __init__(self, connection: Any) -> None:
        from rq import Queue

        self._connection = connection
        self._queue = Queue("bench", connection=connection)

    async def put(self, count: int, at_once: int) -> None:
        for first in range(0, count, at_once):
            jobs = [self._queue.prepare_data(job) for _ in range(min(at_once, count - first))]
            self._queue.enqueue_many(jobs)

    async def work(self) -> Done:
        from rq import SimpleWorker

        _tally.begin()
        worker = SimpleWorker([self._queue], connection=self._connection)
        worker.work(burst=True, logging_level=logging.ERROR)
        return _tally.done()


@asynccontextmanager
async def _open(url: str) -> AsyncIterator[PeerQueue]:
    from redis import Redis

    with Redis.from_url(url) as connection:
        yield _Rq(connection)


RQ: Final = Peer(
    "rq",
    "RQ on Redis (`SimpleWorker`: no fork for each job)",
    "rq",
    "`appendonly`, `appendfsync=always`",
    "failed, when its time is over and a worker tidies up",
    redis_server,
    _open,
    jobs_each_second=300,
    at_once=100,
    lacks_server=lacks("redis-server"),
    on_server=True,
)
