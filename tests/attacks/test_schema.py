"""Objects planted in the database or in a backup: nothing starts on them, and no restore creates them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.store.statements import run
from tests.support.store.stored import STORED, load_stored, stored_file
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Statement
from vox_mesh.errors import BackupRefused, SchemaDiffers
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.runtime.restore import BackupFile, restore
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.backup import back_up
from vox_mesh.store.schema.migrations import migrations
from vox_mesh.store.schema.schema import VERSION, apply_plan, ensure_schema, pending_plan

_DATABASE: Final = ".vox/cache/db/local.db"
_BACKDOOR: Final = "CREATE TRIGGER backdoor AFTER INSERT ON jobs BEGIN UPDATE jobs SET priority = 99; END"
_INDIRECT: Final = (
    "CREATE TRIGGER backdoor AFTER INSERT ON notes BEGIN INSERT OR IGNORE INTO [jobs] (kind) VALUES (1); END"
)
_NEWER: Final = f"INSERT INTO mesh_schema (version, oldest_code) VALUES ({VERSION + 1}, 1)"
_NOTES: Final = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"


@pytest.fixture
async def memory() -> AsyncIterator[Engine]:
    """An empty database in this process."""
    engine = MemoryEngine()
    yield engine
    await engine.close()


async def names(engine: Engine) -> set[str]:
    """The names of all objects."""
    return {row["name"] for row in await engine.query(Statement("SELECT name FROM sqlite_master"))}


@pytest.fixture
def vox(tmp_path: Path) -> VoxCommand:
    """Commands on a file."""
    return VoxCommand.with_home(tmp_path)


# --- at start ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [FILE, MESH, MESH_REPLICA], ids=str)
async def test_no_node_starts_on_a_planted_trigger(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    engine = await open_engine(settings)
    try:
        await ensure_schema(engine)
        await run(engine, _BACKDOOR)
        with pytest.raises(SchemaDiffers, match="trigger backdoor on jobs is not expected") as refused:
            async with Mesh.open(settings):
                pass
        assert "--drop-unexpected" in refused.value.hint
        await run(engine, "DROP TRIGGER backdoor")
        async with Mesh.open(settings):
            pass
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ((_BACKDOOR,), "trigger backdoor on jobs"),
        ((_BACKDOOR.replace("backdoor", "libsql_backdoor"),), "trigger libsql_backdoor on jobs"),
        ((_BACKDOOR.replace("ON jobs", 'ON "JOBS"'),), "trigger backdoor on jobs"),
        ((_NOTES, _INDIRECT), "trigger backdoor on notes"),
        ((_NOTES, _INDIRECT.replace("[jobs]", "/* */'jobs'")), "trigger backdoor on notes"),
        (
            ("CREATE TRIGGER backdoor INSTEAD OF INSERT ON lock_holds BEGIN SELECT 1; END",),
            "trigger backdoor on lock_holds",
        ),
        (
            ("DROP TRIGGER job_comes", _BACKDOOR.replace("backdoor", "job_comes")),
            "trigger job_comes has another definition",
        ),
        (
            ("ALTER TABLE mesh_owner RENAME TO hidden", "CREATE VIEW mesh_owner AS SELECT * FROM hidden"),
            "table mesh_owner is a view",
        ),
        (("CREATE UNIQUE INDEX one_job ON jobs (kind)",), "index one_job on jobs"),
        (("CREATE INDEX picky ON jobs (json_extract(kind, '$.a'))",), "index picky on jobs"),
        (("CREATE INDEX picky ON jobs (kind -> '$.a')",), "index picky on jobs"),
        (("CREATE INDEX picky ON jobs (kind) WHERE json(kind) > 1",), "index picky on jobs"),
        (("ALTER TABLE jobs ADD COLUMN x TEXT AS (lower(kind))",), "column jobs.x"),
        (("ALTER TABLE jobs ADD COLUMN x TEXT CHECK (x <> 'y')",), "column jobs.x"),
        (
            ("CREATE TABLE pins (owner TEXT REFERENCES node_addresses (node_id) ON DELETE RESTRICT)",),
            "table pins refers to node_addresses",
        ),
        (
            (
                "DROP TABLE refusals",
                "CREATE TABLE refusals (reason TEXT \"NOT\" NULL CHECK (reason <> 'refused'))",
            ),
            "refusals",
        ),
    ],
    ids=str,
)
async def test_what_changes_the_mesh_is_found_whatever_its_form(
    memory: Engine, planted: tuple[str, ...], named: str
) -> None:
    await ensure_schema(memory)
    await run(memory, *planted)
    with pytest.raises(SchemaDiffers, match=named):
        await ensure_schema(memory)


async def test_a_faked_newer_version_hides_no_trigger(memory: Engine) -> None:
    await ensure_schema(memory)
    await run(
        memory, _NEWER, "CREATE TABLE of_the_future (a)", "ALTER TABLE jobs ADD COLUMN b TEXT CHECK (b <> '')"
    )
    assert await ensure_schema(memory) == VERSION + 1  # the next release has migrated
    await run(memory, _BACKDOOR)
    with pytest.raises(SchemaDiffers, match="trigger backdoor on jobs is not expected"):
        await ensure_schema(memory)


async def test_objects_of_other_programs_are_no_finding(memory: Engine) -> None:
    await ensure_schema(memory)
    await run(
        memory,
        _NOTES,
        "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)",
        "CREATE TABLE libsql_wasm_func_table (name TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID",
        "CREATE TRIGGER kept AFTER DELETE ON notes BEGIN INSERT INTO notes SELECT 1, state FROM jobs; END",
        "CREATE VIEW open_jobs AS SELECT job_id FROM jobs",
        "CREATE INDEX jobs_mine ON jobs (kind, state DESC)",
        "ALTER TABLE jobs ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none'",
    )
    assert await ensure_schema(memory) == VERSION


@pytest.mark.parametrize("version", [*STORED, *(each.number for each in migrations()[:-1])], ids=str)
async def test_a_trigger_planted_before_a_migration_never_fires(memory: Engine, version: str | int) -> None:
    await load_stored(memory, version if isinstance(version, str) else "v7")
    reached = 7
    while isinstance(version, int) and reached < version:
        plan = await pending_plan(memory.query, reached)
        assert plan is not None
        assert await apply_plan(memory, plan)
        reached = plan.migration.number
    table = "jobs" if "jobs" in await names(memory) else "mesh_schema"
    await run(memory, f"CREATE TRIGGER backdoor AFTER UPDATE ON {table} BEGIN SELECT 1; END")
    before = await memory.query(Statement("SELECT max(version) FROM mesh_schema"))
    with pytest.raises(SchemaDiffers, match="trigger backdoor"):
        await ensure_schema(memory)
    assert list(await memory.query(Statement("SELECT max(version) FROM mesh_schema"))) == list(before)
    await run(memory, "DROP TRIGGER backdoor")
    assert await ensure_schema(memory) == VERSION


async def test_a_trigger_under_a_name_that_sqlite_reserves_is_found(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    async with Mesh.open(settings):
        pass
    with closing(sqlite3.connect(settings.file_path)) as database, database:
        database.execute(_BACKDOOR)
        database.execute("PRAGMA writable_schema = ON")
        hidden = _BACKDOOR.replace("backdoor", "sqlite_stat9")
        row = ("sqlite_stat9", hidden)
        database.execute("UPDATE sqlite_master SET name = ?, sql = ? WHERE name = 'backdoor'", row)
    with pytest.raises(SchemaDiffers, match="trigger sqlite_stat9 on jobs"):
        async with Mesh.open(settings):
            pass


# --- commands ------------------------------------------------------------------------------------


def planted(vox: VoxCommand, *statements: str) -> None:
    """Write to the file behind the command's back."""
    with closing(sqlite3.connect(vox.folder / _DATABASE)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_doctor_and_verify_name_a_planted_trigger_and_one_command_drops_it(vox: VoxCommand) -> None:
    assert vox("db", "init").code == 0
    planted(vox, _BACKDOOR)
    found = {each["check"]: each for each in vox("doctor", "--json").document}
    assert found["schema"]["state"] == "ok"
    assert found["unexpected_objects"]["state"] == "fail"
    assert "trigger backdoor on jobs" in found["unexpected_objects"]["found"]
    assert "--drop-unexpected" in found["unexpected_objects"]["advice"]
    for command in (("oplog", "verify"), ("db", "migrate")):
        ended = vox(*command)
        assert ended.code == 1
        assert "trigger backdoor on jobs is not expected" in ended.err
        assert "Traceback" not in ended.err
    assert vox("db", "migrate", "--drop-unexpected").code == 0
    assert vox("oplog", "verify").code == 0
    assert {each["state"] for each in vox("doctor", "--json").document} == {"ok"}


async def test_a_node_that_runs_reports_a_trigger_when_it_verifies(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    async with Mesh.open(settings) as node:
        assert await node.oplog.verify()
        with closing(sqlite3.connect(settings.file_path)) as database, database:
            database.execute(_BACKDOOR)
        with pytest.raises(SchemaDiffers, match="trigger backdoor on jobs"):
            await node.oplog.verify()


# --- restore -------------------------------------------------------------------------------------


async def backup_with(folder: Path, *statements: str) -> Path:
    """A backup of a mesh into which an attacker wrote."""
    engine = MemoryEngine()
    await ensure_schema(engine)
    await run(engine, "INSERT INTO node_incarnations VALUES ('s', 'r', 'n', 1, 0)", *statements)
    await back_up(engine, folder / "backup.db")
    await engine.close()
    return folder / "backup.db"


async def restored(engine: Engine, path: Path, **options: Any) -> tuple[str, ...]:
    """Restore a file and return what was skipped."""
    with BackupFile(path) as backup:
        return (await restore(engine, backup, timeout=10, **options)).skipped


_HOSTILE: Final = {
    "trigger backdoor on jobs": (_BACKDOOR,),
    "view bait": ("CREATE VIEW bait AS SELECT writefile('/tmp/x', 'y') AS z",),
    "table bait": ("CREATE TABLE bait (a CHECK (randomblob(2)))",),
    "table hook": ("CREATE TABLE hook (a REFERENCES node_addresses (node_id))",),
    "index bait": (_NOTES, "CREATE INDEX bait ON notes (printf('%s', text))"),
    "column jobs.x": ("ALTER TABLE jobs ADD COLUMN x TEXT",),
}


@pytest.mark.parametrize("named", _HOSTILE)
async def test_a_restore_refuses_what_it_does_not_know_and_creates_none_of_it(
    memory: Engine, tmp_path: Path, named: str
) -> None:
    path = await backup_with(tmp_path, *_HOSTILE[named])
    with pytest.raises(BackupRefused, match=named) as refused:
        await restored(memory, path)
    assert "--skip-unknown" in refused.value.hint
    assert not await names(memory) & {"backdoor", "bait", "hook"}
    (skipped,) = await restored(memory, path, skip_unknown=True)
    assert skipped.startswith(named)
    assert not await names(memory) & {"backdoor", "bait", "hook"}
    assert await ensure_schema(memory) == VERSION
    assert (await memory.query(Statement("SELECT count(*) FROM node_incarnations"))).value == 1


async def test_a_known_name_in_a_backup_brings_only_our_definition(memory: Engine, tmp_path: Path) -> None:
    own_trigger = ("DROP TRIGGER job_comes", _BACKDOOR.replace("backdoor", "job_comes"))
    own_view = ("DROP VIEW lock_holds", "CREATE VIEW lock_holds AS SELECT 1 AS x")
    path = await backup_with(tmp_path, *own_trigger, *own_view)
    assert await restored(memory, path) == ()
    assert await ensure_schema(memory) == VERSION


async def test_a_trigger_in_an_old_backup_does_not_run_while_a_copy_is_migrated(
    memory: Engine, tmp_path: Path
) -> None:
    path = stored_file("v7", tmp_path / "old.db")
    with closing(sqlite3.connect(path)) as old, old:
        rows = old.execute("SELECT count(*) FROM mesh_schema").fetchone()[0]
        old.execute("CREATE TRIGGER backdoor AFTER UPDATE ON lock_generations BEGIN DELETE FROM jobs; END")
        old.execute("CREATE TRIGGER backdoor_2 AFTER INSERT ON mesh_schema BEGIN DELETE FROM jobs; END")
        jobs = old.execute("SELECT count(*) FROM jobs").fetchone()[0]
    assert rows
    assert jobs
    assert set(await restored(memory, path, skip_unknown=True)) == {
        "trigger backdoor on lock_generations",
        "trigger backdoor_2 on mesh_schema",
    }
    assert (await memory.query(Statement("SELECT count(*) FROM jobs"))).value == jobs


def test_the_restore_command_names_what_it_refuses(vox: VoxCommand) -> None:
    vox("db", "init")
    vox("db", "backup", "good.db")
    planted_in = vox.folder / "good.db"
    with closing(sqlite3.connect(planted_in)) as backup, backup:
        backup.execute(_BACKDOOR)
    elsewhere = VoxCommand(
        vox.folder,
        **(
            vox.variables
            | {
                "VOX_MESH_HOME": str(vox.folder / "other"),
                "VOX_DB_PATH": str(vox.folder / "other" / "local.db"),
            }
        ),
    )
    refused = elsewhere("db", "restore", "good.db")
    assert refused.code == 1
    assert "trigger backdoor on jobs" in refused.error
    done = elsewhere("db", "restore", "good.db", "--skip-unknown", "--json")
    assert done.code == 0, done
    assert done.document["skipped"] == [{"object": "trigger backdoor on jobs"}]
    assert elsewhere("oplog", "verify").code == 0
