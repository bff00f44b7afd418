"""Reading a file: in its time or not at all, and never by this machine's clock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from vox_mesh import Rows, Statement
from vox_mesh.store.engines.reader import LoopTurn, Reader, TooLong

LONG_S = 60.0
"""A limit that no test reaches."""

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database whose name means something in a URL."""
    path = tmp_path / "copy #1 50%?.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
        connection.execute("INSERT INTO t VALUES (1, 'one'), (2, NULL), (3, x'00ff')")
        connection.execute("CREATE VIEW clock AS SELECT datetime('now') AS at")
    connection.close()
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    """A reader of it."""
    reader = Reader(path)
    yield reader
    reader.close_connections()


@pytest.fixture
def original(path: Path) -> Iterator[Reader]:
    """A reader of the database itself."""
    reader = Reader(path, "mode=ro", is_original=True)
    yield reader
    reader.close_connections()


def one(rows: Rows | None) -> object:
    """The answer's first value; there must be one."""
    assert rows is not None
    value: object = rows.value
    return value


def test_rows_come_with_their_columns_both_ways(reader: Reader) -> None:
    statement = Statement("SELECT id, a FROM t WHERE id <> ? ORDER BY id", (2,))
    quick, slow = reader.query_inline(statement, LONG_S), reader.query_in_thread(statement, LONG_S)
    assert quick is not None
    assert quick == slow
    assert quick.columns == ("id", "a")
    assert [tuple(row) for row in quick] == [(1, "one"), (3, b"\x00\xff")]


@pytest.mark.parametrize("limit_s", [0.0, 0.01])
def test_a_query_that_does_not_end_in_its_time_is_broken_off(reader: Reader, limit_s: float) -> None:
    statement = Statement(ENDLESS)
    with pytest.raises(TooLong):
        reader.query_in_thread(statement, limit_s)
    assert not reader.is_slow(statement), "only a quick try says that"
    with pytest.raises(TooLong):
        reader.query_inline(statement, limit_s)
    assert reader.is_slow(statement)
    short = Statement("SELECT count(*) FROM t")
    assert one(reader.query_inline(short, LONG_S)) == 3, "the kept connection is good for the next query"
    assert not reader.is_slow(short)


def test_only_this_many_long_queries_are_remembered(reader: Reader) -> None:
    for number in range(1_100):
        with pytest.raises(TooLong):
            reader.query_inline(Statement(f"{ENDLESS} WHERE i <> {number}"), 0.0)
    assert len(reader._slow_queries) == 1_024
    assert not reader.is_slow(Statement(f"{ENDLESS} WHERE i <> 0"))
    assert reader.is_slow(Statement(f"{ENDLESS} WHERE i <> 1099"))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT datetime('now')",
        "SELECT DATETIME('NOW')",
        'SELECT datetime("now")',
        "SELECT date(?)",
        "SELECT strftime('%s')",
        "SELECT strftime ( '%Y', 'now')",
        "SELECT julianday()",
        "SELECT time(/* what time is it? */)",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT current_date",
        "SELECT current_time",
        "SELECT unixepoch('subsec')",
        "SELECT id FROM t WHERE a < datetime('now', '-1 day')",
        "SELECT at FROM clock",
        "WITH c AS (SELECT * FROM clock) SELECT count(*) FROM c",
    ],
)
def test_the_time_is_not_reported_by_this_machine(reader: Reader, sql: str) -> None:
    statement = Statement(sql, ("now",) if "?" in sql else ())
    for read in (reader.query_inline, reader.query_inline, reader.query_in_thread):
        assert read(statement, LONG_S) is None
    assert not reader.found_damage


