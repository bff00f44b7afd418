"""What optimistic writes take from a caller: checked names, one row's key, nothing that ends up in SQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.oplog.rivals import MEMORIES, at, memory, row
from tests.support.store.tables import make_table
from tools.homes import MEMORY
from vox_mesh import DeferToAgent, Merge, Mesh, Script, Statement, TakeRight, Written
from vox_mesh.errors import BadStatement, BadValue
from vox_mesh.node import MeshNode
from vox_mesh.store.schema.statements import ddl
from vox_mesh.store.schema.tables import mesh_tables

_EVIL = 'x"; DROP TABLE memories; --'


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node on the memory home."""
    async with Mesh.open(MEMORY.settings(tmp_path, None, tick="1h")) as node:
        yield node


@pytest.mark.parametrize("name", [table.name for table in mesh_tables()])
async def test_tables_of_the_mesh_are_refused_but_for_those_of_agents(local: MeshNode, name: str) -> None:
    if name in (MEMORIES, "agent_sessions"):
        return
    for spelling in (name, name.upper(), name.title()):
        with pytest.raises(BadValue, match="belongs to the mesh itself"):
            await local.occ.write(spelling, {"scope_id": "x"}, {}, None)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (_EVIL, "table name must be"),
        ("", "table name must be"),
        ("memories ", "table name must be"),
        ("main.memories", "table name must be"),
        ("nowhere", "not found"),
        ("MEMORIES", "not found"),
        ("sqlite_schema", "has no column written_at"),
        ("a_view", "not found"),
    ],
)
async def test_what_is_no_table_of_the_callers_is_refused(local: MeshNode, table: str, fault: str) -> None:
    await local.store.write(Script(Statement("CREATE VIEW a_view AS SELECT * FROM memories")))
    for call in (
        local.occ.read(table, at("a")),
        local.occ.write(table, at("a"), {}, None),
        local.occ.update(table, at("a"), lambda now: {}),
    ):
        with pytest.raises(BadValue, match=fault):
            await call


@pytest.mark.parametrize("column", [_EVIL, "", "nothing", "CONTENT", 'content" = 1 --', "rowid"])
async def test_a_column_that_the_table_has_not_is_refused_wherever_it_stands(
    local: MeshNode, column: str
) -> None:
    made = await memory(local, "a", content="one")
    for key, values, base in (
        (at("a"), {column: 1}, made),
        (at("a"), {}, made | {column: 1}),
        (at("a") | {column: 1}, {}, made),
    ):
        with pytest.raises(BadValue, match="no column"):
            await local.occ.write(MEMORIES, key, values, base)
    with pytest.raises(BadValue, match="no column"):
        await local.occ.update(MEMORIES, at("a"), lambda now: {column: 1})
    assert await row(local, "a") == made


@pytest.mark.parametrize(
    "key",
    [{}, {"agent_id": "a"}, {"memory_key": None}, {"scope_id": "x", "memory_key": "a"}, {"written_at": "a"}],
)
async def test_what_does_not_name_one_row_is_refused(local: MeshNode, key: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="key of table memories must be") as outcome:
        await local.occ.read(MEMORIES, key)
    assert "memory_key" in outcome.value.hint


@pytest.mark.parametrize(
    "values",
    [
        {"written_at": "x"},
        {"memory_key": "b"},
        {"scope_id": "x"},
        {"repository_id": "x"},
        {"written_at": None},
    ],
)
async def test_key_scope_and_version_are_not_a_callers_to_write(
    local: MeshNode, values: dict[str, Any]
) -> None:
    made = await memory(local, "a", content="one")
    for base in (made, None):
        with pytest.raises(BadValue, match="can't be written"):
            await local.occ.write(MEMORIES, at("a"), values, base)
    assert await row(local, "a") == made


@pytest.mark.parametrize(
    ("base", "fault"),
    [
        ({}, "base must contain written_at"),
        ({"content": "one"}, "base must contain written_at"),
        ({"written_at": 5}, "base must contain written_at"),
        ({"memory_key": "b", "written_at": "x"}, "base must be the row with this key"),
    ],
)
async def test_a_base_that_says_nothing_of_this_row_is_refused(
    local: MeshNode, base: dict[str, Any], fault: str
) -> None:
    with pytest.raises(BadValue, match=fault):
        await local.occ.write(MEMORIES, at("a"), {}, base)


