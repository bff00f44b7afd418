"""The server compacts its log: a replica keeps its copy, and fetches only what it lacks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.replica.replica_processes import (
    COMPACTING_FLAGS,
    PUSHED,
    assert_intact,
    assert_same_pages,
    file_of,
    fresh_copy,
    node_settings,
)
from tests.support.replica.standing import standing, until, until_in_touch
from tests.support.store.counting import SNAPSHOT, counting
from tools.homes import MESH, environment
from tools.server_log import ServerLog
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.store.replica.replica import ReplicaState

_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.005
_BODY_BYTES: Final = 200_000
_KEPT_BYTES: Final = 4_000_000
_FRAME_BYTES: Final = 4_120


@pytest.fixture
def compacting() -> Iterator[Server]:
    """A server that compacts its log at every megabyte."""
    with Server(flags=COMPACTING_FLAGS) as server:
        yield server


class Writer:
    """Fills the server's log."""

    def __init__(self, store: Store, server: Server) -> None:
        self.log = ServerLog(server)
        self._store = store

    async def prepare(self) -> None:
        """Write what will not change again, and much of it; then a row that will."""
        await self._write("CREATE TABLE kept (a)")
        for _ in range(_KEPT_BYTES // _BODY_BYTES):
            await self.keep_more()
        await self._write("CREATE TABLE changing (a)")
        await self._write("INSERT INTO changing VALUES (NULL)")
        await self.settled()

    async def keep_more(self) -> None:
        """Add a row that will not change again."""
        await self._write(f"INSERT INTO kept VALUES (randomblob({_BODY_BYTES}))")

    async def _write(self, sql: str) -> None:
        await self._store.write(Script(Statement(sql)), timeout=_PATIENCE_S)

    async def compact(self, times: int = 1) -> None:
        """Rewrite one row until the server has compacted its log so often, and has made the snapshots."""
        for _ in range(times):
            first = self.log.head().first
            while self.log.head().first == first:
                await self._write(f"UPDATE changing SET a = randomblob({_BODY_BYTES})")
            await self.settled()

    async def settled(self) -> None:
        """Wait until the server has made its snapshots."""
        async with asyncio.timeout(_PATIENCE_S):
            while self.log.is_compacting:  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def writing(server: Server, folder: Path) -> AsyncIterator[Writer]:
    """A writer that has prepared the database."""
    async with await open_store(MESH.settings(folder / "writer", server)) as store:
        writer = Writer(store, server)
        await writer.prepare()
        yield writer


async def _synced(store: Store) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await store.synced()


async def _assert_equal_to_primary(ours: Settings, server: Server, folder: Path) -> None:
    _, pages = await fresh_copy(node_settings(PUSHED, folder, server, "fresh"))
    assert_same_pages(file_of(ours).read_bytes(), pages, "a first copy")
    assert_intact(file_of(ours))


async def _assert_watched(store: Store, writer: Writer) -> None:
    """A watch sees the next commit, whether the replica can apply it or not."""
    async with asyncio.timeout(_PATIENCE_S), aclosing(store.watch("SELECT count(*) FROM kept")) as watch:
        before = await anext(watch)
        await writer.keep_more()
        assert (await anext(watch)).rows.value == before.rows.value + 1


async def test_a_follower_keeps_its_copy_though_the_snapshot_is_long_in_the_making(
    compacting: Server, tmp_path: Path
) -> None:
    async with writing(compacting, tmp_path) as writer, counting(compacting) as gate:
        ours = node_settings(PUSHED, tmp_path, compacting, "ours", db_url=gate.url)
        async with await open_store(ours) as store:
            await _synced(store)
            before = file_of(ours).stat().st_ino
            gate.withhold_snapshots()
            gate.calls.clear()
            while not gate.calls[SNAPSHOT]:  # now and then the last commit is pushed just in time
                await writer.compact()
            await until(store, lambda: standing(store).state is ReplicaState.CATCHING_UP)
            assert file_of(ours).stat().st_ino == before, "the copy was dropped"
            await _assert_watched(store, writer)
            gate.release()
            await until_in_touch(store)
            await _synced(store)
            status = standing(store)
        assert file_of(ours).stat().st_ino == before
        assert (status.start_overs, status.snapshots > 0, status.error) == (0, True, "")
        await _assert_equal_to_primary(ours, compacting, tmp_path)


async def test_a_follower_fetches_no_more_than_the_log_over_many_compactions(
    compacting: Server, tmp_path: Path
) -> None:
    async with writing(compacting, tmp_path) as writer:
        ours = node_settings(PUSHED, tmp_path, compacting, "ours")
        async with await open_store(ours) as store:
            await _synced(store)
            before, began = standing(store), writer.log.head().end
            for _ in range(6):
                await writer.compact()
                await _synced(store)
            status, written = standing(store), writer.log.head().end - began
        assert (status.start_overs, status.state) == (0, ReplicaState.IN_TOUCH)
        assert status.fetched_bytes - before.fetched_bytes < 1.05 * written * _FRAME_BYTES
        await _assert_equal_to_primary(ours, compacting, tmp_path)


async def test_a_replica_that_was_away_over_two_compactions_fetches_only_what_has_changed(
    compacting: Server, tmp_path: Path
) -> None:
    async with writing(compacting, tmp_path) as writer:
        ours = node_settings(PUSHED, tmp_path, compacting, "ours")
        async with await open_store(ours) as store:
            await _synced(store)
            before = standing(store)
        inode = file_of(ours).stat().st_ino
        await writer.compact(2)
        async with await open_store(ours) as store:
            await _synced(store)
            status = standing(store)
        assert file_of(ours).stat().st_ino == inode, "the copy was dropped"
        assert status.start_overs == 0
        assert status.snapshots > before.snapshots
        assert status.fetched_bytes - before.fetched_bytes < _KEPT_BYTES / 2
        await _assert_equal_to_primary(ours, compacting, tmp_path)


async def test_a_replica_that_was_away_while_the_server_was_restarted_keeps_its_copy(
    compacting: Server, tmp_path: Path
) -> None:
    async with writing(compacting, tmp_path) as writer:
        ours = node_settings(PUSHED, tmp_path, compacting, "ours")
        await writer.compact()
        async with await open_store(ours) as store:
            await _synced(store)
        inode = file_of(ours).stat().st_ino
        head = writer.log.head()
        assert head.first == head.end, "its last frame is not in the log any more"
    await asyncio.to_thread(compacting.end)
    await asyncio.to_thread(compacting.start)
    async with await open_store(ours) as store:
        await _synced(store)
        status = standing(store)
    assert file_of(ours).stat().st_ino == inode, "the copy was dropped"
    assert status.start_overs == 0
    await _assert_equal_to_primary(ours, compacting, tmp_path)


_KILLED_WHILE_APPLYING: Final = """
import asyncio, os, signal
from vox_mesh import load_settings, open_store
from vox_mesh.store.replica import pages

write = pages._write
apply_snapshot = pages.PageFile.apply_snapshot

def apply_and_die(file, *arguments):
    def write_half(descriptor, data, offset):
        if descriptor == file._file:
            write(descriptor, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        write(descriptor, data, offset)

    pages._write = write_half
    apply_snapshot(file, *arguments)

pages.PageFile.apply_snapshot = apply_and_die

async def main():
    async with await open_store(load_settings()) as store:
        await store.synced()

asyncio.run(main())
"""


async def test_a_replica_killed_while_it_applies_a_snapshot_goes_on_from_there(
    compacting: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with writing(compacting, tmp_path) as writer:
        ours = node_settings(PUSHED, tmp_path, compacting, "ours")
        async with await open_store(ours) as store:
            await _synced(store)
        inode = file_of(ours).stat().st_ino
        await writer.compact(2)
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _KILLED_WHILE_APPLYING],
            env=environment(ours),
            timeout=_PATIENCE_S,
        )
        assert killed.returncode == -signal.SIGKILL
        async with await open_store(ours) as store:
            await _synced(store)
            status = standing(store)
        assert not any("not as it was left" in message for message in caplog.messages)
        assert file_of(ours).stat().st_ino == inode, "the copy was dropped"
        assert status.start_overs == 0
        await _assert_equal_to_primary(ours, compacting, tmp_path)
