"""`vox-mesh db migrate`, and what other commands say of a database that is behind or in another shape."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.store.stored import load_stored, stored_file
from tools.sqld import Server
from vox_mesh import load_settings
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.store.schema.migrations import migrations
from vox_mesh.store.schema.schema import VERSION

_PENDING = [{"migration": f"{each.number:04d}_{each.name}"} for each in migrations()]
_DATABASE = ".vox/cache/db/local.db"


@pytest.fixture(params=["file", "server"])
def behind(request: pytest.FixtureRequest, vox: VoxCommand) -> VoxCommand:
    """The command on a database of version 7, in its first shape."""
    if request.param == "file":
        stored_file("v7_early", vox.folder / _DATABASE)
        return vox
    server: Server = request.getfixturevalue("server")

    async def load() -> None:
        settings = load_settings(_env_file=None, enabled=True, db_url=server.url, db_token=server.token)
        engine = await open_engine(settings)
        await load_stored(engine, "v7_early")
        await engine.close()

    asyncio.run(load())
    return vox.at(server)


@pytest.fixture
def current(vox: VoxCommand) -> VoxCommand:
    """The command on a file of this version."""
    vox("db", "init")
    return vox


def changed(vox: VoxCommand, *statements: str) -> None:
    """Change a file behind the command's back."""
    with closing(sqlite3.connect(vox.folder / _DATABASE)) as database, database:
        for statement in statements:
            database.execute(statement)


def schema_check(vox: VoxCommand) -> dict[str, str]:
    """What the doctor says of the schema."""
    (found,) = [each for each in vox("doctor", "--json").document if each["check"] == "schema"]
    return dict(found)


def test_one_can_look_first_and_then_migrate(behind: VoxCommand) -> None:
    found = behind("db", "migrate", "--status", "--json").document
    assert (found["state"], found["schema_version"], found["code_version"]) == ("behind", 7, VERSION)
    assert found["pending"] == _PENDING
    steps = behind("db", "migrate", "--dry-run", "--json").document
    statements = [step["statement"] for step in steps]
    assert "ALTER TABLE bar_reports ADD COLUMN threads INTEGER NOT NULL DEFAULT 0" in statements
    assert not any(statement.startswith("CREATE TABLE IF NOT EXISTS jobs ") for statement in statements)
    check = schema_check(behind)
    assert check["state"] == "warn"
    assert check["found"] == f"version 7, this code migrates it to {VERSION}"
    assert "vox-mesh db migrate" in check["advice"]
    assert behind("db", "migrate", "--status", "--json").document["schema_version"] == 7, "it only looked"

    ended = behind("db", "migrate", "--json")
    assert ended.document["from_version"] == 7
    assert ended.document["schema_version"] == VERSION
    assert ended.document["applied"] == _PENDING
    assert "schema migrated: from=7 to=8" in ended.err
    assert behind("db", "migrate", "--dry-run", "--json").document == []
    after = behind("db", "migrate", "--status", "--json").document
    assert (after["state"], after["differences"], after["pending"]) == ("current", [], [])
    assert [each["version"] for each in after["applied"]] == [7, *(each.number for each in migrations())]
    assert schema_check(behind) == {
        "check": "schema",
        "state": "ok",
        "found": f"version {VERSION}",
        "advice": "",
    }


def test_any_command_migrates_and_says_so(behind: VoxCommand) -> None:
    ended = behind("nodes", "--json")
    assert ended.code == 0
    assert "info: schema migrated: from=7 to=8 migration=baseline" in ended.err


def test_of_processes_that_start_at_once_one_migrates(behind: VoxCommand) -> None:
    commands = [behind.launch("db", "status", "--json") for _ in range(6)]
    ended = [(*command.communicate(timeout=60), command.wait()) for command in commands]
    assert [code for _, _, code in ended] == [0] * 6, ended
    assert all(json.loads(out)["schema_version"] == VERSION for out, _, _ in ended)
    assert sum(str(err).count("schema migrated: from=7") for _, err, _ in ended) == 1


def test_what_is_missing_is_named_by_all_and_created_again(current: VoxCommand) -> None:
    changed(current, "DROP TRIGGER job_comes", "DROP INDEX jobs_ready")
    check = schema_check(current)
    assert check["state"] == "fail"
    assert "index jobs_ready is missing; trigger job_comes is missing" in check["found"]
    assert check["advice"] == "run `vox-mesh db migrate`"
    status = current("db", "status", "--json")
    assert status.code == 1
    assert "db migrate --status" in status.err
    missing = [{"difference": f"{name} is missing"} for name in ("index jobs_ready", "trigger job_comes")]
    assert status.document["differences"] == missing
    assert current("db", "migrate", "--status", "--json").document["state"] == "differs"
    assert [step["migration"] for step in current("db", "migrate", "--dry-run", "--json").document] == [
        "repair"
    ] * 2

    ended = current("db", "migrate", "--json").document
    assert [each["name"] for each in ended["repaired"]] == ["jobs_ready", "job_comes"]
    assert current("db", "status", "--json").document["differences"] == []


def test_a_column_that_is_missing_is_named_and_left_to_people(current: VoxCommand) -> None:
    changed(current, "ALTER TABLE budgets DROP COLUMN hlc")
    check = schema_check(current)
    assert check["found"] == f"version {VERSION}, but column budgets.hlc is missing"
    assert check["advice"].startswith("restore a backup")
    ended = current("db", "migrate")
    assert ended.code == 1
    assert "column budgets.hlc is missing" in ended.err
    refused = current("nodes")
    assert refused.code == 1
    assert "column budgets.hlc is missing" in refused.error


def test_a_database_of_newer_code_is_left_alone(current: VoxCommand) -> None:
    changed(current, f"INSERT INTO mesh_schema (version, oldest_code) VALUES ({VERSION + 1}, {VERSION + 1})")
    assert current("db", "migrate", "--status", "--json").document["state"] == "too_new"
    ended = current("db", "migrate")
    assert ended.code == 2
    assert "upgrade vox-mesh" in ended.error


def test_status_and_dry_run_exclude_each_other(current: VoxCommand) -> None:
    assert current("db", "migrate", "--status", "--dry-run").code == 2


def test_it_is_refused_where_nothing_is_kept(memory: VoxCommand, tmp_path: Path) -> None:
    assert memory("db", "migrate").code == 2
