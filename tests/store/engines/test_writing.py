"""Writing to a file: what is fast is written in the loop's thread, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.store.tables import make_table
from tools.homes import FILE
from vox_mesh import Script, Statement, Store, open_store
from vox_mesh.errors import ConstraintFailed
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engines import sqlite
from vox_mesh.store.engines.writing import WritePace, WritingConnection


def _wal_bytes(store: Store) -> int:
    status = store.wal_status
    assert status is not None
    return status.bytes


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch, whether it ran in the loop's thread."""
    found: list[bool] = []
    walk, loop_thread = sqlite.walk, threading.get_ident()

    def watched(*given: object) -> BatchResult:
        found.append(threading.get_ident() == loop_thread)
        return walk(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite, "walk", watched)
    return found


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is fast, however busy this machine is."""
    note: Callable[[WritePace, Batch, float], None] = WritePace.note
    monkeypatch.setattr(WritePace, "note", lambda pace, batch, _: note(pace, batch, 0.0))


async def _insert(store: Store, table: str, times: int = 1) -> None:
    for _ in range(times):
        await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES ('x')")))


def _batch(*statements: str) -> Batch:
    batch = Batch()
    for each in statements:
        batch.add(each)
    return batch.seal()


def test_writes_are_fast_after_many_fast_ones_but_now_and_then_one_is_left_to_the_thread() -> None:
    pace, batch = WritePace(), _batch("INSERT")
    found = []
    for _ in range(100):
        found.append(pace.is_fast(batch))
        pace.note(batch, 0.0004)
    assert found == [False] * 33 + ([True] * 31 + [False]) * 2 + [True] * 3


def test_after_one_slow_write_all_are_left_to_the_thread_for_a_while() -> None:
    pace, batch = WritePace(), _batch("INSERT")
    for _ in range(40):
        pace.note(batch, 0.0004)
    assert pace.is_fast(batch)
    pace.note(batch, 0.02)
    assert not pace.is_fast(batch)


def test_a_statement_that_was_not_seen_to_be_fast_is_left_to_the_thread() -> None:
    pace, fast, long, both = WritePace(), _batch("INSERT"), _batch("DELETE"), _batch("INSERT", "DELETE")
    for _ in range(40):
        pace.note(fast, 0.0004)
    assert [pace.is_fast(each) for each in (fast, long, both)] == [True, False, False]
    pace.note(long, 0.02)
    for _ in range(40):
        pace.note(fast, 0.0004)
    assert [pace.is_fast(each) for each in (fast, long, both)] == [True, False, False]


@pytest.mark.usefixtures("fast_disk")
async def test_many_rows_in_one_statement_are_left_to_the_thread(tmp_path: Path, walks: list[bool]) -> None:
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        table = await make_table(store)
        insert = f"INSERT INTO {table} (a) SELECT value FROM json_each(?)"
        for _ in range(40):
            await store.write(Script(Statement(insert, ("[1]",))))
        walks.clear()
        for count in (10, 50_000):
            await store.write(Script(Statement(insert, (str([*range(count)]),))))
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 50_050
    assert walks[:2] == [True, False]


def test_only_so_many_statements_are_remembered() -> None:
    pace = WritePace()
    for number in range(3_000):
        pace.note(_batch(f"INSERT {number}"), 0.0004)
    assert len(pace._fast_statements) <= 1_100


@pytest.mark.usefixtures("fast_disk")
async def test_fast_writes_run_in_the_loop_and_are_all_there(tmp_path: Path, walks: list[bool]) -> None:
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        table = await make_table(store)
        walks.clear()
        await _insert(store, table, 200)
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 200
    assert walks[:30] == [False] * 30
    assert 0.7 * len(walks) < sum(walks) < len(walks)


@pytest.mark.usefixtures("fast_disk")
async def test_writes_that_meet_share_a_batch_which_is_left_to_the_thread(
    tmp_path: Path, walks: list[bool]
) -> None:
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        table = await make_table(store)
        await _insert(store, table, 40)
        for _ in range(2):  # the second time all statements are known to be fast
            walks.clear()
            await asyncio.gather(*(_insert(store, table) for _ in range(6)))
    assert walks[-1:] == [False]
    assert len(walks) <= 2, "the first one alone at most, then all others"


@pytest.mark.usefixtures("fast_disk")
async def test_other_tasks_run_between_fast_writes(tmp_path: Path, walks: list[bool]) -> None:
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        table = await make_table(store)
        await _insert(store, table, 40)
        walks.clear()
        writer = asyncio.create_task(_insert(store, table, 20))
        turns = 0
        while not writer.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns >= len(walks)


@pytest.mark.usefixtures("fast_disk")
async def test_a_script_that_fails_in_the_loop_changes_nothing_and_says_why(
    tmp_path: Path, walks: list[bool]
) -> None:
    async with await open_store(FILE.settings(tmp_path, None)) as store:
        table = await make_table(store, "id INTEGER PRIMARY KEY, a")
        await _insert(store, table, 40)
        insert = Statement(f"INSERT INTO {table} (id) VALUES (1000)")
        await store.write(Script(insert))
        walks.clear()
        with pytest.raises(ConstraintFailed):
            await store.write(Script(insert))
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == 41
    assert walks[0]


@pytest.mark.usefixtures("fast_disk")
async def test_the_log_of_the_file_is_checkpointed_while_writes_run_in_the_loop(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    async with await open_store(settings) as store:
        table = await make_table(store)
        body = "x" * 8_000
        for _ in range(1_500):  # about 5,000 pages
            await store.write(Script(Statement(f"INSERT INTO {table} (a) VALUES (?)", (body,))))
        assert _wal_bytes(store) < 8 * 2**20


@pytest.mark.usefixtures("fast_disk")
async def test_it_waits_for_locks_in_the_thread_but_not_in_the_loop(tmp_path: Path) -> None:
    connection = sqlite.connect(str(tmp_path / "x.db"), busy_timeout_s=5.0)
    writing = WritingConnection(connection)
    found = []
    for walk in (writing.walk, writing.walk_in_loop, writing.walk, writing.walk_in_loop):
        walk(_batch("CREATE TABLE IF NOT EXISTS t (a)"))
        found.append(connection.execute("PRAGMA busy_timeout").fetchone()[0])
    writing.close()
    assert found == [5_000, 0, 5_000, 0]