@pytest.mark.parametrize("value", [{"a": 1}, [1], 2**63, float("nan"), object()])
async def test_a_value_that_no_column_can_hold_is_refused(local: MeshNode, value: Any) -> None:
    with pytest.raises(BadValue):
        await local.occ.write(MEMORIES, at("a"), {"content": value}, None)
    with pytest.raises(BadValue):
        await local.occ.read(MEMORIES, {"memory_key": value})


@pytest.mark.parametrize(
    "strategy",
    [
        Merge(Merge()),  # type: ignore[arg-type]
        DeferToAgent(""),
        Merge(DeferToAgent("")),
        TakeRight,
        None,
    ],
)
async def test_what_is_no_strategy_is_refused_before_anything_is_written(
    local: MeshNode, strategy: Any
) -> None:
    with pytest.raises(BadValue):
        await local.occ.write(MEMORIES, at("a"), {}, None, strategy=strategy)
    assert await local.occ.read(MEMORIES, at("a")) is None


async def test_a_base_may_tell_whose_row_it_is_and_a_truth_value_is_a_number(local: MeshNode) -> None:
    await memory(local, "a", importance=True)
    rows = await local.store.read("SELECT * FROM memories")
    done = await local.occ.write(MEMORIES, at("a"), {"importance": False}, rows[0].as_dict())
    assert isinstance(done, Written)
    assert (await row(local, "a"))["importance"] == 0


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ("id TEXT PRIMARY KEY, n", "written_at"),
        ("id TEXT PRIMARY KEY, written_at INTEGER", "written_at"),
        ('id TEXT PRIMARY KEY, "a b", written_at TEXT', "column names must be"),
        ("id TEXT, written_at TEXT", "a primary key, which it lacks"),
    ],
)
async def test_a_table_whose_rows_have_no_version_or_key_is_refused(
    local: MeshNode, columns: str, fault: str
) -> None:
    table = await make_table(local.store, columns)
    with pytest.raises(BadValue, match=fault):
        await local.occ.read(table, {"id": "a"})


async def test_a_key_is_also_what_a_unique_index_says_and_only_where_it_holds_for_all(
    local: MeshNode,
) -> None:
    table = await make_table(local.store, "id INTEGER PRIMARY KEY, a, b, c, written_at TEXT")
    for index in ("(a, b)", "(c) WHERE c > 0", "(lower(c))"):
        sql = f"CREATE UNIQUE INDEX {table}_{len(index)} ON {table} {index}"
        await local.store.write(Script(Statement(sql)))
    assert isinstance(await local.occ.write(table, {"a": 1, "b": 2}, {"c": 3}, None), Written)
    assert (await local.occ.read(table, {"id": 1})) == (await local.occ.read(table, {"b": 2, "a": 1}))
    for key in ({"a": 1}, {"c": 3}, {"a": 1, "b": 2, "c": 3}):
        with pytest.raises(BadValue, match="key of table"):
            await local.occ.read(table, key)


async def test_a_table_that_changes_is_looked_at_again(local: MeshNode) -> None:
    table = await make_table(local.store, "id TEXT PRIMARY KEY, a, written_at TEXT")
    await local.occ.write(table, {"id": "x"}, {"a": 1}, None)
    await local.store.write(Script(Statement(f"ALTER TABLE {table} ADD COLUMN b")))
    assert isinstance(await local.occ.update(table, {"id": "x"}, lambda now: {"b": 2}), Written)
    await local.store.write(Script(Statement(f"ALTER TABLE {table} DROP COLUMN a")))
    with pytest.raises(BadStatement):
        await local.occ.read(table, {"id": "x"})
    now = await local.occ.read(table, {"id": "x"})
    assert now is not None
    assert now.keys() == {"id", "b", "written_at"}


def test_the_schema_has_the_tables_of_agents() -> None:
    assert {MEMORIES, "agent_sessions"} <= {table.name for table in mesh_tables()}
    assert any("occ_conflicts" in statement for statement in ddl())
