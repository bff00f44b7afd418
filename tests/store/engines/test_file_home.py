"""The file home: durable, private, fair to its neighbours, and never another's file."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.running.programs import program
from tests.support.store.leftovers import descriptors
from tests.support.store.tables import make_table
from tools.homes import FILE, MESH
from tools.sqld import Server
from vox_mesh import Role, Script, Statement, Store, load_settings, open_store
from vox_mesh.errors import ConstraintFailed, DatabaseFault, WrongBackend
from vox_mesh.store.engines.file import FileEngine, turn_path
from vox_mesh.store.engines.thread import HeadStart
from vox_mesh.store.engines.writing import WritePace

HOLD_WRITE_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""

HOLD_TURN = """
import sys
from pathlib import Path
from vox_mesh.store.engines.file import Turn
with Turn(Path(sys.argv[1] + ".turn")):
    print("held", flush=True)
    sys.stdin.read()
"""


async def test_it_is_in_wal_mode_and_every_commit_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    engine = await FileEngine.open(path)
    pragmas = ["journal_mode", "synchronous"]
    found = [engine._writing.for_thread().execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
    assert found == ["wal", 2]
    assert engine._reading.execute("PRAGMA query_only").fetchone()[0] == 1
    await engine.close()


async def test_a_file_of_an_earlier_version_opens_on_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its turn file is empty, and there is no room for the byte that is read to ring the bell."""
    path = tmp_path / "x.db"
    turn_path(path).touch()
    before = descriptors()

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_room)
    engine = await FileEngine.open(path)
    await engine.close()
    assert descriptors() == before


async def test_closing_leaves_no_log_though_two_have_just_looked_for_commits_of_others(
    tmp_path: Path,
) -> None:
    """Else the file alone would not be a copy, and a log left next to another file would damage that."""
    path = tmp_path / "x.db"
    engine = await FileEngine.open(path)
    looks = [asyncio.ensure_future(engine.data_version()) for _ in range(2)]
    await asyncio.sleep(0)
    await engine.close()
    await asyncio.gather(*looks, return_exceptions=True)
    assert _names_in(tmp_path) == {"x.db", "x.db.turn"}


async def test_it_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.db"
    settings = load_settings(enabled=True, db_path=path, home_dir=tmp_path / "vox")
    async with await open_store(settings) as store:
        await make_table(store)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert {"x.db", "x.db-wal", "x.db-shm", "x.db.turn"} <= set(modes)
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_what_was_written_is_there_after_reopening(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    async with await open_store(settings) as store:
        table = await make_table(store)
        await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')")))
    async with await open_store(settings) as store:
        assert (await store.read(f"SELECT a FROM {table}")).value == "x"


async def test_opening_a_file_that_others_have_open_writes_nothing_to_it(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    assert settings.db_path is not None
    async with await open_store(settings) as store, await open_store(settings):
        await make_table(store)
        with closing(sqlite3.connect(settings.db_path)) as watching:
            before = watching.execute("PRAGMA data_version").fetchone()
            async with await open_store(settings):
                assert watching.execute("PRAGMA data_version").fetchone() == before


def _replica_by_mark(path: Path) -> Path:
    Path(f"{path}.mark").touch()
    return path


def _replica_by_name(path: Path) -> Path:
    return path.with_name("local.db.replica-1")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _letter(path: Path) -> Path:
    path.write_text("Dear Sir or Madam")
    return path


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_replica_by_mark, "replica"),
        (_replica_by_name, "replica"),
        (_folder, "folder"),
        (_letter, "not a SQLite database"),
    ],
)
@pytest.mark.parametrize("by_url", [False, True])
async def test_what_is_not_its_own_is_refused_and_left_alone(
    made: object, reason: str, by_url: bool, tmp_path: Path
) -> None:
    assert callable(made)
    path: Path = made(tmp_path / "local.db")
    before = _names_in(tmp_path)
    where = {"db_url": f"file:{path}"} if by_url else {"db_path": path}
    settings = load_settings(enabled=True, home_dir=tmp_path / "vox", **where)
    with pytest.raises(WrongBackend, match=reason) as refused:
        await open_store(settings, Role.COMMAND)
    assert "VOX_DB_PATH" in refused.value.hint
    assert _names_in(tmp_path) == before


async def test_a_path_that_cannot_be_opened_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = load_settings(enabled=True, home_dir=tmp_path / "vox", db_path=tmp_path / "file" / "x.db")
    with pytest.raises(DatabaseFault, match="can't be opened") as fault:
        await open_store(settings, Role.COMMAND)
    assert "\n" not in fault.value.line


