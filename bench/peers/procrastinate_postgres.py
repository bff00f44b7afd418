"""procrastinate on PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import Done, Peer, PeerQueue, Tally
from bench.peers.servers import lacks_postgres, postgres_server

_PLACES: Final = 16


class _Procrastinate:
    def __init__(self, app: Any) -> None:
        self._app = app
        self._tally = Tally()
        self._task = app.task(name="bench.noop")(self._count)

    async def _count(self, step: int) -> None:
        self._tally.count()

    async def put(self, count: int, at_once: int) -> None:
        for first in range(0, count, at_once):
            steps = range(first, min(first + at_once, count))
            await self._task.batch_defer_async(*({"step": step} for step in steps))

    async def work(self) -> Done:
        self._tally.begin()
        await self._app.run_worker_async(
            wait=False, concurrency=_PLACES, listen_notify=False, install_signal_handlers=False
        )
        return self._tally.done()


@asynccontextmanager
async def open_app(url: str) -> AsyncIterator[Any]:
    """An app of procrastinate, connected."""
    from procrastinate import App, PsycopgConnector

    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    async with App(connector=PsycopgConnector(conninfo=url, max_size=_PLACES)).open_async() as app:
        yield app


@asynccontextmanager
async def _open(url: str) -> AsyncIterator[PeerQueue]:
    async with open_app(url) as app:
        yield _Procrastinate(app)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """A server that has the tables."""
    from procrastinate import App, SyncPsycopgConnector

    with postgres_server(folder) as url:
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        with App(connector=SyncPsycopgConnector(conninfo=url)).open() as app:
            app.schema_manager.apply_schema()
        yield url


PROCRASTINATE: Final = Peer(
    "procrastinate",
    "procrastinate on PostgreSQL",
    "procrastinate",
    "`fsync` and `synchronous_commit` on",
    "stays running until a job of the user's own finds it stalled",
    serve,
    _open,
    jobs_each_second=500,
    at_once=100,
    lacks_server=lacks_postgres,
    on_server=True,
)
