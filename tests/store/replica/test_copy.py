"""The copy: frames of a real database go in, answers of whole transactions come out."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.replica.frames import LOG, OTHER_LOG, Primary, primary, with_room
from tests.support.running.examples import few
from vox_mesh import Statement
from vox_mesh.errors import NoAnswer
from vox_mesh.store.replica import copy_reader
from vox_mesh.store.replica.copy import Copy
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.replica import Incomplete, Restarted
from vox_mesh.store.replica.wire import PAGE, WalFrame

_PATIENCE_S = 30.0
COUNT = Statement("SELECT count(*) FROM t")
LONG = Statement(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 150000) SELECT max(i) FROM n"
)
ENDLESS = Statement("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")


@asynccontextmanager
async def copied(path: Path) -> AsyncIterator[Copy]:
    """A copy that begins with the first frame of a log."""
    mark = Mark.take(path, "pushed", "http://primary")
    copy = Copy(path, mark)
    try:
        await copy.start_over(LOG)
        copy.expect()
        yield copy
    finally:
        await copy.close()
        mark.release()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Primary]:
    """The database that is copied."""
    with primary(tmp_path / "primary.db") as database:
        yield database


@pytest.fixture
async def copy(tmp_path: Path, source: Primary) -> AsyncIterator[Copy]:
    """A readable copy of a table of three rows."""
    async with copied(tmp_path / "copy") as made:
        await made.take(source.commit("CREATE TABLE t (a)", "INSERT INTO t VALUES (1), (2), (3)"))
        made.is_readable = True
        yield made


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no query too long."""
    monkeypatch.setattr(copy_reader, "SLOW_S", _PATIENCE_S)


async def value(copy: Copy, statement: Statement = COUNT) -> Any:
    """The answer's first value; it must be one."""
    async with asyncio.timeout(_PATIENCE_S):
        rows = await copy.read(statement)
    assert rows is not None
    return rows.value


async def turns(count: int = 20) -> None:
    """Let everybody go as far as they can."""
    for _ in range(count):
        await asyncio.sleep(0)


