"""Processes that keep replicas, and what their files are compared with."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from tests.store.replica.frames import with_room
from tests.support.running.jobs import Job
from tests.support.running.processes import Writer
from tools.homes import HomeCase
from tools.sqld import Server
from vox_mesh import Settings, open_store
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.store.replica.mark import Record, read_record
from vox_mesh.store.replica.paths import replica_path

PUSHED: Final = HomeCase(Backend.SERVER, Driver.WS, ReplicaChoice.PUSHED)
PUSHED_HTTP: Final = HomeCase(Backend.SERVER, Driver.HTTP, ReplicaChoice.PUSHED)
SAFE_FLAGS: Final = ("--checkpoint-interval-s", "60", "--max-concurrent-connections", "256")
COMPACTING_FLAGS: Final = (*SAFE_FLAGS, "--max-log-size", "1")
"""A log of one megabyte: what a replica has not fetched soon, it must get from a snapshot."""

_ROOT: Final = Path(__file__).resolve().parents[3]
_PATIENCE_S: Final = 90.0
_LOOK_S: Final = 0.005


class ReplicaProcesses:
    """Starts processes that keep replicas."""

    def __init__(self, folder: Path) -> None:
        self.members: list[Writer] = []
        self._folder = folder

    async def start(self, settings: Settings, job: Job) -> Writer:
        """Start one more."""
        log = self._folder / f"replica-{len(self.members)}.log"
        member = await Writer.start(settings, job, log, "tests.support.replica.replicas")
        self.members.append(member)
        return member


@asynccontextmanager
async def crew(folder: Path) -> AsyncIterator[ReplicaProcesses]:
    """Processes that are gone at the end, whatever becomes of the test."""
    crew = ReplicaProcesses(folder)
    try:
        yield crew
    finally:
        await asyncio.gather(*(member.kill() for member in crew.members))


def node_settings(case: HomeCase, folder: Path, server: Server, name: str, **more: Any) -> Settings:
    """The settings of a node with a folder of its own."""
    return case.settings(folder / name, server, node_id=name, db_deadline="60s", **more)


def file_of(settings: Settings) -> Path:
    """Where the replica of a node lies."""
    assert settings.node_id is not None
    return replica_path(settings.db_path, settings.node_id)


async def fresh_copy(settings: Settings) -> tuple[Record, bytes]:
    """A first copy, made now by a node that has none: where it stands in the log, and its pages."""
    async with await open_store(settings) as store, asyncio.timeout(_PATIENCE_S):
        await store.synced()
        record = read_record(file_of(settings))
        assert record is not None
        return record, file_of(settings).read_bytes()


async def compacted(server: Server) -> None:
    """Wait until at most one log waits at the server to be made a snapshot of.

    A server with a tiny log was seen to stop answering for good when large commits came faster than it made
    snapshots, while replicas said hello.
    """
    waiting = server._folder / "data" / "dbs" / "default" / "to_compact"
    async with asyncio.timeout(_PATIENCE_S):
        while waiting.exists() and len(list(waiting.iterdir())) > 1:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(_LOOK_S)


def primary_pages(server: Server, folder: Path) -> bytes:
    """The pages as the server itself has them on its disk. It must not be running."""
    copied = folder / "primary.db"
    data = server._folder / "data" / "dbs" / "default" / "data"
    shutil.copy(data, copied)
    shutil.copy(f"{data}-wal", f"{copied}-wal")
    with closing(sqlite3.connect(copied)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    return copied.read_bytes()


def assert_same_pages(found: bytes, wanted: bytes, of: str) -> None:
    """Compare page by page, for a message that can be read."""
    page, found, wanted = 4_096, with_room(found), with_room(wanted)
    differing = [
        at // page + 1
        for at in range(0, max(len(found), len(wanted)), page)
        if found[at : at + page] != wanted[at : at + page]
    ]
    assert not differing, f"{len(differing)} pages are not those of {of}: {differing[:20]}"


def assert_intact(path: Path) -> None:
    """What SQLite itself thinks of the file."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1&mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
