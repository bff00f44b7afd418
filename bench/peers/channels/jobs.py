"""Jobs of ours and of procrastinate: scheduled in one process, run one by one in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

from bench.peers.channels.channel import Channel, ChannelService, Taken, delay_ms, stamp
from bench.peers.ours import in_file, on_server, open_node
from bench.peers.peer import Service
from bench.peers.procrastinate_postgres import open_app, serve
from bench.peers.servers import lacks_postgres
from vox_mesh import JobContext
from vox_mesh.node import MeshNode

_KIND: Final = "bench.stamped"
_PLACES: Final = 16

Working = Callable[[], AbstractAsyncContextManager[None]]
"""A worker that runs jobs until the end of the context."""


class _Jobs:
    """A channel whose worker puts the delays of its jobs into a queue."""

    def __init__(self, working: Working, delays: asyncio.Queue[float]) -> None:
        self._working = working
        self._delays = delays

    async def take(self, count: int) -> Taken:
        async with self._working():
            delays = [await self._delays.get() for _ in range(count)]
            return Taken(delays, stamp())


class _Ours(_Jobs):
    def __init__(self, node: MeshNode) -> None:
        delays = asyncio.Queue[float]()
        super().__init__(self._work, delays)
        self._node = node

        @node.worker.handles(_KIND)
        async def note(context: JobContext) -> None:
            delays.put_nowait(delay_ms(context.payload))

    async def send(self, stamp: int) -> None:
        await self._node.jobs.schedule(_KIND, stamp)

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[None]:
        async with self._node.worker.running(concurrency=_PLACES, kinds=[_KIND]):
            yield


class _Procrastinate(_Jobs):
    def __init__(self, app: Any) -> None:
        delays = asyncio.Queue[float]()
        super().__init__(self._work, delays)
        self._app = app

        async def note(sent: int) -> None:
            delays.put_nowait(delay_ms(sent))

        self._task = app.task(name=_KIND)(note)

    async def send(self, stamp: int) -> None:
        await self._task.defer_async(sent=stamp)

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[None]:
        worker = asyncio.create_task(
            self._app.run_worker_async(concurrency=_PLACES, install_signal_handlers=False)
        )
        try:
            yield
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker


@asynccontextmanager
async def _open_ours(place: str) -> AsyncIterator[Channel]:
    async with open_node(place) as node:
        yield _Ours(node)


@asynccontextmanager
async def _open_procrastinate(url: str) -> AsyncIterator[Channel]:
    async with open_app(url) as app:
        yield _Procrastinate(app)


OURS_IN_FILE: Final[ChannelService] = Service("file", "ours in a file", "vox-mesh", in_file, _open_ours)
OURS_ON_SERVER: Final[ChannelService] = Service("sqld", "ours on sqld", "vox-mesh", on_server, _open_ours)
PROCRASTINATE: Final[ChannelService] = Service(
    "procrastinate",
    "procrastinate on PostgreSQL",
    "procrastinate",
    serve,
    _open_procrastinate,
    lacks_postgres,
)