async def test_a_damaged_file_is_reported_as_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.commit()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5_000)
    settings = load_settings(enabled=True, home_dir=tmp_path / "vox", db_path=path)
    with pytest.raises(DatabaseFault):
        await open_store(settings, Role.COMMAND)


async def test_with_a_url_set_later_the_file_is_not_touched(tmp_path: Path, shared_server: Server) -> None:
    settings = FILE.settings(tmp_path, None)
    async with await open_store(settings) as store:
        table = await make_table(store)
        await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('mine')")))

    def trace() -> dict[str, tuple[str, int]]:
        files = [f for f in settings.db_path.parent.glob("local.db*") if ".replica-" not in f.name]
        return {f.name: (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mtime_ns) for f in files}

    before = trace()
    assert "local.db" in before
    async with await open_store(MESH.settings(tmp_path, shared_server)) as store:
        await store.write(Script(Statement(f"CREATE TABLE {table} (a)")))
        await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('theirs')")))
        assert (await store.read(f"SELECT a FROM {table}")).value == "theirs"
    assert trace() == before
    async with await open_store(settings) as store:
        assert (await store.read(f"SELECT a FROM {table}")).value == "mine"


async def _ticks_until(task: asyncio.Task[object], wanted: int) -> int:
    """How often the loop came round, a millisecond apart, before the task ended or there were enough."""
    ticks = 0
    while ticks < wanted and not task.done():
        await asyncio.sleep(0.001)
        ticks += 1
    return ticks


@pytest.mark.parametrize("scripts", [1, 64])
@pytest.mark.parametrize("is_fast", [False, True], ids=["slow disk", "fast disk"])
@pytest.mark.parametrize("holding", [HOLD_WRITE_LOCK, HOLD_TURN], ids=["write lock", "turn"])
async def test_the_loop_goes_on_while_another_process_holds_the_database(
    holding: str, is_fast: bool, scripts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WritePace, "is_fast", lambda *_: is_fast)
    settings = FILE.settings(tmp_path, None)
    async with await open_store(settings) as store:
        table = await make_table(store)
        inserts = [Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')")) for _ in range(scripts)]
        with program(holding, settings.db_path) as (held, _):
            assert held == "held"
            writing: asyncio.Task[object] = asyncio.create_task(store.write_all(inserts))
            assert await _ticks_until(writing, 100) == 100
            assert (await store.read(f"SELECT count(*) FROM {table}")).value == 0
        await writing
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == scripts


@pytest.mark.parametrize(("scripts", "is_ahead"), [(64, True), (1, False)])
async def test_only_what_is_written_for_many_has_a_head_start(
    scripts: int, is_ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _watched(monkeypatch)
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        table = await make_table(store)
        insert = Statement(f"INSERT INTO {table} (a) VALUES ('x')")
        await store.write_all([Script(insert) for _ in range(scripts)])
    assert given == [True] * is_ahead


async def test_the_head_start_is_over_when_another_has_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = FILE.settings(tmp_path, None)
    given = _watched(monkeypatch)
    async with await open_store(settings) as store:
        table = await make_table(store)
        inserts = [Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')")) for _ in range(64)]
        with program(HOLD_TURN, settings.db_path) as (held, _):
            assert held == "held"
            writing = asyncio.create_task(store.write_all(inserts))
            await _ticks_until(writing, 1)
            assert given == [True], "though the turn is held, the loop did not stand still for long"
        await writing


async def test_the_head_start_is_over_when_a_request_fails_before_its_last_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _watched(monkeypatch)
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        table = await make_table(store, "id INTEGER PRIMARY KEY")
        both = (Statement(f"INSERT INTO {table} (id) VALUES (1)"), Statement(f"UPDATE {table} SET id = id"))
        same = [Script(*both) for _ in range(64)]
        verdicts = await store.write_all(same)
        assert sum(isinstance(verdict, ConstraintFailed) for verdict in verdicts) == 63
    assert given == [True]


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each head start, whether the thread was off at its end; it may take as long as it likes."""
    given: list[bool] = []
    wait = HeadStart.wait
    monkeypatch.setattr(HeadStart, "wait", lambda start, _: given.append(wait(start, 30.0)))
    return given


async def test_contending_stores_never_see_a_locked_database(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    stores: list[Store] = [await open_store(settings) for _ in range(4)]
    table = await make_table(stores[0])
    insert = Statement(f"INSERT INTO {table} (a) VALUES ('x')")

    async def write_many(store: Store) -> None:
        for _ in range(50):
            await store.write(Script(insert))

    await asyncio.gather(*(write_many(store) for store in stores))
    assert (await stores[0].read(f"SELECT count(*) FROM {table}")).value == 200
    for store in stores:
        await store.close()
