"""Rows that neighbours insert by the same statement go together, and end as they would one after another."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import column
from tests.support.store.tables import make_table
from vox_mesh import Answer, Outcome, Script, Statement, Store
from vox_mesh.errors import BadStatement, ConstraintFailed
from vox_mesh.store.rows import Value
from vox_mesh.store.script import WriterId
from vox_mesh.store.write.script_batch import NOTHING_TO_PRUNE, OptimisticBatch
from vox_mesh.store.write.script_statements import merge_inserts, plain_insert

_PLAIN = "INSERT INTO notes (a, b) VALUES (?, ?)"
_WRITER_ID = WriterId("scope", "repository", "writer")


def _insert(*values: Value, sql: str = _PLAIN) -> Script:
    return Script(Statement(sql, values))


@given(
    width=st.integers(1, 40),
    count=st.integers(1, 200),
)
def test_all_rows_are_inserted_in_their_order(width: int, count: int) -> None:
    columns = [f"c{number}" for number in range(width)]
    names, places = ", ".join(columns), ", ".join("?" * width)
    rows = [tuple(range(first, first + width)) for first in range(0, count * width, width)]
    statements = list(merge_inserts(f"INSERT INTO notes ({names}) VALUES ({places})", rows))
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE notes (id INTEGER PRIMARY KEY, {names})")
    for sql, values in statements:
        connection.execute(sql, values)
    assert connection.execute(f"SELECT {names} FROM notes ORDER BY id").fetchall() == rows
    connection.close()
    assert len(statements) <= count // 16 + 7


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO notes (a, b) VALUES (?, 1)",
        "INSERT INTO notes (a, b) VALUES (?1, ?1)",
        "INSERT INTO notes (a, b) VALUES (?, ?), (?, ?)",
        "INSERT INTO notes (a, b) VALUES (?, ?) RETURNING a",
        "INSERT INTO notes (a, b) VALUES (?, ?); DROP TABLE notes",
        "INSERT INTO notes (a, b) VALUES (?, ?) -- and no more",
        "INSERT OR REPLACE INTO notes (a, b) VALUES (?, ?)",
        "INSERT INTO notes (a, b) SELECT ?, ?",
        "UPDATE notes SET a = ?, b = ?",
    ],
)
def test_what_does_more_than_insert_a_row_stays_unchanged(sql: str) -> None:
    assert plain_insert(_insert(1, 2, sql=sql)) is None


def test_a_script_that_does_more_than_that_stays_unchanged() -> None:
    plain, other = Statement(_PLAIN, (1, 2)), Statement("DELETE FROM notes")
    assert plain_insert(Script(plain, plain)) == _PLAIN
    assert plain_insert(Script(plain, other)) is None
    assert plain_insert(Script(plain, answer=Answer("SELECT changes()", columns=("n",)))) is None
    assert plain_insert(_insert(1, 2, 3)) is None  # which is wrong, and is to be reported


def test_neighbours_are_a_statement_for_all() -> None:
    scripts = [_insert(number, None) for number in range(32)]
    request = OptimisticBatch(_WRITER_ID, scripts, NOTHING_TO_PRUNE)
    values = [value for number in range(32) for value in (number, None)]
    assert [list(step.params) for step in request.steps if "notes" in step.sql] == [values]


async def test_each_of_many_has_its_own_verdict(store: Store) -> None:
    table = await make_table(store)
    plain, bad = f"INSERT INTO {table} (id, a) VALUES (?, ?)", f"INSERT INTO {table} (id, b) VALUES (?, ?)"
    scripts = [_insert(number, f"note {number}", sql=plain) for number in range(70)]
    scripts[40:40] = [_insert(7, "taken", sql=plain), _insert(1, 2, 3, sql=plain), _insert(100, 1.5, sql=bad)]
    verdicts = await store.write_all(scripts)
    failed = {at: type(verdict) for at, verdict in enumerate(verdicts) if not isinstance(verdict, Outcome)}
    assert failed == {40: ConstraintFailed, 41: BadStatement}
    assert [verdict.key for verdict in verdicts if isinstance(verdict, Outcome)] == [
        script.key for at, script in enumerate(scripts) if at not in failed
    ]
    assert await column(store, table, "id") == [*range(70), 100]
    assert await column(store, table, "a") == [*(f"note {number}" for number in range(70)), None]
    again = await store.write_all(scripts)
    assert all(verdict.repeated for verdict in again if isinstance(verdict, Outcome))
    assert await column(store, table, "id") == [*range(70), 100]


async def test_values_come_back_as_they_went_in(store: Store) -> None:
    table = await make_table(store)
    values: list[Value] = [2**63 - 1, -0.1, b"\0\xff", None, "ä\0ö", "", 1e308, 0]
    sql = f"INSERT INTO {table} (id, a) VALUES (?, ?)"
    await store.write_all([_insert(number, value, sql=sql) for number, value in enumerate(values)])
    assert await column(store, table, "a") == values
