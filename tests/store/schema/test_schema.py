"""The schema: made by the first process, and shared by code of several versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.store.statements import run
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Answer, Role, Script, Statement, Store, open_store
from vox_mesh.errors import SchemaTooNew
from vox_mesh.model.base.backends import Backend
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.schema import VERSION, ensure_schema
from vox_mesh.store.script import WriterId


@pytest.fixture(params=["memory", "file", "mesh"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    """An empty database on each home: on the mesh, a server of the test's own."""
    if request.param == "memory":
        engine: Engine = MemoryEngine()
    else:
        case = FILE if request.param == "file" else MESH
        server: Server | None = request.getfixturevalue("server") if case is MESH else None
        engine = await open_engine(case.settings(tmp_path, server))
    yield engine
    await engine.close()


async def test_it_is_made_once_and_found_afterwards(engine: Engine) -> None:
    assert [await ensure_schema(engine) for _ in range(3)] == [VERSION] * 3
    rows = await engine.query(Statement("SELECT version, oldest_code FROM mesh_schema"))
    assert [tuple(row) for row in rows] == [(VERSION, 1)]


async def test_a_half_made_schema_is_completed(engine: Engine) -> None:
    await ensure_schema(engine)
    await run(engine, "DROP TABLE refusals", "DELETE FROM mesh_schema")
    assert await ensure_schema(engine) == VERSION
    assert len(await engine.query(Statement("SELECT * FROM refusals"))) == 0


async def test_a_newer_schema_that_needs_newer_code_is_refused_with_one_clear_line(engine: Engine) -> None:
    await ensure_schema(engine)
    newer, needed = VERSION + 2, VERSION + 1
    await run(engine, f"INSERT INTO mesh_schema (version, oldest_code) VALUES ({newer}, {needed})")
    with pytest.raises(SchemaTooNew) as refused:
        await ensure_schema(engine)
    line = refused.value.line
    assert "\n" not in line
    parts = (f"version {newer}", f"version {needed}", f"version {VERSION}", "upgrade vox-mesh")
    assert all(part in line for part in parts)


async def test_old_code_keeps_working_on_a_newer_compatible_schema(engine: Engine) -> None:
    await ensure_schema(engine)
    await run(
        engine,
        f"INSERT INTO mesh_schema (version, oldest_code) VALUES ({VERSION + 1}, 1)",
        "ALTER TABLE script_results ADD COLUMN region TEXT NOT NULL DEFAULT 'here'",
        "ALTER TABLE script_answers ADD COLUMN checked INTEGER",
        "ALTER TABLE lock_generations ADD COLUMN note",
        "CREATE TABLE later (id INTEGER PRIMARY KEY, a REFERENCES script_results (script_key))",
        "CREATE UNIQUE INDEX later_keys ON script_results (script_key)",
    )
    store = Store(Backend.SERVER, engine, WriterId("", "default", "old"), timeout=10)
    await store.begin()
    await store.write(Script(Statement("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")))
    assert (await store.status()).schema_version == VERSION + 1
    script = Script(
        Statement("INSERT INTO t (a) VALUES ('x')"), answer=Answer("SELECT id, a FROM t", columns=("id", "a"))
    )
    first = await store.write(script)
    again = await store.write(script)
    assert again.repeated
    assert again.rows == first.rows
    failing = Script(Statement("INSERT INTO t (id) VALUES (1)"))
    verdicts = await store.write_all([failing, Script(Statement("INSERT INTO t (id) VALUES (2)"))])
    assert [isinstance(verdict, Exception) for verdict in verdicts] == [True, False]
    assert len(await store.read("SELECT id FROM t")) == 2
    await store._combiner.close(5)


@pytest.mark.parametrize("role", Role)
async def test_a_store_on_a_schema_that_is_too_new_does_not_open(role: Role, tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    engine = await open_engine(settings)
    await ensure_schema(engine)
    await run(engine, f"INSERT INTO mesh_schema (version, oldest_code) VALUES ({VERSION + 1}, {VERSION + 1})")
    await engine.close()
    with pytest.raises(SchemaTooNew):
        await open_store(settings, role)
    # And it let go of everything: the slot is free for the next try.
    with pytest.raises(SchemaTooNew):
        await open_store(settings.model_copy(update={"node_id": "1"}), role)


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_stores_that_open_at_the_same_moment_all_find_the_schema(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    stores = await asyncio.gather(*(open_store(settings) for _ in range(16)))
    try:
        await asyncio.gather(*(store.read("SELECT * FROM script_results") for store in stores))
        versions = [(await store.status()).schema_version for store in stores]
        assert versions == [VERSION] * 16
    finally:
        await asyncio.gather(*(store.close() for store in stores))
