"""Our own jobs, asked in the same way as the peers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import orjson

from bench.peers.peer import Done, Peer, PeerQueue
from bench.programs.job_worker import NOOP, SCOPE, register, work
from bench.programs.subprocess_driver import node_settings
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode


class _Ours:
    def __init__(self, node: MeshNode) -> None:
        self._node = node

    async def put(self, count: int, at_once: int) -> None:
        for first in range(0, count, at_once):
            steps = range(first, min(first + at_once, count))
            jobs = [Manifest.of(kind=NOOP, payload={"step": step}) for step in steps]
            await self._node.jobs.schedule_all(jobs, new=True)

    async def work(self) -> Done:
        began = time.monotonic_ns()
        jobs, last, _ = await work(self._node)
        return Done(jobs, began, last)


@asynccontextmanager
async def open_node(place: str, *, http: bool = False) -> AsyncIterator[MeshNode]:
    """A node at the address of a file or of a server, by default without the HTTP API."""
    folder, *of_primary = orjson.loads(place)
    async with Mesh.open(node_settings(Path(folder), of_primary or None, scope_id=SCOPE, http=http)) as node:
        yield node


@asynccontextmanager
async def _open(place: str) -> AsyncIterator[PeerQueue]:
    async with open_node(place) as node:
        register(node)
        yield _Ours(node)


@contextmanager
def in_file(folder: Path) -> Iterator[str]:
    """The address of a database file."""
    yield orjson.dumps([str(folder)]).decode()


@contextmanager
def on_server(folder: Path) -> Iterator[str]:
    """The address of a server, of nodes that have a replica."""
    with Server() as server:
        yield orjson.dumps([str(folder), server.url, server.token]).decode()


OURS_IN_FILE: Final = Peer(
    "ours-file",
    "vox-mesh in a file",
    "vox-mesh",
    "WAL, `synchronous=FULL`",
    "taken again when its lease has ended",
    in_file,
    _open,
    jobs_each_second=1_500,
)
OURS_ON_SERVER: Final = Peer(
    "ours-sqld",
    "vox-mesh on sqld",
    "vox-mesh",
    "WAL, `synchronous=FULL`",
    "taken again when its lease has ended",
    on_server,
    _open,
    jobs_each_second=1_500,
    on_server=True,
)
