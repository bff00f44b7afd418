"""`vox-mesh db`, run as people run it, on a file and on a real server."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tools.sqld import Server
from vox_mesh.store.schema.schema import VERSION
from vox_mesh.store.schema.tables import mesh_tables
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.spool.spool import Spool


def test_init_creates_the_schema_and_then_finds_it(shared: VoxCommand) -> None:
    first, second = shared("db", "init", "--json").document, shared("db", "init", "--json").document
    assert (first["done"], second["done"]) == ("created", "checked")
    assert first["schema_version"] == VERSION
    assert first["address"]
    assert first["home"] == ("mesh" if "VOX_DB_URL" in shared.variables else "file")


def test_many_can_init_at_once(shared: VoxCommand) -> None:
    commands = [shared.launch("db", "init", "--json") for _ in range(8)]
    ended = [(*command.communicate(timeout=60), command.wait()) for command in commands]
    assert [code for _, _, code in ended] == [0] * 8, ended
    assert all(json.loads(out)["schema_version"] == VERSION for out, _, _ in ended)


def test_init_on_the_memory_home_is_refused(memory: VoxCommand) -> None:
    for command in ("db init", "db backup b.db", "db restore b.db"):
        ended = memory(*command.split())
        assert ended.code == 2
        assert "needs a mesh" in ended.error
        assert "vox-mesh init" in ended.error
    assert list(memory.folder.iterdir()) == []


def test_status_on_the_memory_home_says_that_nothing_is_shared(memory: VoxCommand) -> None:
    assert "memory backend: data ends" in memory("db", "status").out
    assert memory("db", "status", "--json").document["shared"] is False


def test_status_shows_home_versions_rows_spool_and_breaker(shared: VoxCommand) -> None:
    status = shared.having(VOX_DB_CIRCUIT_BREAKER="1")("db", "status", "--json").document
    assert set(status["rows"]) == {table.name for table in mesh_tables()}
    assert status["rows"]["mesh_schema"] == 1
    assert status["schema_version"] == VERSION
    assert status["spool"] == {"depth": 0, "bytes": 0, "oldest_ms": None, "refused": 0}
    assert status["breaker"] == "closed"
    assert status["shared"] is True
    assert "SQLite 3." in status["server"]


def test_status_counts_only_its_own_scope_and_repository(vox: VoxCommand) -> None:
    vox("db", "init")
    with closing(sqlite3.connect(vox.folder / ".vox/cache/db/local.db")) as database, database:
        fences = [("", "default", 1), ("acme", "default", 1), ("", "website", 1)]
        database.executemany("INSERT INTO lock_generations VALUES (?, ?, ?, 0)", fences)
    assert vox("db", "status", "--json").document["rows"]["lock_generations"] == 1


def test_status_tells_of_the_spools_of_all_slots(vox: VoxCommand) -> None:
    for slot in ("1", "a#b?c"):
        folder = vox.folder / ".vox" / "slots" / slot
        folder.mkdir(parents=True)
        spool = Spool(folder / "spool-0.db", 10_000)
        spool.keep([Script(Statement("SELECT 1"), appendable=True)] * 2)
        spool.close()
    status = vox("db", "status", "--json").document
    assert status["spool"]["depth"] == 4
    assert status["spool"]["oldest_ms"] > 0


@pytest.mark.parametrize(("driver", "word"), [("auto", "WebSocket"), ("http", "HTTP"), ("ws", "WebSocket")])
def test_status_names_the_transport(vox: VoxCommand, shared_server: Server, driver: str, word: str) -> None:
    status = vox.at(shared_server).having(VOX_DB_DRIVER=driver)("db", "status", "--json").document
    assert word in status["driver"]


@pytest.mark.parametrize("command", ["init", "status"])
def test_text_is_aligned(shared: VoxCommand, command: str) -> None:
    ended = shared("db", command)
    assert ended.err == ""
    plain = [line for line in ended.out.splitlines() if not line.startswith(" ") and "  " in line]
    width = max(len(line.split()[0]) for line in plain)
    assert all(line[width : width + 2] == "  " and line[width + 2] != " " for line in plain), ended.out


def test_a_backup_of_a_database_without_a_mesh_is_refused(vox: VoxCommand) -> None:
    ended = vox("db", "backup", "b.db")
    assert ended.code == 1
    assert "db init" in ended.error
    assert not (vox.folder / "b.db").exists()


def test_a_backup_never_overwrites(shared: VoxCommand) -> None:
    shared("db", "init")
    (shared.folder / "b.db").write_text("mine")
    ended = shared("db", "backup", "b.db")
    assert ended.code == 1
    assert "b.db exists" in ended.error
    assert (shared.folder / "b.db").read_text() == "mine"


def test_a_backup_into_a_missing_folder_is_refused(shared: VoxCommand) -> None:
    shared("db", "init")
    ended = shared("db", "backup", "nowhere/b.db")
    assert ended.code == 1
    assert "nowhere" in ended.error


def test_a_restore_of_a_missing_file_creates_nothing(vox: VoxCommand) -> None:
    ended = vox("db", "restore", "none.db")
    assert ended.code == 1
    assert "none.db" in ended.error
    assert [path.name for path in vox.folder.rglob("*")] == [".vox"]


def test_a_backup_moves_from_file_to_server_and_back(vox: VoxCommand, server: Server, tmp_path: Path) -> None:
    vox("db", "init")
    with closing(sqlite3.connect(vox.folder / ".vox/cache/db/local.db")) as database, database:
        database.execute("INSERT INTO lock_generations VALUES ('', 'default', 7, 0)")
        database.execute("INSERT INTO node_incarnations VALUES ('', 'default', 'n1', 3, 0)")
    assert vox("db", "backup", "one.db", "--json").document["rows"] == 3
    assert (vox.folder / "one.db").stat().st_mode & 0o777 == 0o600

    moved = vox.at(server)("db", "restore", "one.db", "--json")
    assert (moved.document["fences_raised"], moved.document["incarnations_raised"]) == (1, 1)
    assert "raised 1 fence counters and 1 incarnations" in moved.err
    assert vox.at(server)("db", "backup", "two.db").code == 0

    back = vox.having(VOX_DB_PATH=str(tmp_path / "new" / "local.db"))
    assert back("db", "restore", "two.db").code == 0
    with closing(sqlite3.connect(tmp_path / "new" / "local.db")) as database:
        assert database.execute("SELECT generation FROM lock_generations").fetchall() == [(7 + 2 * 2**32,)]
        assert database.execute("SELECT incarnation FROM node_incarnations").fetchall() == [(3 + 2 * 2**32,)]
    again = back("db", "restore", "two.db")
    assert again.code == 1
    assert "1 in lock_generations" in again.error


def test_logs_are_json_on_stderr_when_asked_for(vox: VoxCommand) -> None:
    vox("db", "init")
    vox("db", "backup", "b.db")
    other = vox.having(VOX_DB_PATH="other.db", VOX_LOG_FORMAT="json")
    (line,) = other("db", "restore", "b.db").err.splitlines()
    event = json.loads(line)
    assert event["level"] == "warning"
    assert "raised 0 fence counters" in event["message"]
