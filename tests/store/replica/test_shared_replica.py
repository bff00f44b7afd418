"""One replica for all nodes of a home: one of them follows the server, all read, none sees half a change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.replica.replica_processes import assert_intact, assert_same_pages, primary_pages
from tests.support.replica.standing import standing, until, until_in_touch
from tests.support.store.leftovers import descriptors
from tests.support.store.tables import make_table
from tools.homes import MESH_SHARED
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.store import Value
from vox_mesh.store.replica.pages import file_bytes
from vox_mesh.store.replica.paths import mark_of, shared_path
from vox_mesh.store.replica.replica import ReplicaState
from vox_mesh.store.replica.shared import shared_reader
from vox_mesh.store.replica.shared.published import Publisher, read_published, state_of
from vox_mesh.store.replica.shared.reader_lock import ReaderLock
from vox_mesh.store.replica.shared.shared_follower import SharedFollower
from vox_mesh.store.replica.shared.shared_reader import SharedReader
from vox_mesh.store.replica.wire import PAGE

_PATIENCE_S: Final = 30.0
_FILES: Final = ("", ".mark", ".redo", ".state", ".readers")


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    """A server for these tests alone: a replica copies all there is."""
    with Server() as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, primary: Server) -> Settings:
    """The settings of all nodes of a home."""
    return MESH_SHARED.settings(tmp_path, primary)


@asynccontextmanager
async def nodes(settings: Settings, count: int = 2) -> AsyncIterator[list[Store]]:
    """Nodes of a home, all in touch. The first one follows."""
    async with AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(await open_store(settings)) for _ in range(count)]
        for store in stores:
            await until_in_touch(store)
        yield stores


def copy_of(settings: Settings) -> Path:
    """Where the copy of a home lies."""
    return shared_path(settings.db_path, settings.home_dir, settings.endpoint)


def part(store: Store) -> object:
    """What a node has for a replica: a follower or a reader."""
    return store._replica._chosen  # type: ignore[union-attr]


def insert(table: str, value: Value = "x") -> Script:
    """A script that adds a row."""
    return Script(Statement(f"INSERT INTO {table} (a) VALUES (?)", (value,)))


async def until_follows(store: Store) -> None:
    """Wait until a node follows the server, and is in touch."""
    await until(store, lambda: isinstance(part(store), SharedFollower))
    await until_in_touch(store)


# --- one follows, all read ------------------------------------------------------------------------


async def test_one_follows_and_the_log_is_fetched_once(settings: Settings) -> None:
    async with nodes(settings, 3) as (follower, *readers):
        table = await make_table(follower)
        for n in range(10):
            await readers[n % 2].write(insert(table, n))
            for store in (follower, *readers):
                await store.synced()
                rows = await store.read(f"SELECT max(a) FROM {table}")
                assert rows.value == n
        assert rows.age_s, "the copy answers"
        assert [store.stats.requests["frames"] for store in (follower, *readers)] == [1, 0, 0]
        statuses = [standing(store) for store in (follower, *readers)]
        assert {each.follower_pid for each in statuses} == {os.getpid()}
        assert {file_bytes(each.bytes // PAGE) for each in statuses} == {copy_of(settings).stat().st_size}
        assert {each.driver for each in statuses} == {"shared"}


async def test_a_reader_reads_its_own_writes_from_the_copy(settings: Settings) -> None:
    async with nodes(settings) as (_, reader):
        table = await make_table(reader)
        by_copy = 0
        for n in range(30):
            await reader.write(insert(table, n))
            rows = await reader.read(f"SELECT max(a) FROM {table}")
            assert rows.value == n
            by_copy += rows.age_s > 0
        assert by_copy > 0


async def test_a_reader_learns_of_each_commit_and_of_heartbeats_apart(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        table = await make_table(follower)
        await reader.synced()
        seen = reader.change_count
        others = reader.but_heartbeats.change_count
        await follower.write(insert(table))
        async with asyncio.timeout(_PATIENCE_S):
            await reader.changed(seen)
            await reader.but_heartbeats.changed(others)


async def test_a_watch_of_a_reader_yields_what_another_node_writes(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader), asyncio.timeout(_PATIENCE_S):
        table = await make_table(follower)
        await reader.synced()
        watch = reader.watch(f"SELECT count(*) FROM {table}")
        for count in range(5):
            assert (await anext(watch)).rows.value == count
            await follower.write(insert(table))
        await watch.aclose()


# --- taking over ----------------------------------------------------------------------------------


async def test_another_takes_over_with_the_same_copy_when_the_follower_ends(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        table = await make_table(follower)
        await reader.synced()
        before = copy_of(settings).stat().st_ino
        await follower.close()
        await reader.write(insert(table, "after"))
        await until_follows(reader)
        await reader.synced()
        rows = await reader.read(f"SELECT a FROM {table}")
        assert (rows.value, rows.age_s > 0) == ("after", True)
        status = standing(reader)
        assert (status.start_overs, status.snapshots) == (0, 0)
        assert copy_of(settings).stat().st_ino == before
        async with await open_store(settings) as late:
            assert isinstance(part(late), SharedReader)
            await until_in_touch(late)


async def test_the_copy_is_the_primary_byte_for_byte_after_all_have_followed(tmp_path: Path) -> None:
    with Server() as server:
        settings = MESH_SHARED.settings(tmp_path, server)
        async with nodes(settings, 3) as stores:
            table = await make_table(stores[0])
            for store in stores:
                for n in range(20):
                    await stores[-1].write(insert(table, n))
                if store is not stores[-1]:
                    await store.close()
            await until_follows(stores[-1])
            await stores[-1].synced()
        server.kill()
        assert_same_pages(copy_of(settings).read_bytes(), primary_pages(server, tmp_path), "the primary")
        assert_intact(copy_of(settings))


async def test_a_server_with_a_new_log_is_fetched_again_for_all(tmp_path: Path) -> None:
    with Server() as server:
        settings = MESH_SHARED.settings(tmp_path, server)
        async with nodes(settings) as stores:
            table = await make_table(stores[0])
            await stores[1].synced()
            server.kill()
            server.start()
            await stores[0].write(insert(table, "new"))
            for store in stores:
                await store.synced()
                rows = await store.read(f"SELECT a FROM {table}")
                assert (rows.value, rows.age_s > 0) == ("new", True)
            assert standing(stores[1]).start_overs == 1


async def test_a_copy_that_is_damaged_is_read_by_none_and_fetched_again(settings: Settings) -> None:
    async with nodes(settings) as stores:
        table = await make_table(stores[0])
        await stores[0].write(insert(table, "kept"))
        for store in stores:
            await store.synced()
        with copy_of(settings).open("r+b") as file:
            file.seek(-2_048, os.SEEK_END)
            file.write(b"\xff" * 100)
        for store in reversed(stores):
            assert (await store.read(f"SELECT a FROM {table}")).value == "kept"
        await until(stores[0], lambda: standing(stores[0]).start_overs == 1)
        for store in stores:
            await store.synced()
            assert (await store.read(f"SELECT a FROM {table}")).age_s


async def test_a_follower_that_does_not_report_counts_as_out_of_touch(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(settings) as (_, reader):
        monkeypatch.setattr(Publisher, "publish", lambda *_: None)
        monkeypatch.setattr(shared_reader, "_SILENT_S", 0.1)
        await until(reader, lambda: standing(reader).state is ReplicaState.OUT_OF_TOUCH)
        assert str(os.getpid()) in standing(reader).error
        assert not reader.is_in_touch


async def test_closing_leaves_nothing_open(settings: Settings) -> None:
    before = descriptors()
    async with nodes(settings) as (follower, reader):
        await follower.close()
        await until_follows(reader)
    assert descriptors() == before


# --- what is not shared ---------------------------------------------------------------------------


async def test_homes_and_servers_have_copies_of_their_own(tmp_path: Path, settings: Settings) -> None:
    other_home = settings.model_copy(update={"home_dir": tmp_path / "other"})
    with Server() as server:
        theirs = MESH_SHARED.settings(tmp_path, server, db_path=settings.db_path)
        async with nodes(settings, 1) as (one,), nodes(other_home, 1) as (two,), nodes(theirs, 1) as (three,):
            assert {type(part(each)) for each in (one, two, three)} == {SharedFollower}
            table = await make_table(three)
            assert table not in {row["name"] for row in await one.read("SELECT name FROM sqlite_master")}
    assert len({copy_of(each) for each in (settings, other_home, theirs)}) == 3


async def test_what_a_follower_of_another_start_of_the_machine_published_is_ignored(
    settings: Settings,
) -> None:
    async with nodes(settings) as (follower, reader):
        published = read_published(copy_of(settings))
        assert published is not None
        foreign = replace(published, host="another", as_of=published.as_of + 1e6)
        await until_in_touch(reader)
        follower._replica._chosen._files.publisher.publish(foreign)  # type: ignore[union-attr]
        await until(reader, lambda: standing(reader).state is not ReplicaState.IN_TOUCH)
        assert (await reader.read("SELECT 1")).age_s == 0


async def test_no_other_user_can_read_the_copy(settings: Settings) -> None:
    async with nodes(settings):
        modes = [os.stat(f"{copy_of(settings)}{each}").st_mode & 0o777 for each in _FILES]  # noqa: PTH116
        assert modes == [0o600] * len(_FILES)


def replace_by_link(path: Path, target: Path) -> None:
    """Put a link in place of a file."""
    target.write_bytes(b"precious")
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("suffix", _FILES)
async def test_a_link_in_place_of_a_file_is_not_followed(
    tmp_path: Path, settings: Settings, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(settings):
        pass
    target = tmp_path / "target"
    await asyncio.to_thread(replace_by_link, Path(f"{copy_of(settings)}{suffix}"), target)
    monkeypatch.setattr("vox_mesh.runtime.open_store.refuse_unsafe_home", lambda *_: None)
    async with await open_store(settings) as store:
        assert store.replica_status is None
        assert (await store.read("SELECT 1")).value == 1
    assert target.read_bytes() == b"precious"


async def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, settings: Settings) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    settings = settings.model_copy(update={"db_path": open_to_all / "local.db"})
    async with await open_store(settings) as store:
        assert store.replica_status is None


# --- reads and changes ----------------------------------------------------------------------------


async def test_no_read_begins_while_pages_change(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        table = await make_table(follower)
        await reader.synced()
        lock = ReaderLock(copy_of(settings))
        assert (await reader.read("SELECT 1")).age_s
        assert lock.try_exclude()
        assert (await reader.read("SELECT 1")).age_s == 0, "the primary answers meanwhile"
        lock.close()
        await follower.write(insert(table))
        await until(reader, lambda: part(reader)._copy.is_readable)  # type: ignore[attr-defined]
        assert (await reader.read("SELECT 1")).age_s


async def test_an_announced_change_lets_a_read_end_and_none_begin(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        await reader.synced()
        await reader.read("SELECT 1")
        copy, file = part(reader)._copy, part(follower)._copy._file  # type: ignore[attr-defined]
        assert copy._begin_read()
        file.announce_change()
        assert copy._is_trusted()
        copy._end_read()
        assert not copy._begin_read()
        assert file.is_untouched, "the follower knows its own announcement"


async def test_a_read_during_which_pages_were_written_is_discarded(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        table = await make_table(follower)
        await reader.synced()
        copy = part(reader)._copy  # type: ignore[attr-defined]
        assert copy._begin_read()  # and is paused: the follower does not wait without limit
        await follower.write(insert(table))
        await until(follower, lambda: not standing(follower).lag_frames)
        await follower.synced()
        assert not copy._is_trusted()
        copy._end_read()
        assert (await reader.read(f"SELECT count(*) FROM {table}")).value == 1


async def test_an_announced_change_that_does_not_come_keeps_no_reader_out(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        await reader.synced()
        lock = ReaderLock(copy_of(settings))
        assert lock.try_read()
        copy = part(follower)._copy  # type: ignore[attr-defined]
        changing = asyncio.create_task(copy._change(lambda: None))
        async with asyncio.timeout(_PATIENCE_S):
            while copy_of(settings).stat().st_mtime_ns % 10**9 == 0:  # noqa: ASYNC110
                await asyncio.sleep(0)
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        lock.close()
        assert part(reader)._copy._begin_read()  # type: ignore[attr-defined]


async def test_a_slow_read_that_a_change_has_overtaken_is_discarded(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        table = await make_table(follower)
        await reader.synced()
        copy = part(reader)._copy  # type: ignore[attr-defined]
        async with copy._reading() as is_unchanged:
            assert is_unchanged()
            await follower.write(insert(table))
            await reader.synced()
            assert (await reader.read(f"SELECT count(*) FROM {table}")).age_s, "a later state is confirmed"
            assert not is_unchanged()


async def test_a_mark_that_was_left_behind_confirms_nothing(settings: Settings) -> None:
    async with nodes(settings) as (follower, reader):
        table = await make_table(follower)
        await reader.synced()
        old = mark_of(copy_of(settings)).read_bytes()
        await follower.write(insert(table))
        await follower.synced()
        descriptor = follower._replica._chosen._mark._descriptor  # type: ignore[union-attr]
        os.pwrite(descriptor, old, 0)
        rows = await reader.read(f"SELECT count(*) FROM {table}", fresh=False)
        assert rows.value in (0, 1)
        assert rows.age_s == 0, "the primary answers"
        assert state_of(copy_of(settings)).exists()


def test_a_closed_lock_is_never_got(tmp_path: Path) -> None:
    lock = ReaderLock(tmp_path / "copy")
    assert lock.try_read()
    lock.close()
    assert not lock.try_read()
    assert not lock.try_exclude()
    lock.release()
    lock.close()
