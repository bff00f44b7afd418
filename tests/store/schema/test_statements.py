"""The SQL files: every statement is found by its name, and can be read by SQLite."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from vox_mesh.store.schema.statements import ddl, named

SQL = Path(__file__).resolve().parents[3] / "sql"
NOUNS = sorted(path.stem for path in SQL.glob("*.sql") if path.stem != "coordination")


def test_the_schema_may_run_any_number_of_times() -> None:
    connection = sqlite3.connect(":memory:")
    for _ in range(2):
        for statement in ddl():
            connection.execute(statement)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert {
        "mesh_schema",
        "script_results",
        "script_answers",
        "lock_generations",
        "node_incarnations",
    } <= tables


def test_every_statement_of_the_schema_is_kept_whole() -> None:
    text = (SQL / "coordination.sql").read_text()
    assert len(ddl()) == text.count("CREATE ")
    assert all(statement.startswith("CREATE ") for statement in ddl())


@pytest.mark.parametrize("noun", NOUNS)
def test_every_named_statement_can_be_prepared(noun: str) -> None:
    connection = sqlite3.connect(":memory:")
    for statement in ddl():
        connection.execute(statement)
    connection.execute("CREATE TABLE numbered (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    statements = named(noun)
    for sql in statements.values():
        if sql.startswith("CREATE "):
            connection.execute(sql)
    assert len(statements) == (SQL / f"{noun}.sql").read_text().count("-- name: ")
    for name, sql in statements.items():
        if sql.startswith("CREATE "):
            continue
        assert "--" not in sql, name
        numbered = [n for n in range(1, 30) if f"?{n}" in sql]
        count = max(numbered) if numbered else sql.count("?")
        for table in ("distributed_locks", "lock_shares") if "HOLDS" in sql else ("",):
            filled = sql.replace("HOLDS", table).replace("IS_CURRENT", "true")
            filled = filled.replace("EARLIEST", "0").replace("LATEST", "0")
            connection.execute(f"EXPLAIN {filled}", [None] * count)
    connection.close()


def test_scope_and_repository_are_part_of_every_key() -> None:
    shared = {"mesh_schema", "refusals", "database_clock"}
    for statement in ddl():
        if not statement.startswith("CREATE TABLE"):
            continue
        table = statement.split()[5]
        if table not in shared:
            keys = re.findall(r"(?:PRIMARY KEY|UNIQUE) \(([^)]*)", statement)
            assert keys, table
            assert all(key.startswith("scope_id, repository_id") for key in keys), table


def test_a_missing_file_is_an_error_of_the_installation() -> None:
    with pytest.raises(FileNotFoundError):
        named("no_such_noun")
