"""The replica's file is a cache: damage is noticed and mended, and what is not ours is left alone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.support.replica.standing import replica_file, standing, until, until_in_touch
from tests.support.running.programs import NODE, program
from tests.support.store.counting import WAL_LOG, counting
from tests.support.store.disks import small_disk as small_disk
from tests.support.store.tables import make_table
from tools.homes import FILE, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Role, Script, Settings, Statement, Store, load_settings, open_store
from vox_mesh.errors import WrongBackend
from vox_mesh.model.base.backends import ReplicaChoice
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.paths import mark_of
from vox_mesh.store.replica.replica import ReplicaState
from vox_mesh.store.replica.wire import Hello

_PATIENCE_S: Final = 30.0
_ROWS: Final = 60
_TIMES: Final = 5
_TRUTH: Final = "the truth, and nothing but the truth; " * 8


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    """A server for these tests alone: a replica copies all there is."""
    with Server() as server:
        yield server


@pytest.fixture
def node(tmp_path: Path, primary: Server) -> Settings:
    """The settings of a node with a replica."""
    return MESH_REPLICA.settings(tmp_path, primary)


class Witness:
    """A table whose contents are known, so that every answer can be compared with the truth."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.query = f"SELECT id, a FROM {table} ORDER BY id"
        self.rows = [(n, f"{table}: {_TRUTH}{n}") for n in range(_ROWS)]
        self.last = self.rows[-1][1]  # it lies where it was put; of the others there may be old copies
        self.answers = 0

    @classmethod
    async def make(cls, store: Store) -> Witness:
        """Create and fill the table."""
        witness = cls(await make_table(store))
        insert = f"INSERT INTO {witness.table} (id, a) VALUES (?, ?)"
        await store.write(Script(*(Statement(insert, row) for row in witness.rows)))
        return witness

    async def ask(self, store: Store) -> float:
        """Read it all; the age of the answer, which must be true."""
        rows = await store.read(self.query)
        assert [tuple(row) for row in rows] == self.rows
        self.answers += 1
        return rows.age_s

    async def from_replica(self, store: Store) -> None:
        """Ask until the replica answers; every answer meanwhile must be true."""
        async with asyncio.timeout(_PATIENCE_S):
            while not await self.ask(store):
                await store.synced()

    async def ask_for_ever(self, store: Store) -> None:
        """Ask and ask again."""
        while True:
            await self.ask(store)
            await asyncio.sleep(0)


def _flip_a_byte(path: Path, text: str) -> None:
    at = path.read_bytes().index(text.encode())
    with path.open("r+b") as file:
        file.seek(at + len(text) // 2)
        file.write(b"!")


def _truncate(path: Path, _: str) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_in_a_page(path: Path, _: str) -> None:
    os.truncate(path, path.stat().st_size - 100)


def _swap(path: Path, _: str) -> None:
    """Another database of the same shape takes its place, in which every row is a lie."""
    other = path.with_name("other.db")
    shutil.copyfile(path, other)
    other.write_bytes(other.read_bytes().replace(b"the truth", b"the falsh"))
    other.replace(path)


def _swap_in_place(path: Path, _: str) -> None:
    path.write_bytes(path.read_bytes().replace(b"the truth", b"the falsh"))


def _delete(path: Path, _: str) -> None:
    path.unlink()


def _delete_redo(path: Path, _: str) -> None:
    Path(f"{path}.redo").unlink(missing_ok=True)


def _garble_mark(path: Path, _: str) -> None:
    _garble(mark_of(path))


def _garble_redo(path: Path, _: str) -> None:
    _garble(Path(f"{path}.redo"))


def _garble(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))


Damage = Callable[[Path, str], None]
_TO_THE_FILE: Final = (_flip_a_byte, _truncate, _cut_in_a_page, _swap, _swap_in_place, _delete)
_TO_OTHERS: Final = (_delete_redo, _garble_redo)


def _name(damage: Damage) -> str:
    return damage.__name__.strip("_").replace("_", " ")