class Held:
    """Something that is done in another thread, held up until it is let go."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.let_go = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.let_go.wait(_PATIENCE_S)
        return self._real(*arguments)


# --- taking in ------------------------------------------------------------------------------------


async def test_a_transaction_is_seen_once_its_last_frame_has_come(copy: Copy, source: Primary) -> None:
    frames = source.commit("CREATE TABLE u (a)", "INSERT INTO t VALUES (4)")
    assert len(frames) > 1
    for frame in frames[:-1]:
        assert not await copy.take([frame])
        assert await value(copy) == 3
    assert copy.arrived == copy.next_frame + len(frames) - 1
    assert await copy.take(frames[-1:])
    assert await value(copy) == 4
    assert copy.next_frame == copy.arrived == source.next_frame


async def test_the_beginning_of_a_transaction_that_never_ended_is_forgotten(
    copy: Copy, source: Primary
) -> None:
    frames = source.commit("CREATE TABLE u (a)", "INSERT INTO t VALUES (4)")
    await copy.take(frames[:1])
    assert copy.expect() == frames[0].number
    assert await copy.take(frames)
    assert await value(copy) == 4


@pytest.mark.parametrize("gap", [-1, 1, 1_000])
async def test_a_gap_in_the_log_is_refused(copy: Copy, source: Primary, gap: int) -> None:
    frames = [
        frame._replace(number=frame.number + gap) for frame in source.commit("INSERT INTO t VALUES (4)")
    ]
    with pytest.raises(NoAnswer, match=f"skipped from frame {copy.next_frame} to {frames[0].number}"):
        await copy.take(frames)
    assert await value(copy) == 3
    copy.expect()
    assert await copy.take([frame._replace(number=frame.number - gap) for frame in frames])
    assert await value(copy) == 4


async def test_a_gap_in_the_middle_is_refused_with_all_that_came_with_it(copy: Copy, source: Primary) -> None:
    first = source.commit("INSERT INTO t VALUES (4)")
    second = [frame._replace(number=frame.number + 1) for frame in source.commit("INSERT INTO t VALUES (5)")]
    with pytest.raises(NoAnswer):
        await copy.take([*first, *second])
    assert await value(copy) == 3
    assert copy.expect() == first[0].number


@pytest.mark.parametrize("rows", [1, 300], ids=["inline", "in the thread"])
async def test_small_and_large_transactions_are_applied_alike(
    copy: Copy, source: Primary, tmp_path: Path, rows: int
) -> None:
    frames = source.commit(*["INSERT INTO t VALUES (randomblob(3000))"] * rows)
    assert (len(frames) > 64) is (rows > 1)
    assert await copy.take(frames)
    assert await value(copy) == 3 + rows
    assert (tmp_path / "copy").read_bytes() == with_room(source.path.read_bytes())
    assert copy.size == source.path.stat().st_size


@few
@given(st.integers(0, 2**32))
async def test_byte_for_byte_however_the_log_comes_in(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random, folder = Random(seed), tmp_path_factory.mktemp("random")
    changes = [
        "INSERT INTO t VALUES (randomblob(5000)), (randomblob(50000))",
        "DELETE FROM t WHERE rowid % 3 = 0",
        "UPDATE t SET a = randomblob(900) WHERE rowid % 2",
        "CREATE TABLE IF NOT EXISTS u AS SELECT * FROM t",
        "DROP TABLE IF EXISTS u",
    ]
    with primary(folder / "primary.db") as source:
        frames = source.commit("CREATE TABLE t (a)")
        for _ in range(12):
            frames += source.vacuum() if random.random() < 0.2 else source.commit(random.choice(changes))
        async with copied(folder / "copy") as copy:
            while frames:
                count = random.randint(1, 40)
                await copy.take(frames[:count])
                del frames[:count]
            assert (folder / "copy").read_bytes() == with_room(source.path.read_bytes())
        with closing(sqlite3.connect(folder / "copy")) as found:
            assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_the_connection_is_kept_while_the_database_grows(copy: Copy, source: Primary) -> None:
    """A new one would read the schema and prepare all queries again."""
    assert await value(copy) == 3
    kept, size = copy._reader._inline, copy.size
    for _ in range(5):
        await copy.take(source.commit("INSERT INTO t VALUES (zeroblob(20000))"))
    assert copy.size > size + 5 * 20_000 - PAGE
    rows = await copy.read(Statement("SELECT total(length(a)) FROM t WHERE length(a) > 9"))
    assert rows is not None
    assert rows.value == 100_000
    assert await value(copy) == 8
    assert kept is not None
    assert copy._reader._inline is kept


async def test_a_snapshot_is_taken_whole_and_the_log_goes_on_behind_it(
    copy: Copy, source: Primary, tmp_path: Path
) -> None:
    source.commit(*["INSERT INTO t VALUES (randomblob(3000))"] * 5)
    frames = source.snapshot()
    await copy.start_over(OTHER_LOG)
    assert await copy.read(COUNT) is None, "no one has said that it may be read"
    copy.expect()
    await copy.take_older(frames[:2])
    with pytest.raises(Incomplete):
        await copy.apply_snapshot(source.next_frame, frames[-1].size_after)
    await copy.take_older(frames[2:])
    await copy.apply_snapshot(source.next_frame, frames[-1].size_after)
    copy.is_readable = True
    assert copy.log_id == OTHER_LOG
    assert await copy.take(source.commit("INSERT INTO t VALUES (9)"))
    assert await value(copy) == 9
    assert (tmp_path / "copy").read_bytes() == with_room(source.path.read_bytes())


def _numbered(frames: list[WalFrame], checksum: int) -> list[WalFrame]:
    """The same frames with checksums, of which the last one's is given."""
    return [frame._replace(checksum=checksum - len(frames) + at) for at, frame in enumerate(frames, 1)]