@pytest.mark.parametrize(
    "sql", ["SELECT 'now'", "SELECT a AS time FROM t", "SELECT id AS current FROM t -- datetime('now')"]
)
def test_to_speak_of_time_is_not_to_ask_for_it(reader: Reader, sql: str) -> None:
    assert reader.query_inline(Statement(sql), LONG_S)


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC 1",
        "SELECT no_such_function(1)",
        "SELECT * FROM missing",
        "SELECT ?",
        "SELECT 1; SELECT 2",
        "SELECT 1\0",
        "INSERT INTO t VALUES (9, 9)",
        "DELETE FROM t",
        "UPDATE sqlite_master SET sql = NULL",
        "CREATE TABLE u (a)",
        "CREATE TEMP TABLE u (a)",
        "PRAGMA cache_size = 1",
        "BEGIN",
        "ATTACH ':memory:' AS other",
    ],
)
def test_what_can_not_be_answered_here_is_left_to_the_primary_and_changes_nothing(
    reader: Reader, path: Path, sql: str
) -> None:
    before = path.read_bytes()
    for read in (reader.query_inline, reader.query_in_thread):
        assert read(Statement(sql), LONG_S) is None
    assert path.read_bytes() == before
    assert one(reader.query_inline(Statement("SELECT count(*) FROM t"), LONG_S)) == 3


def test_a_query_about_the_values_of_a_list_is_answered_here(reader: Reader) -> None:
    statement = Statement("SELECT a FROM t WHERE id IN (SELECT value FROM json_each(?))", ("[1, 7]",))
    assert one(reader.query_inline(statement, LONG_S)) == "one"
    assert one(reader.query_in_thread(statement, LONG_S)) == "one"


def test_after_forgetting_the_file_is_read_again(reader: Reader, path: Path) -> None:
    counting = Statement("SELECT count(*) FROM t")
    assert one(reader.query_inline(counting, LONG_S)) == 3
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM t")
    connection.close()
    reader.close_connections()
    assert one(reader.query_inline(counting, LONG_S)) == 0
    reader.close_connections()
    reader.close_connections()


