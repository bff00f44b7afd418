"""Migrations: every database that was ever in use comes to the shape of a new one, with all that is in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.support.running.lengths import a_third
from tests.support.store.statements import run
from tests.support.store.stored import STORED, load_stored, stored_file
from tools.homes import FILE, MESH, MESH_HTTP, MESH_LIBSQL_CLIENT, HomeCase
from tools.sqld import Server
from vox_mesh import JobContext, Mesh, Settings, Statement
from vox_mesh.errors import DatabaseFault, LockHeld, SchemaDiffers
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.runtime.restore import BackupFile, restore
from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Ask, Engine
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema import schema, shape
from vox_mesh.store.schema.migrations import migrations, parse
from vox_mesh.store.schema.schema import VERSION, differences_at, ensure_schema
from vox_mesh.store.schema.shape import (
    Definitions,
    SchemaDifference,
    definitions_at,
    differences,
    expected,
)
from vox_mesh.store.schema.statements import ddl
from vox_mesh.store.schema.tables import TableColumns, quoted, tables_at

_DEADLINE_S: Final = 60.0
_NO_LONGER: Final = "lock_fences"  # its tokens are in `lock_generations`


@pytest.fixture
async def memory() -> AsyncIterator[Engine]:
    """An empty database in this process."""
    engine = MemoryEngine()
    yield engine
    await engine.close()


async def counts(engine: Engine) -> dict[str, int]:
    """How many rows are in each table."""
    tables = await tables_at(engine.query)
    return {
        table.name: (await engine.query(Statement(f"SELECT count(*) FROM {table.quoted}"))).value
        for table in tables
    }


# --- every stored database -----------------------------------------------------------------------


@pytest.mark.parametrize("name", STORED)
async def test_a_stored_database_comes_to_the_shape_of_a_new_one_and_keeps_its_rows(
    memory: Engine, name: str
) -> None:
    await load_stored(memory, name)
    before = await counts(memory)
    before.pop(_NO_LONGER, None)
    assert await ensure_schema(memory) == VERSION
    after = await counts(memory)
    assert after["mesh_schema"] == before.pop("mesh_schema") + len(migrations())
    assert {table: after[table] for table in before} == before
    found = await definitions_at(memory.query)
    assert differences(expected(), found) == []
    assert set(found) == set(expected())


@pytest.mark.parametrize("name", ["v7_early", "v7_middle"])
async def test_what_budgets_have_spent_is_summed_where_it_was_not_kept(memory: Engine, name: str) -> None:
    await load_stored(memory, name)
    spent = (await memory.query(Statement("SELECT total(bu) FROM phrase_ends WHERE agent_id = 'ada'"))).value
    assert spent > 0
    await ensure_schema(memory)
    rows = await memory.query(Statement("SELECT subject, spent_bu FROM budgets"))
    assert [tuple(row) for row in rows] == [("agent:ada", spent)]
    assert (await memory.query(Statement("SELECT threads FROM bar_reports"))).value == 0


async def test_tokens_stay_above_the_ones_that_version_2_counted(memory: Engine) -> None:
    await load_stored(memory, "v2")
    await ensure_schema(memory)
    assert (await memory.query(Statement("SELECT generation FROM lock_generations"))).value >= 41


_WRITTEN: Final = {
    14: "INSERT INTO agent_presence VALUES ('', '', 'ada', 'stored-1', 0, 'lock', 1, 2)",
    15: "UPDATE a2a_messages SET is_ordered = 0",
    16: "INSERT INTO lock_sessions VALUES ('', '', 'request', 'host', 7, 1, 60000)",
    21: "INSERT INTO tempo_incidents VALUES ('', '', 'failover', 1, 'stored-1', NULL, 'op')",
    26: "INSERT INTO job_takes (scope_id, repository_id, job_id, claim_token, agent_id, lease_ms)"
    " VALUES ('', '', 'job', 7, 'ada', 60000)",
    29: "INSERT INTO job_questions VALUES ('', '', 'job', 'op', 'ada', NULL, 1, NULL, NULL, NULL, '', NULL)",
    47: "INSERT INTO job_steps VALUES ('', '', 'job', 1, 1, 'a', 'call', 'done', '', 7, 1, 2, 'l', 'o', '')",
    52: "INSERT INTO conversations VALUES ('', '', 'graph', 'thread', 1)",
    53: "INSERT INTO session_items VALUES (1, '', '', 'session', '{}')",
    54: "INSERT INTO job_waits VALUES ('', '', 'job', 1, 'op', 1, NULL, NULL, NULL, NULL, 0)",
    55: "INSERT INTO job_cleanups VALUES ('', '', 'job')",
    57: "UPDATE jobs SET state = 'pending', attempts = 1, waits = 1, ended_ms = NULL",
    41: "INSERT INTO mcp_tasks VALUES ('', '', 'hash', 'job', 'ada', NULL, 1)",
}
"""What nodes write since each version."""

_DEFAULTS: Final = {
    15: ("SELECT DISTINCT is_ordered FROM a2a_messages", (1,)),
    17: ("SELECT DISTINCT max_interruptions, interruptions FROM jobs", (5, 0)),
    29: ("SELECT count(start_op) FROM job_takes", (0,)),
}
"""What rows of before each version have in its columns."""


async def rows_in(engine: Engine, tables: Iterable[TableColumns]) -> dict[str, list[tuple[object, ...]]]:
    """All rows, in these columns."""
    return {table.name: [tuple(row) for row in await engine.query(Statement(table.rows))] for table in tables}


@pytest.mark.parametrize("version", range(13, VERSION))
async def test_a_later_version_keeps_its_rows_and_old_rows_get_the_values_of_before(
    memory: Engine, version: int
) -> None:
    await load_stored(memory, "v7")
    while (at := (await schema.versions_at(memory.query))[0]) < version:
        plan = await schema.pending_plan(memory.query, at)
        assert plan is not None
        assert await schema.apply_plan(memory, plan)
    await run(memory, *(sql for since, sql in _WRITTEN.items() if since <= version))
    tables = [table for table in await tables_at(memory.query) if table.name != "mesh_schema"]
    before = await rows_in(memory, tables)
    assert all(before[name] for name in ("jobs", "a2a_messages", "distributed_locks"))
    assert await ensure_schema(memory) == VERSION
    assert await rows_in(memory, tables) == before
    for since, (sql, values) in _DEFAULTS.items():
        if since > version:
            assert [tuple(row) for row in await memory.query(Statement(sql))] == [values]


async def use(settings: Settings) -> None:
    """Use every plane of a mesh."""
    async with asyncio.timeout(_DEADLINE_S), Mesh.open(settings) as node:
        lock = await node.locks.acquire("migrated", ttl=60)
        await node.locks.release(lock)
        sent = await node.messages.send("carol", "hello", sender="ada")
        async for message in node.messages.receive("carol"):
            assert message.message_uuid == sent.message_uuid
            await node.messages.ack(message)
            break

        @node.worker.handles("pages.*")
        async def read(context: JobContext) -> str:
            context.log("at it")
            return "done"

        job = await node.jobs.schedule("pages.written", 1)
        async with node.worker.running():
            assert (await node.jobs.wait(job)).state == "succeeded"
        node.oplog.register(OpKind("note"))
        await node.oplog.append("note", {})
        await node.store.write(node.presence.beat())
        assert await node.rhythm.budgets.report() is not None
        await node.rhythm.bar_reporter.reports()


@pytest.mark.parametrize(
    ("case", "name"),
    [
        *(
            (FILE, name)
            for name in ("v1_early", "v2_early", "v3_early", "v4_early", "v5_early", "v6", "v7_early", "v7")
        ),
        *((MESH, name) for name in ("v4_early", "v7_early")),
        (MESH_HTTP, "v5_early"),
        (MESH_LIBSQL_CLIENT, "v7_middle"),
    ],
    ids=str,
)
async def test_a_stored_database_is_migrated_when_it_is_opened_and_works(
    case: HomeCase, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server, scope_id="")
    engine = await open_engine(settings)
    try:
        await load_stored(engine, name)
        await use(settings)
        assert await differences_at(engine.query, VERSION) == []
    finally:
        await engine.close()


async def test_what_was_held_sent_and_scheduled_before_is_there_afterwards(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="")
    engine = await open_engine(settings)
    await load_stored(engine, "v7_early")
    await run(
        engine, "UPDATE distributed_locks SET expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+1 hour')"
    )
    await engine.close()
    async with asyncio.timeout(_DEADLINE_S), Mesh.open(settings) as node:
        with pytest.raises(LockHeld):
            await node.locks.acquire("report", ttl=60)
        assert [message.body for message in await node.messages.inbox("bob")] == ["still there"]

        @node.worker.handles("pages.read")
        async def read(context: JobContext) -> object:
            return context.payload

        (waiting,) = await node.store.read("SELECT job_id FROM jobs WHERE kind = 'pages.read'")
        async with node.worker.running():
            assert (await node.jobs.wait(waiting["job_id"])).state == "succeeded"
        assert all(report.problem is None for report in await node.oplog.verify("stored-1"))


# --- whole, or not at all ------------------------------------------------------------------------


@pytest.mark.parametrize("case", [FILE, MESH, MESH_LIBSQL_CLIENT], ids=str)
async def test_a_migration_that_fails_changes_nothing(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    engine = await open_engine(case.settings(tmp_path, server))
    try:
        await load_stored(engine, "v7_early")
        await run(engine, "CREATE INDEX node_versions ON jobs (kind)")  # the name of a table to come
        before = await definitions_at(engine.query)
        with pytest.raises(
            DatabaseFault, match=r"migration 0008 failed, nothing was changed: .*node_versions"
        ):
            await ensure_schema(engine)
        assert await definitions_at(engine.query) == before
        assert (await engine.query(Statement("SELECT max(version) FROM mesh_schema"))).value == 7
        await run(engine, "DROP INDEX node_versions")
        assert await ensure_schema(engine) == VERSION
    finally:
        await engine.close()


async def test_a_plan_that_no_longer_fits_the_database_is_made_again(
    memory: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load_stored(memory, "v7_early")
    planned = schema.pending_plan
    changes = ["ALTER TABLE budgets ADD COLUMN spent_bu REAL NOT NULL DEFAULT 0"]

    async def plan_and_change(*args: object) -> schema.MigrationPlan | None:
        plan = await planned(*args)  # type: ignore[arg-type]
        if changes:
            await run(memory, changes.pop())
        return plan

    monkeypatch.setattr(schema, "pending_plan", plan_and_change)
    assert await ensure_schema(memory) == VERSION
    assert await differences_at(memory.query, VERSION) == []


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_of_many_that_come_at_once_one_migrates_and_all_go_on(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    engines = [await open_engine(settings) for _ in range(8)]
    try:
        await load_stored(engines[0], "v7_early")
        with caplog.at_level(logging.INFO, "vox_mesh.store.schema.schema"):
            assert await asyncio.gather(*map(ensure_schema, engines)) == [VERSION] * 8
        migrated = [
            record.getMessage() for record in caplog.records if "schema migrated" in record.getMessage()
        ]
        assert len(migrated) == len(migrations())
        assert migrated[0] == "schema migrated: from=7 to=8 migration=baseline"
    finally:
        await asyncio.gather(*(engine.close() for engine in engines))


# --- next to nodes of the version before ---------------------------------------------------------


async def test_rows_as_version_7_writes_them_are_accepted_by_the_newest(memory: Engine) -> None:
    await load_stored(memory, "v7")
    before = {table.name: table for table in await tables_at(memory.query)}
    await ensure_schema(memory)
    for name, table in before.items():
        rows = await memory.query(Statement(f"{table.rows} LIMIT 1"))
        if not rows or name == "job_counts":  # written by triggers alone
            continue
        key = " AND ".join(f"{each} IS ?" for each in map(quoted, table.key))
        batch = Batch()
        batch.add(
            f"DELETE FROM {table.quoted} WHERE {key}",
            [rows[0][table.columns.index(each)] for each in table.key],
        )
        batch.add(table.insert(1), rows[0])
        result = await memory.run(batch.seal())
        assert result.committed, (name, result.error)


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_a_node_of_version_7_ticks_before_during_and_after_the_migration(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    old, new = await open_engine(settings), await open_engine(settings)
    await load_stored(old, "v7")
    (row,) = await old.query(Statement("SELECT * FROM mesh_heartbeats"))
    marks = ", ".join("?" * len(row))
    beat = (
        f"INSERT INTO mesh_heartbeats ({', '.join(row.columns)}) VALUES ({marks}) "
        "ON CONFLICT DO UPDATE SET beats = beats + 1"
    )
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        batch = Batch()
        batch.add(beat, row)
        result = await old.run(batch.seal())
        assert result.committed or (result.error is not None and result.error.is_busy), result.error
        ticks += result.committed

    async def tick_until(done: asyncio.Event) -> None:
        while not done.is_set():
            await tick()

    try:
        async with asyncio.timeout(_DEADLINE_S):
            await tick()
            done = asyncio.Event()
            ticking = asyncio.create_task(tick_until(done))
            assert await ensure_schema(new) == VERSION
            done.set()
            await ticking
            before = ticks
            while ticks == before:
                await tick()
        rows = await new.query(Statement("SELECT beats FROM mesh_heartbeats"))
        assert rows.value == row["beats"] + ticks
    finally:
        await asyncio.gather(old.close(), new.close())


# --- the shape -----------------------------------------------------------------------------------


async def test_the_expected_shape_is_that_of_a_new_database(memory: Engine) -> None:
    await ensure_schema(memory)
    assert await definitions_at(memory.query) == expected()


def changed(old: str, new: str) -> Definitions:
    """The schema with one thing changed in `sql/coordination.sql` alone."""
    text = "\n".join(ddl())
    assert text.count(old) == 1
    shape.expected.cache_clear()
    return {key: sql.replace(old, new) for key, sql in expected().items()}


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "spent_bu REAL NOT NULL DEFAULT 0,",
            "spent_bu REAL NOT NULL DEFAULT 0, extra TEXT,",
            "column budgets.extra",
        ),
        (
            "spent_bu REAL NOT NULL DEFAULT 0,",
            "spent_bu INTEGER NOT NULL DEFAULT 0,",
            "column budgets.spent_bu",
        ),
        ("spent_bu REAL NOT NULL DEFAULT 0,", "spent_bu REAL NOT NULL DEFAULT 1,", "column budgets.spent_bu"),
        ("'kept', 'broken'", "'kept', 'lost', 'broken'", "column help_threads.state"),
        ("WHERE state = 'open'", "WHERE state <> 'resolved'", "index occ_conflicts_open"),
        ("max(generation, OLD.fence_token)", "OLD.fence_token", "trigger lock_tokens_never_fall"),
        ("0 AS is_shared", "FALSE AS is_shared", "view lock_holds"),
    ],
)
async def test_a_schema_that_changed_without_a_migration_is_found(
    memory: Engine, old: str, new: str, named: str
) -> None:
    await load_stored(memory, "v7")
    await ensure_schema(memory)
    (difference,) = differences(changed(old, new), await definitions_at(memory.query))
    assert str(difference).startswith(named)


async def test_what_users_add_is_no_difference(memory: Engine) -> None:
    await ensure_schema(memory)
    await run(
        memory,
        "CREATE TABLE mine (id INTEGER PRIMARY KEY, a)",
        "CREATE INDEX mine_by_a ON mine (a)",
        "CREATE INDEX jobs_mine ON jobs (kind)",
        "CREATE VIEW my_jobs AS SELECT job_id FROM jobs",
        "ALTER TABLE jobs ADD COLUMN note TEXT",
    )
    assert await differences_at(memory.query, VERSION) == []
    assert await ensure_schema(memory) == VERSION


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("DROP TABLE refusals", "table refusals is missing"),
        ("ALTER TABLE budgets DROP COLUMN hlc", "column budgets.hlc is missing"),
        ("DROP TRIGGER job_comes", "trigger job_comes is missing"),
        ("DROP VIEW lock_blockers", "view lock_blockers is missing"),
        ("DROP INDEX jobs_ready", "index jobs_ready is missing"),
    ],
)
async def test_a_database_of_this_version_in_another_shape_is_refused(
    memory: Engine, statement: str, named: str
) -> None:
    await ensure_schema(memory)
    await run(memory, statement)
    with pytest.raises(SchemaDiffers, match=named):
        await ensure_schema(memory)


async def test_a_database_that_was_migrated_further_while_it_was_looked_at_is_not_refused(
    memory: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ensure_schema(memory)

    async def found(ask: Ask, version: int) -> list[SchemaDifference]:
        newer = f"INSERT INTO mesh_schema (version, oldest_code) VALUES ({VERSION + 1}, 1)"
        if version == VERSION:
            await run(memory, "DROP TRIGGER job_comes", newer)
        return await differences_at(ask, version)

    monkeypatch.setattr(schema, "differences_at", found)
    assert await ensure_schema(memory) == VERSION + 1


# --- the files -----------------------------------------------------------------------------------


def test_the_version_is_that_of_the_last_file() -> None:
    assert migrations()[-1].number == VERSION
    assert [each.number for each in migrations()] == sorted({each.number for each in migrations()})


def test_code_that_does_not_know_a_trigger_is_excluded_by_the_migration_that_creates_it() -> None:
    _, *later = migrations()  # all of them are newer than code that refuses unknown triggers
    for each in later:
        if any(change.sql.startswith("CREATE TRIGGER") for change in each.changes):
            assert each.oldest_code == each.number, each.file_name


def test_a_file_says_what_its_statements_need() -> None:
    migration = parse(
        "0042_example.sql",
        "-- Why.\n-- oldest-code: 41\n-- if-missing: a.b\nALTER TABLE a ADD COLUMN b;\n"
        "-- if: 1 = 1\nUPDATE a SET b = 1; -- here\n"
        "CREATE TRIGGER t AFTER INSERT ON a\nBEGIN\n    DELETE FROM a;\nEND;\n",
    )
    assert (migration.number, migration.name, migration.oldest_code) == (42, "example", 41)
    assert [change.condition is None for change in migration.changes] == [False, False, True]
    assert migration.changes[2].sql == "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM a; END"


@pytest.mark.parametrize(
    ("name", "text"),
    [("42_example.sql", "SELECT 1;"), ("0042.sql", "SELECT 1;"), ("0042_example.sql", "SELECT 1")],
)
def test_a_file_that_is_not_a_migration_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse(name, text)


# --- backups of earlier versions -----------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("name", a_third(STORED))
async def test_a_backup_of_an_earlier_version_is_restored_as_if_it_had_been_migrated(
    memory: Engine, name: str, tmp_path: Path
) -> None:
    migrated = MemoryEngine()
    await load_stored(migrated, name)
    await ensure_schema(migrated)
    with BackupFile(stored_file(name, tmp_path / "old.db")) as backup:
        await restore(memory, backup, timeout=10)
    assert await ensure_schema(memory) == VERSION
    assert set(await definitions_at(memory.query)) == set(expected())
    there, here = await counts(migrated), await counts(memory)
    raised = {"mesh_schema", "lock_shares"}
    assert {name: count for name, count in here.items() if name not in raised} == {
        name: count for name, count in there.items() if name not in raised
    }
    for kept in (
        "SELECT subject, spent_bu FROM budgets",
        "SELECT kind, state, jobs FROM job_counts",
    ):
        assert list(await memory.query(Statement(kept))) == list(await migrated.query(Statement(kept)))
    await migrated.close()
