"""Backup and restore: one moment, whole or not at all, and nothing handed out twice afterwards."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.running.lengths import BACKUPS, SOAK, cases_in_soak, in_soak
from tools.homes import FILE, MEMORY, MESH, MESH_HTTP, MESH_LIBSQL_CLIENT, HomeCase
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, Store, open_store
from vox_mesh.errors import BackupRefused, DatabaseUnavailable, NoAnswer
from vox_mesh.runtime.open_store import Role, open_engine
from vox_mesh.runtime.restore import BackupFile, Restored, restore
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.rows import Rows
from vox_mesh.store.schema.backup import back_up
from vox_mesh.store.schema.schema import VERSION, ensure_schema

_FENCES: Final = "INSERT INTO lock_generations (scope_id, repository_id, generation)"
_OF_USERS: Final = (
    "CREATE VIEW few AS SELECT a FROM counted WHERE a < 3",
    "CREATE TRIGGER greedy AFTER INSERT ON counted BEGIN DELETE FROM counted WHERE id < new.id - 5; END",
)
_RAISED = 2**32
_TIMEOUT_S = 30.0
_LOST = 1_000 if SOAK else 3


# By which way the server is reached, and whether someone reads a replica of it, changes nothing in a backup.
@pytest.fixture(params=[MEMORY, FILE, MESH, *cases_in_soak(MESH_HTTP)], ids=str)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Each home in turn, with a database that no other test uses."""
    case: HomeCase = request.param
    return case.settings(tmp_path / "own", request.getfixturevalue("server") if case.needs_server else None)


@pytest.fixture(params=[FILE, MESH, *cases_in_soak(MESH_HTTP, MESH_LIBSQL_CLIENT)], ids=str)
async def empty(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    """An empty database on each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("server") if case.needs_server else None
    async with _engine(case.settings(tmp_path / "empty", server)) as engine:
        yield engine


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """A backup with some of everything, in several parts."""
    async with _engine(FILE.settings(tmp_path / "source", None)) as engine:
        await ensure_schema(engine)
        await _fill(engine)
        await back_up(engine, tmp_path / "backup.db")
    return tmp_path / "backup.db"


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[Engine]:
    engine = await open_engine(settings)
    try:
        yield engine
    finally:
        await engine.close()


async def _do(engine: Engine, *statements: str) -> None:
    batch = Batch()
    for statement in statements:
        batch.add(statement)
    result = await engine.run(batch.seal())
    assert result.committed, result.error


def _numbers(last: int) -> str:
    return f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {last})"


async def _fill(engine: Engine) -> None:
    await _do(
        engine,
        f"{_numbers(3_000)} {_FENCES} SELECT 's', 'key-' || i, i FROM n",
        f"{_numbers(300)} INSERT INTO node_incarnations SELECT 's', 'r', 'node-' || i, i, 0 FROM n",
        "INSERT INTO script_results (scope_id, repository_id, script_key, writer)"
        " VALUES ('s', 'r', 'k', 'w')",
        "INSERT INTO script_answers (scope_id, repository_id, script_key, n, c0, c1, c2, c3, c4)"
        " VALUES ('s', 'r', 'k', 1, -9223372036854775808, 0.1, x'00ff', 'ä€𝄞\n', NULL)",
        'CREATE TABLE "odd ""name" (rowid, "the value" TEXT)',
        'INSERT INTO "odd ""name" (_rowid_, rowid, "the value") VALUES (7, \'not the row id\', \'x\')',
        "CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, a, doubled AS (a * 2))",
        f"{_numbers(50)} INSERT INTO counted (a) SELECT i FROM n",
        "DELETE FROM counted WHERE id > 40",
        "CREATE INDEX counted_by_a ON counted (a)",
    )


async def _all(ask: Ask) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that must survive, from any database."""
    queries = {
        "fences": "SELECT scope_id, repository_id, generation FROM lock_generations ORDER BY repository_id",
        "incarnations": "SELECT node_id, incarnation FROM node_incarnations ORDER BY node_id",
        "keys": "SELECT scope_id, repository_id, script_key, writer FROM script_results",
        "answers": "SELECT * FROM script_answers",
        "odd": 'SELECT _rowid_, * FROM "odd ""name"',
        "counted": "SELECT * FROM counted ORDER BY id",
        "sequence": "SELECT name, seq FROM sqlite_sequence",
        "schema": "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name",
        "version": "SELECT version, oldest_code FROM mesh_schema",
    }
    return {name: [tuple(row) for row in await ask(Statement(sql))] for name, sql in queries.items()}


async def _all_in(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path)) as connection:

        async def ask(statement: Statement) -> Rows:
            return Rows((), connection.execute(statement.sql))

        return await _all(ask)


