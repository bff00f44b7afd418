"""persist-queue on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from bench.peers.files import own_folder
from bench.peers.peer import Done, Peer, PeerQueue, Tally


class _PersistQueue:
    def __init__(self, queue: Any, empty: type[Exception]) -> None:
        self._queue = queue
        self._empty = empty

    async def put(self, count: int, at_once: int) -> None:
        for number in range(count):
            self._queue.put({"step": number})

    async def work(self) -> Done:
        tally = Tally()
        while True:
            try:
                item = self._queue.get(block=False)
            except self._empty:
                return tally.done()
            self._queue.ack(item)
            tally.count()


@asynccontextmanager
async def _open(folder: str) -> AsyncIterator[PeerQueue]:
    from persistqueue import Empty, SQLiteAckQueue

    yield _PersistQueue(SQLiteAckQueue(folder, auto_resume=False), Empty)


PERSIST_QUEUE: Final = Peer(
    "persist-queue",
    "persist-queue on SQLite (`SQLiteAckQueue`)",
    "persist-queue",
    "WAL, `synchronous=FULL`",
    "taken again when the queue is next opened",
    own_folder,
    _open,
    jobs_each_second=2_000,
    workers=(1,),  # two processes would take the same job: it is read, and then marked
)