@pytest.mark.parametrize(
    ("past", "reason"),
    [(7_000, None), (8_000, "another past"), (None, "does not go back")],
    ids=["the same past", "another past", "a past that it does not show"],
)
async def test_a_snapshot_is_applied_only_to_a_copy_that_shares_its_past(
    copy: Copy, source: Primary, tmp_path: Path, past: int | None, reason: str | None
) -> None:
    await copy.take(_numbered(source.commit("CREATE TABLE u (a)", "INSERT INTO t VALUES (4)"), 7_000))
    last = copy.next_frame - 1
    before = (tmp_path / "copy").read_bytes()
    changed = source.commit("CREATE TABLE v (a)")  # which leaves the page of the last frame unchanged
    newest_first = [frame._replace(size_after=0) for frame in reversed(changed)]
    shown = WalFrame(last, source.path.stat().st_size // PAGE - 1, 0, memoryview(bytes(PAGE)), past or 0)
    page = source.path.read_bytes()[(shown.page_number - 1) * PAGE :][:PAGE]
    snapshot = [*newest_first, shown._replace(page=memoryview(page))][: None if past else -1]
    assert copy.expect(again=True) == last

    async def apply() -> None:
        await copy.take_older(snapshot)
        await copy.apply_snapshot(source.next_frame, changed[-1].size_after, 9_000)

    if reason is None:
        await apply()
        assert (tmp_path / "copy").read_bytes() == with_room(source.path.read_bytes())
        assert await value(copy) == 4
        assert not copy.is_checking
    else:
        with pytest.raises(Restarted, match=reason):
            await apply()
        assert copy.is_damaged
        assert (tmp_path / "copy").read_bytes() == before


async def test_what_another_did_to_the_file_is_not_covered_up_by_applying(
    copy: Copy, source: Primary, tmp_path: Path
) -> None:
    with (tmp_path / "copy").open("r+b") as file:
        file.seek(5_000)
        file.write(b"x")
    with pytest.raises(Restarted):
        await copy.take(source.commit("CREATE TABLE u (a)"))
    assert copy.is_damaged
    assert await copy.read(COUNT) is None


# --- answering ------------------------------------------------------------------------------------


async def test_a_copy_that_is_not_readable_answers_nothing(copy: Copy) -> None:
    assert await value(copy) == 3
    copy.is_readable = False
    assert await copy.read(COUNT) is None
    assert await copy.read(LONG) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT datetime('now')",
        "SELECT no_such_function(1)",
        "SELECT * FROM missing",
        "SELEC",
        "SELECT 1; SELECT 2",
        "DELETE FROM t",
    ],
)
async def test_what_it_can_not_know_is_left_to_the_primary(copy: Copy, sql: str) -> None:
    assert await copy.read(Statement(sql)) is None
    assert not copy.is_damaged
    assert await value(copy) == 3


async def test_text_that_is_not_utf_8_comes_with_replacement_characters(copy: Copy) -> None:
    rows = await copy.read(Statement("SELECT CAST(x'61ff' AS TEXT)"))
    assert rows is not None
    assert rows.value == "a\ufffd"


async def test_a_long_query_goes_aside_and_the_loop_goes_on(copy: Copy) -> None:
    for _ in range(2):  # the second time it is known before
        reading = asyncio.create_task(copy.read(LONG))
        count = 0
        while not reading.done():
            await asyncio.sleep(0)
            count += 1
        assert count > 20
        rows = await reading
        assert rows is not None
        assert rows.value == 150_000
    assert copy._reader.is_slow(LONG)


async def test_a_query_that_never_ends_is_left_to_the_primary(
    copy: Copy, source: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_reader, "SLOW_S", 0.02)
    async with asyncio.timeout(_PATIENCE_S):
        assert await copy.read(ENDLESS) is None
        assert await copy.take(source.commit("INSERT INTO t VALUES (4)"))
    assert await value(copy) == 4


async def test_one_that_waited_to_read_looks_again_whether_it_may(
    copy: Copy, source: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy._reader, "query_in_thread", held := Held(copy._reader.query_in_thread))
    copy._reader._slow_queries[COUNT.sql] = 0.0
    first = asyncio.create_task(copy.read(COUNT))
    await held.begun.wait()
    taking = asyncio.create_task(copy.take(source.commit("INSERT INTO t VALUES (4)")))
    await turns()
    waiting = asyncio.create_task(copy.read(COUNT))
    await turns()
    copy.is_readable = False
    held.let_go.set()
    async with asyncio.timeout(_PATIENCE_S):
        assert await taking
        assert await waiting is None
        await first


