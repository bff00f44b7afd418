"""DBOS on SQLite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import Done, Peer, PeerQueue, Tally

_QUEUE: Final = "bench"
_VERSION: Final = "1"
_POLL_S: Final = 0.05


class _Dbos:
    """Workflows begin as soon as DBOS is launched: a worker launches it only when it is to work."""

    def __init__(self, url: str) -> None:
        from dbos import DBOS, DBOSClient

        self._url = url
        self._dbos = DBOS
        self._client = DBOSClient(system_database_url=url)
        self._tally = Tally()
        self._gate = threading.Lock()
        DBOS.workflow(name=_QUEUE)(lambda step: self._count())

    def _count(self) -> None:
        with self._gate:
            self._tally.count()

    def _launch(self) -> None:
        """Take workflows from the queue from now on, as a process of its own."""
        own: dict[str, Any] = {"executor_id": str(os.getpid()), "application_version": _VERSION}
        self._dbos(
            config={"name": _QUEUE, "system_database_url": self._url, "console_log_level": "ERROR", **own}
        )
        self._dbos.launch()
        self._dbos.register_queue(_QUEUE, polling_interval_sec=_POLL_S)

    async def put(self, count: int, at_once: int) -> None:
        await asyncio.to_thread(self._enqueue, count)

    def _enqueue(self, count: int) -> None:
        options = {"queue_name": _QUEUE, "workflow_name": _QUEUE, "app_version": _VERSION}
        for step in range(count):
            self._client.enqueue(options, step)

    async def work(self) -> Done:
        self._tally.begin()
        await asyncio.to_thread(self._launch)
        while await asyncio.to_thread(self._is_left):  # noqa: ASYNC110 - others work too, without a notification
            await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(self._dbos.destroy)
        return self._tally.done()

    def _is_left(self) -> bool:
        return bool(self._client.list_queued_workflows(limit=1, load_input=False))

    def make_tables(self) -> None:
        """DBOS does so when it is first launched."""
        self._launch()
        self._dbos.destroy()

    def close(self) -> None:
        """Let go of the database."""
        self._client.destroy()


@asynccontextmanager
async def _open(url: str) -> AsyncIterator[PeerQueue]:
    queue = _Dbos(url)
    yield queue
    queue.close()


@contextmanager
def _serve(folder: Path) -> Iterator[str]:
    """A file with the tables; they are made in a thread, as DBOS is not launched where a loop runs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dbos.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    queue = _Dbos(url := f"sqlite:///{path}")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(queue.make_tables).result()
    queue.close()
    yield url


DBOS: Final = Peer(
    "dbos",
    "DBOS on SQLite",
    "dbos",
    "WAL (it comes with a rollback journal), `synchronous=FULL`",
    "done again when its process is started again",
    _serve,
    _open,
    jobs_each_second=200,
)