def test_slow_queries_run_in_any_thread_beside_quick_ones(reader: Reader) -> None:
    found: list[object] = []
    statement = Statement("SELECT count(*) FROM t, t, t, t")
    threads = [
        Thread(target=lambda: found.append(one(reader.query_in_thread(statement, LONG_S)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert one(reader.query_inline(statement, LONG_S)) == 81
    for thread in threads:
        thread.join(LONG_S)
    assert found == [81] * 4


def test_a_query_that_was_broken_off_costs_the_next_one_no_preparing(reader: Reader) -> None:
    counting = Statement("SELECT count(*) FROM t")
    with pytest.raises(TooLong):
        reader.query_inline(Statement(ENDLESS), 0.0)
    assert one(reader.query_inline(counting, LONG_S)) == 3
    assert reader._inline is not None
    prepared: list[int] = []

    def note(action: int, *_: str | None) -> int:
        prepared.append(action)
        return sqlite3.SQLITE_OK

    reader._inline.connection.set_authorizer(note)
    assert one(reader.query_inline(counting, LONG_S)) == 3  # a new authorizer makes it prepare once
    prepared.clear()
    for _ in range(3):
        assert one(reader.query_inline(counting, LONG_S)) == 3
    assert prepared == []


def test_a_page_that_cannot_be_right_is_reported(path: Path) -> None:
    page = bytearray(path.read_bytes())
    page[4_096:4_196] = bytes(100)
    path.write_bytes(page)
    reader = Reader(path)
    assert reader.query_inline(Statement("SELECT a FROM t"), LONG_S) is None
    assert reader.found_damage
    reader.close_connections()


def test_going_on_after_a_change_is_not_broken_off_by_the_time_of_an_earlier_query(reader: Reader) -> None:
    short = Statement("SELECT count(*) FROM t")
    for _ in range(1_000):  # how far the steps are counted when the time is over differs from one to the next
        assert one(reader.query_inline(short, LONG_S)) == 3
        reader._until = 0.0
        reader.invalidate()
        reader.revalidate()


def _changed(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as elsewhere:
        elsewhere.execute(sql)
        elsewhere.commit()


def test_aside_a_connection_is_kept_as_long_as_only_pages_change(reader: Reader, path: Path) -> None:
    statement = Statement("SELECT * FROM t WHERE id = 1")
    assert reader.query_in_thread(statement, LONG_S) == Rows(("id", "a"), [(1, "one")])
    (kept,) = reader._thread_connections
    reader.invalidate()
    _changed(path, "UPDATE t SET a = 'uno' WHERE id = 1")
    assert reader.query_in_thread(statement, LONG_S) == Rows(("id", "a"), [(1, "uno")])
    assert reader._thread_connections == [kept]
    reader.invalidate()
    _changed(path, "ALTER TABLE t ADD COLUMN b DEFAULT 'new'")
    assert reader.query_in_thread(statement, LONG_S) == Rows(("id", "a", "b"), [(1, "uno", "new")])
    assert kept not in reader._thread_connections


def test_aside_a_connection_goes_with_the_query_that_was_broken_off(reader: Reader) -> None:
    assert one(reader.query_in_thread(Statement("SELECT count(*) FROM t"), LONG_S)) == 3
    with pytest.raises(TooLong):
        reader.query_in_thread(Statement(ENDLESS), 0.0)
    assert reader._thread_connections == []
    assert one(reader.query_in_thread(Statement("SELECT count(*) FROM t"), LONG_S)) == 3


def test_what_is_forgotten_while_it_answers_is_kept_no_longer(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = reader._take_thread_connection

    def forgotten_meanwhile() -> object:
        taken = take()
        reader.close_connections()
        return taken

    with monkeypatch.context() as patched:
        patched.setattr(reader, "_take_thread_connection", forgotten_meanwhile)
        assert one(reader.query_in_thread(Statement("SELECT count(*) FROM t"), LONG_S)) == 3
    assert reader._thread_connections == []


# --- the database itself ----------------------------------------------------------------------------


def test_where_the_database_itself_is_read_this_machine_tells_the_time(original: Reader) -> None:
    for sql in ("SELECT datetime('now')", "SELECT at FROM clock", "SELECT unixepoch(CURRENT_TIMESTAMP)"):
        assert one(original.query_inline(Statement(sql), LONG_S)) is not None


def test_where_the_database_itself_is_read_its_tables_may_change_at_any_time(
    original: Reader, path: Path
) -> None:
    everything = Statement("SELECT * FROM t WHERE id = 1")
    assert original.query_inline(everything, LONG_S) == Rows(("id", "a"), [(1, "one")])
    with closing(sqlite3.connect(path)) as elsewhere:
        elsewhere.execute("ALTER TABLE t ADD COLUMN b DEFAULT 'new'")
        assert original.query_inline(everything, LONG_S) == Rows(("id", "a", "b"), [(1, "one", "new")])
        elsewhere.execute("UPDATE t SET a = 'another'")
        elsewhere.commit()
    assert original.query_inline(everything, LONG_S) == Rows(("id", "a", "b"), [(1, "another", "new")])


def test_where_the_database_itself_is_read_nothing_is_written(original: Reader) -> None:
    for sql in ("INSERT INTO t VALUES (4, 4)", "PRAGMA user_version = 7", "BEGIN", "ATTACH ':memory:' AS m"):
        assert original.query_inline(Statement(sql), LONG_S) is None


def test_a_query_that_is_answered_soon_aside_is_read_at_once_again(original: Reader) -> None:
    statement = Statement(ENDLESS)
    for _ in range(2):
        with pytest.raises(TooLong):
            original.query_inline(statement, 0.01)
    original.note_duration(statement, 0.02)
    assert original.is_slow(statement)
    original.note_duration(statement, 0.001)
    assert not original.is_slow(statement)


async def test_a_turn_of_the_event_loop_is_not_spent_on_reading_alone() -> None:
    turn = LoopTurn()
    assert turn.has_time
    while turn.has_time:
        pass
    await asyncio.sleep(0)
    assert turn.has_time, "others had their turn"


def test_preparing_a_query_is_no_part_of_its_time(original: Reader) -> None:
    """A query of more than 500 steps and less than 1,000 looks at the clock once: when it has begun."""
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 50)"
    statement = Statement(f"{rows} SELECT count(*), (SELECT a FROM t WHERE id = 1) FROM n")
    assert one(original.query_inline(statement, 0.0)) == 50
    with pytest.raises(TooLong):
        original.query_inline(statement, 0.0)
    assert one(original.query_inline(statement, 0.0)) == 50  # by another connection, which prepares it again
