"""huey on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from bench.peers.files import own_folder
from bench.peers.peer import Done, Peer, PeerQueue, Tally, do_nothing


class _Huey:
    def __init__(self, huey: Any) -> None:
        self._huey = huey
        self._task = huey.task()(do_nothing)

    async def put(self, count: int, at_once: int) -> None:
        for _ in range(count):
            self._task()

    async def work(self) -> Done:
        tally = Tally()
        while (task := self._huey.dequeue()) is not None:
            self._huey.execute(task)
            tally.count()
        return tally.done()


@asynccontextmanager
async def _open(folder: str) -> AsyncIterator[PeerQueue]:
    from huey import SqliteHuey

    yield _Huey(SqliteHuey(filename=str(Path(folder) / "huey.db"), fsync=True))


HUEY: Final = Peer(
    "huey",
    "huey on SQLite",
    "huey",
    "WAL, `synchronous=FULL` (`fsync=True`)",
    "lost: its row goes when it is taken",
    own_folder,
    _open,
    jobs_each_second=1_500,
)
