"""A server, a line to it that can be spoiled, a process that keeps a replica, and a workload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from proof.chaos.proxy import Proxy, PushFault
from tests.support.replica.replica_processes import (
    PUSHED,
    ReplicaProcesses,
    assert_intact,
    assert_same_pages,
    compacted,
    crew,
    file_of,
    fresh_copy,
    node_settings,
    primary_pages,
)
from tests.support.replica.replica_workload import Workload
from tests.support.running.jobs import Job
from tests.support.running.processes import Report, Writer
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import open_store

_PATIENCE_S: Final = 60.0
_LONG_AGO: Final = 1e9
_MAX_STALE_MS: Final = 500
"""The less stale a replica may be, the sooner it notices that a line has fallen silent."""


class DisturbedReplica:
    """Spoils one thing at a time, at a random instant, while the workload goes on."""

    def __init__(
        self, folder: Path, server: Server, random: Random, proxy: Proxy, workload: Workload
    ) -> None:
        self.server = server
        self.workload = workload
        self._folder = folder
        self._random = random
        self._proxy = proxy
        self._settings = node_settings(
            PUSHED, folder, server, "reader", db_url=proxy.url, db_max_stale_ms=_MAX_STALE_MS
        )
        self._copies = count()
        self._kills = count()
        self.cut_short = 0
        """How many changes of the replica were cut off in the middle."""

    async def begin(self, crew: ReplicaProcesses) -> None:
        """Start to keep the replica."""
        self._crew = crew
        self._reader = await crew.start(self._settings, Job("keep"))

    @property
    def readers(self) -> list[Writer]:
        """The ones that have kept the replica, one after the other."""
        return self._crew.members

    async def _instant(self, longest_s: float) -> None:
        """A random instant is part of the fault: nothing is waited for."""
        await asyncio.sleep(self._random.uniform(0, longest_s))

    async def kill_reader(self) -> None:
        """`kill -9`, in the middle of a change or whenever, and at once another on the same file."""
        if next(self._kills) % 2:
            await self._instant(0.9)
            await self._reader.kill()
        else:
            await self._until_changing(False)
            await self._until_changing(True)
            await self._reader.kill()
            self.cut_short += self._is_changing
        await self.begin(self._crew)

    async def _until_changing(self, wanted: bool) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while self._is_changing is not wanted:  # noqa: ASYNC110 - another process does it, there is no event
                await asyncio.sleep(0)

    @property
    def _is_changing(self) -> bool:
        """Whether pages are being written: a replica at rest is dated by its position in the log."""
        try:
            found = file_of(self._settings).stat()
        except FileNotFoundError:
            return False
        return found.st_size > 0 and found.st_mtime > _LONG_AGO

    async def kill_server(self) -> None:
        """`kill -9`, after which it begins another log, or a clean stop, after which it goes on with it."""
        await self.workload.until_more(self._random.randint(1, 10))
        await self._instant(0.1)
        if self._random.random() < 0.7:
            self.server.kill()
        else:
            await asyncio.to_thread(self.server.end)
        await asyncio.to_thread(self.server.start)

    async def cut_line(self) -> None:
        """Close the connection in the middle of a frame."""
        await self._spoil(PushFault.CUT)

    async def silence_line(self) -> None:
        """Leave the connection open and let nothing through any more."""
        await self._spoil(PushFault.SWALLOW)

    async def _spoil(self, fault: PushFault) -> None:
        self._proxy.spoil(fault, after=self._random.randint(1, 20))
        async with asyncio.timeout(_PATIENCE_S):
            await self._proxy.spoiled.acquire()

    async def compare(self) -> None:
        """Nothing is written now: the replica must come to hold what a first copy holds."""
        settings = node_settings(PUSHED, self._folder, self.server, f"fresh{next(self._copies)}")
        record, pages = await fresh_copy(settings)
        end = {"log_id": record.log_id, "next_frame": record.next_frame}
        await self._reaches(end)
        replica = file_of(self._settings)
        assert_same_pages(replica.read_bytes(), pages, "a first copy")
        assert_intact(replica)

    async def _reaches(self, end: Report) -> None:
        reader = self._reader
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await reader.until(lambda reports: bool(reports) and reports[-1] == end)
        except TimeoutError:
            raise AssertionError(
                f"the replica is at {reader.reports[-1:]} and does not get to {end}:\n{reader.errors}"
            ) from None

    async def compare_with_files(self) -> None:
        """End all: the replica must hold what the server has on its disk."""
        await self._reader.finish()
        self.server.kill()
        found = file_of(self._settings).read_bytes()
        assert_same_pages(found, primary_pages(self.server, self._folder), "the primary")


Trouble = Callable[[DisturbedReplica], Awaitable[None]]


@asynccontextmanager
async def scene(folder: Path, server: Server, random: Random) -> AsyncIterator[DisturbedReplica]:
    """All of it, and nothing left of it at the end."""
    patient = MESH.settings(folder / "workload", server, db_request_timeout="30s")
    async with Proxy(server.port) as proxy, await open_store(patient) as store, crew(folder) as members:
        workload = Workload(store, lambda: compacted(server), random)
        scene = DisturbedReplica(folder, server, random, proxy, workload)
        await scene.begin(members)
        yield scene
