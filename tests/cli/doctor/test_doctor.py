"""`vox-mesh doctor`: what it finds, on real homes that are in order and not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, VoxCommand
from tools.sqld import Server, free_port
from vox_mesh.cli.doctor.checks import CheckState
from vox_mesh.cli.doctor.database_checks import judge_clock
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.spool.spool import Spool


def _by_check(ended: Ended) -> dict[str, dict[str, Any]]:
    findings = ended.document
    assert all(set(finding) == {"check", "state", "found", "advice"} for finding in findings)
    assert all(finding["advice"] for finding in findings if finding["state"] == "warn")
    return {finding["check"]: finding for finding in findings}


def test_nothing_is_wrong_with_a_fresh_home(shared: VoxCommand) -> None:
    assert shared("db", "init").code == 0
    ended = shared("doctor", "--json")
    assert {name: each["state"] for name, each in _by_check(ended).items() if each["state"] != "ok"} == {}
    assert ended.code == 0
    assert ended.err == ""


def test_the_checks_of_a_server_are_all_made(vox: VoxCommand, shared_server: Server) -> None:
    vox.at(shared_server)("db", "init")
    found = _by_check(vox.at(shared_server)("doctor", "--json"))
    assert {"settings", "home", "reachability", "anonymous_access", "write_access", "clock"} <= set(found)
    assert found["file_access"]["state"] == "ok"
    assert {"server_flags", "disk_space", "file_permissions", "spool", "replica_mark"} <= set(found)
    assert " ms" in found["reachability"]["found"]


def test_text_has_a_line_for_each_check_and_its_advice(vox: VoxCommand) -> None:
    ended = vox("doctor")
    assert ended.code == 0
    lines = ended.out.splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith("warn   home"))
    assert lines[place + 1].strip() == "-> run `vox-mesh db init`"
    assert not any((vox.folder / ".vox").iterdir())  # looking creates nothing


def test_a_server_without_auth_is_reported(vox: VoxCommand) -> None:
    with Server(auth=False) as server:
        ended = vox.at(server)("doctor", "--json")
    assert _by_check(ended)["anonymous_access"]["state"] == "warn"
    assert ended.code == 0


def test_a_server_that_checkpoints_on_commit_is_reported(vox: VoxCommand) -> None:
    with Server(flags=()) as server:
        found = _by_check(vox.at(server)("doctor", "--json"))
    assert found["server_flags"]["state"] == "warn"
    assert "--checkpoint-interval-s 60" in found["server_flags"]["advice"]


def test_a_server_that_gives_access_to_its_files_fails(vox: VoxCommand) -> None:
    with Server(has_file_access=True) as server:
        ended = vox.at(server)("doctor", "--json")
    assert _by_check(ended)["file_access"]["state"] == "fail"
    assert ended.code == 1


@pytest.mark.parametrize("driver", ["ws", "http", "libsql-client"])
def test_a_token_that_may_only_read_fails(vox: VoxCommand, server: Server, driver: str) -> None:
    vox.at(server)("db", "init")
    reader = vox.at(server, server.token_with({"a": "ro"})).having(VOX_DB_DRIVER=driver)
    ended = reader("doctor", "--json")
    found = _by_check(ended)
    assert ended.code == 1
    assert {name for name, each in found.items() if each["state"] == "fail"} == {"write_access"}


def test_trying_to_write_leaves_nothing_behind(shared: VoxCommand) -> None:
    shared("db", "init")
    before = shared("db", "backup", "before.db", "--json").document
    shared("doctor")
    after = shared("db", "backup", "after.db", "--json").document
    assert (before["tables"], before["rows"]) == (after["tables"], after["rows"])


@pytest.mark.parametrize("driver", ["ws", "http", "libsql-client"])
def test_a_wrong_token_fails(vox: VoxCommand, shared_server: Server, driver: str) -> None:
    ended = vox.at(shared_server, "eyJ.wrong.token").having(VOX_DB_DRIVER=driver)("doctor", "--json")
    assert ended.code == 1
    assert _by_check(ended)["reachability"]["state"] == "fail"
    assert "VOX_DB_TOKEN" in _by_check(ended)["reachability"]["advice"]


@pytest.mark.parametrize("driver", ["ws", "http", "libsql-client"])
def test_a_dead_port_ends_with_3_and_the_other_checks_are_made(vox: VoxCommand, driver: str) -> None:
    away = vox.having(VOX_DB_URL=f"http://127.0.0.1:{free_port()}", VOX_DB_DRIVER=driver)
    ended = away("doctor", "--json")
    found = _by_check(ended)
    assert ended.code == 3
    assert found["reachability"]["state"] == "fail"
    assert found["disk_space"]["state"] in ("ok", "warn")
    assert "clock" not in found


def test_misspelt_variables_are_reported(vox: VoxCommand) -> None:
    (vox.folder / ".env").write_text("VOX_DB_TOKN=eyJsecret\n")
    ended = vox.having(VOX_DB_ULR="libsql://x", VOX_ZEBRA="1")("doctor", "--json")
    finding = _by_check(ended)["settings"]
    assert finding["state"] == "warn"
    assert "did you mean VOX_DB_URL instead of VOX_DB_ULR?" in finding["advice"]
    assert "did you mean VOX_DB_TOKEN instead of VOX_DB_TOKN?" in finding["advice"]
    assert "VOX_ZEBRA" in finding["found"]
    assert "eyJsecret" not in ended.out


def test_a_database_that_is_set_but_not_enabled_is_reported(memory: VoxCommand) -> None:
    found = _by_check(memory.having(VOX_DB_URL="libsql://my-db.turso.io")("doctor", "--json"))
    assert found["settings"]["state"] == "warn"
    assert "VOX_MESH_ENABLED=1" in found["settings"]["advice"]


def test_files_that_others_can_read_are_reported(vox: VoxCommand) -> None:
    vox("db", "init")
    database = Path(".vox/cache/db/local.db")
    (vox.folder / database).chmod(0o644)
    finding = _by_check(vox("doctor", "--json"))["file_permissions"]
    assert finding["state"] == "warn"
    assert finding["advice"] == f"run `chmod go-rwx {database}`"


def test_a_spool_that_waits_is_reported_and_so_is_one_that_was_refused(vox: VoxCommand) -> None:
    vox("db", "init")
    slots = vox.folder / ".vox" / "slots"
    (slots / "1").mkdir(parents=True, mode=0o700)
    spool = Spool(slots / "1" / "spool-0.db", 10_000)
    spool.keep([Script(Statement("SELECT 1"), appendable=True)] * 2)
    waiting = _by_check(vox("doctor", "--json"))["spool"]
    assert (waiting["state"], waiting["found"].split(",")[0]) == ("warn", "2 entries pending")
    spool.finish(1, [(1, "no")])
    refused = _by_check(vox("doctor", "--json"))["spool"]
    assert (refused["state"], refused["found"].split(",")[0]) == ("warn", "1 entries refused by the database")
    spool.close()


def test_a_damaged_spool_fails(vox: VoxCommand) -> None:
    (vox.folder / ".vox" / "slots" / "1").mkdir(parents=True)
    (vox.folder / ".vox" / "slots" / "1" / "spool-0.db").write_text("no database" * 100)
    ended = vox("doctor", "--json")
    assert ended.code == 1
    assert _by_check(ended)["spool"]["state"] == "fail"


def test_a_replica_in_the_place_of_the_database_fails(vox: VoxCommand) -> None:
    vox("db", "init")
    (vox.folder / ".vox/cache/db/local.db.mark").touch()
    ended = vox("doctor", "--json")
    assert ended.code == 1
    assert _by_check(ended)["home"]["state"] == "fail"


def test_a_mark_without_its_replica_is_reported(vox: VoxCommand, shared_server: Server) -> None:
    mark = vox.folder / ".vox/cache/db/local.db.replica-1.mark"
    mark.parent.mkdir(parents=True)
    mark.touch()
    finding = _by_check(vox.at(shared_server)("doctor", "--json"))["replica_mark"]
    assert finding["state"] == "warn"
    mark.with_suffix("").touch()
    finding = _by_check(vox.at(shared_server)("doctor", "--json"))["replica_mark"]
    assert finding["state"] == "ok"


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("distance_ms", "state"),
    [
        (0, CheckState.OK),
        (1_000, CheckState.OK),
        (1_001, CheckState.WARN),
        (60_000, CheckState.WARN),
        (60_001, CheckState.FAIL),
    ],
)
def test_a_clock_that_is_off_is_reported(distance_ms: int, sign: int, state: CheckState) -> None:
    finding = judge_clock(sign * distance_ms)
    assert finding.state is state
    assert bool(finding.advice) is (state is not CheckState.OK)