@pytest.mark.parametrize("rows", [1, 300], ids=["small", "large"])
async def test_nothing_is_applied_under_a_reader(
    copy: Copy, source: Primary, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(copy._reader, "query_in_thread", held := Held(copy._reader.query_in_thread))
    copy._reader._slow_queries[COUNT.sql] = 0.0
    reading = asyncio.create_task(copy.read(COUNT))
    await held.begun.wait()
    taking = asyncio.create_task(
        copy.take(source.commit(*["INSERT INTO t VALUES (randomblob(3000))"] * rows))
    )
    await turns()
    assert not taking.done()
    held.let_go.set()
    async with asyncio.timeout(_PATIENCE_S):
        found = await reading
        assert found is not None
        assert found.value == 3
        assert await taking
    assert await value(copy) == 3 + rows


@pytest.mark.parametrize("times", [1, 2])
async def test_nothing_is_applied_under_a_reader_whose_caller_has_gone(
    copy: Copy, source: Primary, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(copy._reader, "query_in_thread", held := Held(copy._reader.query_in_thread))
    copy._reader._slow_queries[COUNT.sql] = 0.0
    reading = asyncio.create_task(copy.read(COUNT))
    await held.begun.wait()
    for _ in range(times):
        reading.cancel()
        await turns()
    taking = asyncio.create_task(copy.take(source.commit("INSERT INTO t VALUES (4)")))
    await turns()
    assert not taking.done()
    held.let_go.set()
    async with asyncio.timeout(_PATIENCE_S):
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await taking
    assert not copy.is_damaged
    assert await value(copy) == 4


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read waits for a change however long it takes, where a slow machine would have the primary asked."""
    monkeypatch.setattr("vox_mesh.store.replica.copy_reader._MAX_WAIT_S", _PATIENCE_S)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_no_one_reads_while_pages_change_though_the_one_who_changes_them_has_gone(
    copy: Copy, source: Primary, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(copy._file, "apply", held := Held(copy._file.apply))
    taking = asyncio.create_task(copy.take(source.commit(*["INSERT INTO t VALUES (randomblob(3000))"] * 300)))
    await held.begun.wait()
    for _ in range(times):
        taking.cancel()
        await turns()
    quick, slow = asyncio.create_task(copy.read(COUNT)), asyncio.create_task(copy.read(LONG))
    await turns()
    assert not quick.done()
    assert not slow.done()
    held.let_go.set()
    async with asyncio.timeout(_PATIENCE_S):
        with pytest.raises(asyncio.CancelledError):
            await taking
        found = await quick
        await slow
    assert found is not None
    assert found.value == 303
    assert not copy.is_damaged


@pytest.mark.usefixtures("patient")
async def test_readers_in_a_tight_loop_see_whole_transactions_only(copy: Copy, source: Primary) -> None:
    pairs = Statement("SELECT count(*), sum(a) FROM t WHERE typeof(a) = 'integer'")
    seen: set[tuple[int, int]] = set()
    ended = asyncio.Event()

    async def read(statement: Statement) -> None:
        while not ended.is_set():
            rows = await copy.read(statement)
            if rows is not None:  # on a slow machine it may take too long here, and be for the primary
                seen.add(tuple(rows[0]))
            await asyncio.sleep(0)

    expected = {(3, 6)}
    readers = [asyncio.create_task(read(pairs)) for _ in range(2)]
    copy._reader._slow_queries[f"{pairs.sql} "] = 0.0
    readers.append(asyncio.create_task(read(Statement(f"{pairs.sql} "))))
    async with asyncio.timeout(_PATIENCE_S):
        for number in range(1, 16):
            blobs = ["INSERT INTO t VALUES (randomblob(3000))"] * (90 if number % 5 == 0 else 1)
            await copy.take(source.commit("INSERT INTO t VALUES (10), (-10)", *blobs))
            expected.add((3 + 2 * number, 6))
            await turns(3)
        ended.set()
        await asyncio.gather(*readers)
    assert seen <= expected
    assert len(seen) > 3


async def test_a_changed_file_is_never_answered_from(copy: Copy, source: Primary, tmp_path: Path) -> None:
    frames: list[WalFrame] = source.commit("INSERT INTO t VALUES (4)")
    assert await value(copy) == 3
    (tmp_path / "copy").write_bytes(source.path.read_bytes())
    assert await copy.read(COUNT) is None
    assert copy.is_damaged
    assert not copy.is_readable
    await copy.start_over(LOG)
    assert not copy.is_damaged
    copy.expect()
    with pytest.raises(NoAnswer):
        await copy.take(frames)


async def test_a_discarded_copy_answers_nothing(copy: Copy, tmp_path: Path) -> None:
    await copy.discard()
    assert await copy.read(COUNT) is None
    assert (tmp_path / "copy").stat().st_size == 0