def _with_raised_counters(found: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    raised = {
        name: [(*row[:-1], row[-1] + _RAISED) for row in found[name]] for name in ("fences", "incarnations")
    }
    return found | raised


async def _restored(engine: Engine, path: Path) -> Restored:
    with await asyncio.to_thread(BackupFile, path) as backup:
        return await restore(engine, backup, timeout=_TIMEOUT_S)


class InterferingEngine:
    """A real engine in a world where things go wrong: `meddle` is called around every batch."""

    def __init__(self, engine: Engine, meddle: Callable[[int, bool], None]) -> None:
        self._engine = engine
        self._meddle = meddle
        self._count = 0
        self.max_scripts = engine.max_scripts

    async def run(self, batch: Batch) -> BatchResult:
        self._count += 1
        count = self._count
        self._meddle(count, False)
        result = await self._engine.run(batch)
        self._meddle(count, True)
        return result

    async def query(self, statement: Statement) -> Rows:
        return await self._engine.query(statement)

    def snapshot(self) -> AbstractAsyncContextManager[Ask]:
        return self._asking()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Ask]:
        async with self._engine.snapshot() as ask:

            async def meddled(statement: Statement) -> Rows:
                self._count += 1
                self._meddle(self._count, False)
                return await ask(statement)

            yield meddled

    async def facts(self) -> Any:
        return await self._engine.facts()

    async def close(self) -> None:
        await self._engine.close()


# --- backup --------------------------------------------------------------------------------------