@pytest.mark.parametrize("damage", [*_TO_THE_FILE, *_TO_OTHERS, _garble_mark], ids=_name)
async def test_damage_done_while_no_one_has_it_open_is_healed_on_opening(
    damage: Damage, node: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        await witness.from_replica(store)
    damage(replica_file(node), witness.last)
    async with await open_store(node) as store:
        await witness.ask(store)
        await witness.from_replica(store)
        assert standing(store).state is ReplicaState.IN_TOUCH
    _assert_sound(replica_file(node), witness)
    if damage in _TO_THE_FILE:
        assert "replica file does not match its mark: fetching it again" in caplog.messages


async def test_what_was_not_damaged_is_not_fetched_again(node: Settings) -> None:
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        await witness.from_replica(store)
    file = replica_file(node)
    before = file.stat().st_ino
    async with await open_store(node) as store:
        await witness.from_replica(store)
    assert file.stat().st_ino == before


@pytest.mark.parametrize("damage", [*_TO_THE_FILE, *_TO_OTHERS], ids=_name)
async def test_damage_done_under_a_reading_store_never_shows_and_is_healed(
    damage: Damage, node: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        await witness.from_replica(store)
        asking = asyncio.create_task(witness.ask_for_ever(store))
        for _ in range(_TIMES):
            damage(replica_file(node), witness.last)
            await store.synced()  # an open replica is not affected by the move until then
            await witness.from_replica(store)
            assert standing(store).state is ReplicaState.IN_TOUCH
            assert standing(store).error == ""
        assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    _assert_sound(replica_file(node), witness)
    if damage in _TO_THE_FILE:
        assert any("changed by another process" in message for message in caplog.messages)


@pytest.mark.parametrize("damage", [_flip_a_byte, _truncate, _swap_in_place], ids=_name)
async def test_a_page_that_is_first_read_after_the_damage_is_not_believed(
    damage: Damage, node: Settings
) -> None:
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        await store.synced()
        assert (
            await store.read("SELECT count(*) FROM sqlite_schema")
        ).age_s > 0  # none of its pages is known
        damage(replica_file(node), witness.last)
        assert await witness.ask(store) == 0


@pytest.mark.parametrize("damage", _TO_THE_FILE, ids=_name)
async def test_a_commit_that_follows_does_not_hide_the_damage(damage: Damage, node: Settings) -> None:
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        elsewhere = await make_table(store)
        await witness.from_replica(store)
        damage(replica_file(node), witness.last)
        await store.write(Script(Statement(f"INSERT INTO {elsewhere} (a) VALUES (1)")))
        await store.synced()
        await witness.from_replica(store)
    _assert_sound(replica_file(node), witness)


def _assert_sound(file: Path, witness: Witness) -> None:
    """See for ourselves that what is left of the replica is a good database with the right rows."""
    with closing(sqlite3.connect(f"file:{file}?immutable=1&mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute(witness.query).fetchall() == witness.rows


# --- what is not ours ----------------------------------------------------------------------------


async def test_a_database_without_our_mark_is_never_overwritten(
    node: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    file = replica_file(node)
    file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE precious (a)")
        connection.commit()
    before = file.read_bytes()
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        assert await witness.ask(store) == 0
        await store.synced()
        assert await witness.ask(store) == 0
        assert (await store.status()).replica is None
    assert file.read_bytes() == before
    assert {path.name for path in file.parent.glob(f"{file.name}*")} == {file.name}
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "reads go to the primary" in warning.getMessage()
    assert f"{file} is not marked as a replica" in warning.getMessage()


async def test_a_second_process_at_the_same_file_works_without_a_replica_and_says_why(
    node: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with program(NODE, settings=node) as (said, _):
        assert said == "in touch"
        second = node.model_copy(update={"home_dir": tmp_path / "another"})
        async with await open_store(second) as store:
            witness = await Witness.make(store)
            assert await witness.ask(store) == 0
            assert (await store.status()).replica is None
        assert any("in use by another process" in message for message in caplog.messages)
        assert any("VOX_DB_PATH" in message for message in caplog.messages)
    async with await open_store(second) as store:  # the first has gone
        await witness.from_replica(store)


async def test_the_file_home_refuses_a_replica(node: Settings) -> None:
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        await witness.from_replica(store)
    file = replica_file(node)
    before = file.read_bytes()
    settings = load_settings(enabled=True, home_dir=node.home_dir, db_path=file)
    with pytest.raises(WrongBackend, match="is a replica of another database"):
        await open_store(settings, Role.COMMAND)
    assert file.read_bytes() == before


async def test_the_files_are_readable_by_their_owner_alone(node: Settings) -> None:
    async with await open_store(node) as store:
        await store.synced()
        file = replica_file(node)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.glob(f"{file.name}*")}
    assert modes == dict.fromkeys((file.name, f"{file.name}.mark", f"{file.name}.redo"), 0o600)


async def test_a_replica_of_another_primary_is_fetched_again(node: Settings, server: Server) -> None:
    async with await open_store(node) as store:
        witness = await Witness.make(store)
        await witness.from_replica(store)
    moved = MESH_REPLICA.settings(node.home_dir.parent, server)
    assert replica_file(moved) == replica_file(node)
    async with await open_store(moved) as store:
        await store.write(Script(Statement(f"CREATE TABLE {witness.table} (id INTEGER PRIMARY KEY, a)")))
        witness.rows = []
        await witness.from_replica(store)
    _assert_sound(replica_file(node), witness)


async def test_turning_the_replica_on_later_leaves_the_data_of_the_file_home_alone(
    tmp_path: Path, node: Settings
) -> None:
    mine = FILE.settings(tmp_path, None)
    async with await open_store(mine) as store:
        witness = await Witness.make(store)
    async with await open_store(node) as store:
        await store.synced()
    async with await open_store(mine) as store:
        await witness.ask(store)


# --- a disk that is full, a server that does not push ---------------------------------------------

_ON_A_SMALL_DISK: Final = """
import asyncio, json, resource, signal, sys
from pathlib import Path
from vox_mesh import load_settings, open_store
from vox_mesh.store.replica.mark import replica_path

async def main():
    settings = load_settings()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with await open_store(settings) as store:
        while (status := (await store.status()).replica).state != "off":
            await store.changed(store.change_count)
        rows = await store.read(sys.argv[1])
        size = replica_path(settings.db_path, "1").stat().st_size
        print(json.dumps([status.error, rows.age_s, rows.value, size]), flush=True)

resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, resource.RLIM_INFINITY))
asyncio.run(asyncio.wait_for(main(), 30))
"""


@pytest.fixture
async def big_table(tmp_path: Path, primary: Server) -> AsyncIterator[str]:
    """A table of a few megabytes."""
    async with await open_store(
        MESH_REPLICA.settings(tmp_path / "elsewhere", primary), Role.COMMAND
    ) as store:
        table = await make_table(store)
        fill = f"INSERT INTO {table} (a) SELECT randomblob(4000) FROM (VALUES (1), (2), (3), (4), (5))"
        await store.write(Script(*(Statement(fill) for _ in range(100))))
        yield table
        await store.write(Script(Statement(f"DROP TABLE {table}")))


async def test_where_a_file_may_not_grow_the_replica_is_off_and_the_primary_answers(
    node: Settings, big_table: str
) -> None:
    count = f"SELECT count(*) FROM {big_table}"
    with program(_ON_A_SMALL_DISK, count, settings=node) as (said, _):
        error, age, value, size = json.loads(said)
    assert "can't be written" in error
    assert "File too large" in error
    assert (age, value) == (0, 500)
    assert size == 0, "the room it took was not given back"


async def test_a_full_disk_turns_the_replica_off_with_a_warning(
    node: Settings, big_table: str, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = node.model_copy(update={"db_path": small_disk / "local.db"})
    async with await open_store(settings) as store:
        await until(store, lambda: standing(store).state is ReplicaState.OFF)
        assert "No space left" in standing(store).error
        rows = await store.read(f"SELECT count(*) FROM {big_table}")
        assert (rows.age_s, rows.value) == (0, 500)
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "replica off, reads go to the primary" in warning.getMessage()
    assert "No space left" in warning.getMessage()
    assert shutil.disk_usage(small_disk).free > 2**19, "the room it took was not given back"


_AUTO: Final = pytest.param(
    ReplicaChoice.AUTO,
    marks=pytest.mark.skipif(find_spec("libsql") is not None, reason="there the native replica takes over"),
)


@pytest.mark.parametrize("choice", [_AUTO, ReplicaChoice.PUSHED], ids=str)
@pytest.mark.parametrize("status", [404, 501])
async def test_with_a_server_that_does_not_push_the_primary_answers_and_the_status_says_why(
    choice: ReplicaChoice, status: int, node: Settings, primary: Server
) -> None:
    async with counting(primary, refused=(WAL_LOG, status)) as gate:
        settings = node.model_copy(update={"db_url": gate.url, "db_replica": choice})
        async with await open_store(settings) as store:
            await until(store, lambda: standing(store).state is ReplicaState.OFF)
            assert "does not push its log" in standing(store).error
            assert str(status) in standing(store).error
            witness = await Witness.make(store)
            assert await witness.ask(store) == 0
            assert (await store.status()).replica == standing(store)


async def test_an_exception_of_a_library_does_not_end_the_replica(
    node: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet, faults = PrimaryLog.hello, [AttributeError("from a library")]

    async def hello(log: PrimaryLog, timeout: float) -> Hello:
        if faults:
            raise faults.pop()
        return await greet(log, timeout)

    monkeypatch.setattr(PrimaryLog, "hello", hello)
    async with await open_store(node) as store:
        await until_in_touch(store)
        assert store.faults.counts == {"replica": 1}
