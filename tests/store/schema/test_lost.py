"""What a copy of the database holds and the database itself has lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from vox_mesh.errors import DatabaseFault
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.lost import lost_rows
from vox_mesh.store.schema.schema import ensure_schema

_MESH = ("one", "default")


async def _lost(tmp_path: Path, *before: str, after: str) -> list[tuple[str, str]]:
    """Copy a database with such statements, change it, and compare."""
    engine = MemoryEngine()
    await ensure_schema(engine)
    for sql in before:
        engine._connection.execute(sql)
    with closing(sqlite3.connect(tmp_path / "copy")) as copy:
        engine._connection.backup(copy)
    engine._connection.execute(after)
    try:
        found = lost_rows(tmp_path / "copy", *_MESH, engine.query)
        return [(row.table, row.key) async for row in found]
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("clock_witnesses", "scope_id, repository_id, node_id, incarnation, epoch, seen_ms"),
        ("a2a_receivers", "scope_id, repository_id, receiver_agent, node_id, seen_ms, lease_until_ms"),
    ],
)
async def test_what_only_says_how_things_stand_is_not_lost(tmp_path: Path, table: str, columns: str) -> None:
    row = f"INSERT INTO {table} ({columns}) VALUES ('one', 'default', 'a', 1, 1, 1)"
    assert await _lost(tmp_path, row, after=f"DELETE FROM {table}") == []


async def test_a_table_that_was_made_in_the_lost_time_is_lost_with_its_rows(tmp_path: Path) -> None:
    found = await _lost(
        tmp_path,
        "CREATE TABLE mine (scope_id, repository_id, name TEXT, "
        "PRIMARY KEY (scope_id, repository_id, name)) WITHOUT ROWID",
        "INSERT INTO mine VALUES ('one', 'default', 'x')",
        after="DROP TABLE mine",
    )
    assert found == [("mine", "x")]


async def test_a_row_may_be_known_by_bytes(tmp_path: Path) -> None:
    found = await _lost(
        tmp_path,
        "CREATE TABLE mine (scope_id, repository_id, id BLOB, "
        "PRIMARY KEY (scope_id, repository_id, id)) WITHOUT ROWID",
        "INSERT INTO mine VALUES ('one', 'default', x'00ff'), ('one', 'default', x'01')",
        after="DELETE FROM mine WHERE id = x'00ff'",
    )
    assert found == [("mine", "00ff")]


async def test_a_copy_that_is_damaged_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(b"SQLite format 3\0" + bytes(500))
    engine = MemoryEngine()
    with pytest.raises(DatabaseFault, match="copy can't be compared"):
        _ = [row async for row in lost_rows(copy, *_MESH, engine.query)]
    await engine.close()
