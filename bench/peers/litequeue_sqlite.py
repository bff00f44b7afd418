"""litequeue on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench.peers.files import own_folder
from bench.peers.peer import Done, Peer, PeerQueue, Tally


class _LiteQueue:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def put(self, count: int, at_once: int) -> None:
        for number in range(count):
            self._queue.put(f'{{"step":{number}}}')

    async def work(self) -> Done:
        tally = Tally()
        while (message := self._queue.pop()) is not None:
            self._queue.done(message.message_id)
            tally.count()
        return tally.done()


@asynccontextmanager
async def _open(folder: str) -> AsyncIterator[PeerQueue]:
    from litequeue import LiteQueue

    queue = LiteQueue(Path(folder) / "queue.db", timeout=30)
    queue.conn.execute("PRAGMA synchronous = FULL")
    yield _LiteQueue(queue)


LITEQUEUE: Final = Peer(
    "litequeue",
    "litequeue on SQLite",
    "litequeue",
    "WAL, `synchronous=FULL` (it comes with `NORMAL`)",
    "stays locked until somebody asks for locked ones and frees it",
    own_folder,
    _open,
    jobs_each_second=2_000,
)