async def test_a_backup_holds_everything_exactly(own: Settings, tmp_path: Path) -> None:
    async with _engine(own) as engine:
        await ensure_schema(engine)
        await _fill(engine)
        await _do(engine, *_OF_USERS)
        done = await back_up(engine, tmp_path / "b.db")
        assert await _all_in(tmp_path / "b.db") == await _all(engine.query)
    assert done.rows == 1 + 3_000 + 300 + 2 + 1 + 40
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(tmp_path / "b.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.soak
async def test_a_backup_is_of_one_moment_while_others_write(own: Settings, tmp_path: Path) -> None:
    """The counter in the first table is read long before its twin in the last one."""
    async with await open_store(own) as store, _writing(store) as written:
        await store.write(Script(Statement(f"{_numbers(20_000)} {_FENCES} SELECT 'z', i, i FROM n")))
        for attempt in range(BACKUPS):
            before = written()
            await back_up(store._engine, tmp_path / f"{attempt}.db")
            during = written() - before
            with closing(sqlite3.connect(tmp_path / f"{attempt}.db")) as copy:
                fence = copy.execute(
                    "SELECT generation FROM lock_generations WHERE scope_id = 'a'"
                ).fetchone()
                twin = copy.execute("SELECT incarnation FROM node_incarnations").fetchone()
            assert fence == twin
            assert during > 1, "the writer stood still, so this shows nothing"


@asynccontextmanager
async def _writing(store: Store) -> AsyncIterator[Callable[[], int]]:
    """A writer at full speed that keeps two counters equal; how often it has written."""
    await store.write(
        Script(
            Statement(f"{_FENCES} VALUES ('a', 'twin', 0)"),
            Statement("INSERT INTO node_incarnations VALUES ('a', '', 'twin', 0, 0)"),
        )
    )
    count = 0

    async def write() -> None:
        nonlocal count
        while True:
            await store.write(
                Script(
                    Statement("UPDATE lock_generations SET generation = generation + 1 WHERE scope_id = 'a'"),
                    Statement("UPDATE node_incarnations SET incarnation = incarnation + 1"),
                )
            )
            count += 1
            await asyncio.sleep(0)  # on the memory home a write never waits

    writer = asyncio.create_task(write())
    try:
        yield lambda: count
    finally:
        assert not writer.done(), writer.exception()
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "rows", "size"),
    [
        (MESH, 600, 60_000),
        (MESH, 20, 1_800_000),
        *in_soak((MESH, 100_000, 350), (MESH_HTTP, 600, 60_000), (MESH_LIBSQL_CLIENT, 600, 60_000)),
    ],
    ids=str,
)
async def test_a_table_larger_than_any_answer_is_backed_up(
    case: HomeCase, server: Server, tmp_path: Path, rows: int, size: int
) -> None:
    async with _engine(case.settings(tmp_path, server)) as engine:
        await ensure_schema(engine)
        text = f"printf('%.*c', {size}, 'x')"
        for start in range(0, rows, part := max(1, 8_000_000 // size)):
            last = min(part, rows - start)
            await _do(
                engine,
                f"{_numbers(last)} {_FENCES} SELECT '', (i + {start}) || {text}, i FROM n",
            )
        done = await back_up(engine, tmp_path / "b.db")
    assert done.bytes > 30_000_000
    with closing(sqlite3.connect(tmp_path / "b.db")) as copy:
        found = copy.execute(
            "SELECT count(*), count(DISTINCT repository_id), min(length(repository_id)) FROM lock_generations"
        )
        assert found.fetchone() == (rows, rows, size + 1)


async def test_a_backup_of_small_and_large_rows_mixed_finds_its_page_size(
    server: Server, tmp_path: Path
) -> None:
    """Thousands of small rows make pages long; then each row is a large part of what an answer can hold."""
    async with _engine(MESH.settings(tmp_path, server)) as engine:
        await ensure_schema(engine)
        await _do(
            engine,
            f"{_numbers(5_000)} {_FENCES} SELECT 'a', i, i FROM n",
        )
        for key in range(8):
            await _do(
                engine,
                f"{_FENCES} SELECT 'b', {key} || hex(zeroblob(1500000)), 1",
            )
        assert (await back_up(engine, tmp_path / "b.db")).rows == 1 + 5_000 + 8


async def test_a_failed_backup_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()

    def kill_in_the_middle(count: int, _: bool) -> None:
        if count == 10:
            assert len(list(folder.iterdir())) == 1  # it is being written
            server.kill()

    async with _engine(MESH.settings(tmp_path, server)) as engine:
        await ensure_schema(engine)
        await _fill(engine)
        with pytest.raises(DatabaseUnavailable):
            await back_up(InterferingEngine(engine, kill_in_the_middle), folder / "b.db")
    assert list(folder.iterdir()) == []


async def test_a_cancelled_backup_leaves_nothing_behind(own: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    async with _engine(own) as engine:
        await ensure_schema(engine)
        await _fill(engine)

        def cancel_in_the_middle(count: int, _: bool) -> None:
            if count == 10:
                backing_up.cancel()

        backing_up = asyncio.create_task(
            back_up(InterferingEngine(engine, cancel_in_the_middle), folder / "b.db")
        )
        with pytest.raises(asyncio.CancelledError):
            await backing_up
        assert list(folder.iterdir()) == []
        assert (await back_up(engine, folder / "b.db")).rows > 3_000  # and the engine is still of use


# --- restore -------------------------------------------------------------------------------------


async def test_a_restore_brings_everything_back_and_raises_the_counters(empty: Engine, backup: Path) -> None:
    done = await _restored(empty, backup)
    assert (done.fences_raised, done.incarnations_raised) == (3_000, 300)
    assert await _all(empty.query) == _with_raised_counters(await _all_in(backup))


async def test_a_restore_marks_the_count_of_heartbeats_with_its_time(empty: Engine, backup: Path) -> None:
    """So that two restores of one backup, which raise the incarnations alike, can be distinguished."""
    before = (await empty.query(Statement("SELECT unixepoch('now', '-1 second') * 1000 << 10"))).value
    await _restored(empty, backup)
    assert (await empty.query(Statement("SELECT min(beats) FROM node_incarnations"))).value > before


async def test_a_restore_refuses_a_database_in_use_and_names_what_it_found(
    empty: Engine, backup: Path
) -> None:
    await ensure_schema(empty)
    await _do(empty, "INSERT INTO node_incarnations VALUES ('other', 'mesh', 'n', 1, 0)")
    with pytest.raises(BackupRefused, match="1 in node_incarnations"):
        await _restored(empty, backup)
    assert (await empty.query(Statement("SELECT count(*) FROM lock_generations"))).value == 0
    assert (await empty.query(Statement("SELECT incarnation FROM node_incarnations"))).value == 1


class _Cut(Exception):
    """The process died here."""


@pytest.mark.parametrize("at", range(2, 7))
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_an_interrupted_restore_is_recognised_and_can_be_finished(
    tmp_path: Path, backup: Path, at: int, applied: bool
) -> None:
    settings = FILE.settings(tmp_path / "target", None)

    def cut(count: int, is_applied: bool) -> None:
        if (count, is_applied) == (at, applied):
            raise _Cut

    async with _engine(settings) as engine:
        with pytest.raises(_Cut):
            await _restored(InterferingEngine(engine, cut), backup)
        is_begun = (await engine.query(Statement("SELECT max(version) FROM mesh_schema"))).value > VERSION
        is_complete = not is_begun and (at, applied) != (2, False)
        if is_begun:
            with pytest.raises(BackupRefused, match="not finished"):
                await open_store(settings, Role.NODE)
            with pytest.raises(BackupRefused, match="not finished"):
                await back_up(engine, tmp_path / "half.db")
        if is_complete:
            with pytest.raises(BackupRefused, match="in use"):
                await _restored(engine, backup)
        else:
            await _restored(engine, backup)
        assert await _all(engine.query) == _with_raised_counters(await _all_in(backup))
    async with await open_store(settings, Role.COMMAND) as store:
        assert (await store.read("SELECT count(*) FROM lock_generations")).value == 3_000


async def test_an_interrupted_restore_is_not_finished_with_another_backup(
    tmp_path: Path, backup: Path
) -> None:
    other = tmp_path / "other.db"
    shutil.copy(backup, other)
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("UPDATE lock_generations SET generation = 9 WHERE repository_id = 'key-1'")

    def cut(count: int, _: bool) -> None:
        if count == 4:
            raise _Cut

    async with _engine(FILE.settings(tmp_path / "target", None)) as engine:
        with pytest.raises(_Cut):
            await _restored(InterferingEngine(engine, cut), backup)
        with pytest.raises(BackupRefused, match="another backup"):
            await _restored(engine, other)


@pytest.mark.soak
@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_lost_answers_do_not_double_anything(
    case: HomeCase, server: Server, tmp_path: Path, backup: Path
) -> None:
    lost: set[int] = set()

    def lose_every_second_answer(count: int, is_applied: bool) -> None:
        if is_applied and count % 2 == 0 and len(lost) < _LOST:
            lost.add(count)
            raise NoAnswer("the answer got lost")

    async with _engine(case.settings(tmp_path / "target", server if case.needs_server else None)) as engine:
        await ensure_schema(engine)
        await _restored(InterferingEngine(engine, lose_every_second_answer), backup)
        assert await _all(engine.query) == _with_raised_counters(await _all_in(backup))
    assert len(lost) > 2


async def test_two_restores_of_one_file_at_once_raise_the_counters_once(empty: Engine, backup: Path) -> None:
    both = await asyncio.gather(_restored(empty, backup), _restored(empty, backup), return_exceptions=True)
    for error in both:  # the first may have ended before the second began
        assert isinstance(error, Restored) or "the database is in use" in str(error)
    assert any(isinstance(each, Restored) for each in both)
    assert await _all(empty.query) == _with_raised_counters(await _all_in(backup))


async def test_a_writer_beside_the_restore_keeps_it_from_being_finished(tmp_path: Path, backup: Path) -> None:
    """A process that had the empty database open before may write into it; that must not go unseen."""
    settings = FILE.settings(tmp_path / "target", None)
    async with await open_store(settings, Role.COMMAND) as store, _engine(settings) as engine:
        writing: list[asyncio.Task[Any]] = []

        def write_beside(count: int, is_applied: bool) -> None:
            if (count, is_applied) == (2, False):
                script = Script(Statement(f"{_FENCES} VALUES ('new', 'k', 1)"))
                writing.append(asyncio.ensure_future(store.write(script)))

        with pytest.raises(BackupRefused, match="something else wrote"):
            await _restored(InterferingEngine(engine, write_beside), backup)
        await asyncio.gather(*writing)
        with pytest.raises(BackupRefused, match="not finished"):
            await open_store(settings, Role.COMMAND)


async def test_a_script_that_was_applied_before_the_backup_is_not_applied_again_after_the_restore(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH.settings(tmp_path, server)
    script = Script(Statement(f"{_FENCES} SELECT 's', hex(randomblob(8)), 1"))
    async with await open_store(settings, Role.COMMAND) as store:
        await store.write(script)
        await back_up(store._engine, tmp_path / "b.db")
    async with _engine(FILE.settings(tmp_path / "new", None)) as engine:
        await _restored(engine, tmp_path / "b.db")
    again = FILE.settings(tmp_path / "new", None, scope_id=settings.scope_id)
    async with await open_store(again, Role.COMMAND) as store:
        assert (await store.write(script)).repeated
        assert (await store.read("SELECT count(*) FROM lock_generations")).value == 1


def _nothing(path: Path) -> None:
    path.unlink()


def _no_database(path: Path) -> None:
    path.write_text("Dear database, " * 100)


def _no_mesh(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name)")


def _damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8_192 : len(content) // 2] = bytes(len(content) // 2 - 8_192)
    path.write_bytes(content)


def _too_new(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO mesh_schema (version, oldest_code) VALUES (?, 1)", (VERSION + 1,))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_nothing, "is not a file"),
        (_no_database, "can't be read as a database"),
        (_no_mesh, "no mesh"),
        (_damaged, "is damaged|can't be read"),
        (_too_new, f"schema version {VERSION + 1}"),
    ],
)
def test_a_file_that_is_no_good_backup_is_refused(
    backup: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(backup)
    with pytest.raises(BackupRefused, match=words):
        BackupFile(backup)
