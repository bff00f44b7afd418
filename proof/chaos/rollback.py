"""Rollbacks of the store: a copy is made, and restored later."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

from proof.chaos.cluster import ClusterNode
from proof.chaos.marks import Marks
from proof.chaos.proxy import Proxy
from proof.chaos.server import END_S
from tools.sqld import Server

Lost = dict[str, float]
"""When the store stopped serving, when it began to serve the copy, and until when that kept everything."""


@asynccontextmanager
async def of_server(
    server: Server, links: Iterable[Proxy], marks: Marks, lost: Lost, *, is_killed: bool
) -> AsyncIterator[None]:
    """Roll back a server's folder: copied while nothing in it changes, restored while the server is down."""
    with tempfile.TemporaryDirectory(prefix="vox-copy-") as folder:
        copy = Path(folder) / "data"
        await asyncio.to_thread(_copied, server, copy)
        yield
        async with marks.kept() as newest:
            await asyncio.to_thread(server.kill if is_killed else partial(server.end, END_S))
            for link in links:
                await link.drop()
            lost["lost_at"] = time.monotonic()
            await asyncio.to_thread(_replaced, server.data, copy)
            lost["back_at"] = time.monotonic()
            await asyncio.to_thread(server.start)
            lost["kept_until"] = await newest()


def _copied(server: Server, copy: Path) -> None:
    server.freeze()
    try:
        shutil.copytree(server.data, copy)
    finally:
        server.thaw()


def _replaced(data: Path, copy: Path) -> None:
    shutil.rmtree(data)
    shutil.copytree(copy, data)


@asynccontextmanager
async def of_file(path: Path, nodes: Iterable[ClusterNode], marks: Marks, lost: Lost) -> AsyncIterator[None]:
    """Roll back the shared file: restored while no node runs."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as copy:
        await asyncio.to_thread(_backed_up, path, copy)
        yield
        async with AsyncExitStack() as away:
            for node in nodes:
                await away.enter_async_context(node.kept_down())
            newest = await away.enter_async_context(marks.kept())
            lost["lost_at"] = time.monotonic()
            await asyncio.to_thread(_restored, path, copy)
            lost["back_at"] = time.monotonic()
            lost["kept_until"] = await newest()


def _backed_up(path: Path, copy: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(path, timeout=30.0)) as file:
        file.backup(copy)


def _restored(path: Path, copy: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(path, timeout=30.0)) as file:
        copy.backup(file)
