"""`vox-mesh doctor`: what it finds of the nodes, and of what waits for someone."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from typing import Any

from tests.cli.conftest import VoxCommand
from tests.cli.database.test_conflicts import recorded
from tools.forked import Process
from vox_mesh.store.schema.schema import VERSION

_PATIENCE_S = 60.0
Findings = dict[str, tuple[str, str]]


def _found(vox: VoxCommand, code: int = 0) -> Findings:
    """How each check ended, and what it found."""
    ended = vox("doctor", "--json")
    assert ended.code == code, ended
    assert all(each["advice"] for each in ended.document if each["state"] != "ok")
    return {each["check"]: (each["state"], each["found"]) for each in ended.document}


@contextmanager
def _up(vox: VoxCommand, *options: str) -> Iterator[tuple[Process, str]]:
    """A node that is up, and where it listens."""
    with vox.running("up", "--node-id", "one", *options) as process:
        said = next(line for line in process.stderr if "node up: " in line)
        address = re.search(r"http://\S+", said)
        assert address is not None
        yield process, address[0]


def _change(vox: VoxCommand, sql: str, *values: Any) -> None:
    """Change the database as time, or a fault, would."""
    with closing(sqlite3.connect(vox.folder / ".vox/cache/db/local.db")) as database, database:
        assert database.execute(sql, values).rowcount == 1


# --- nodes ---------------------------------------------------------------------------------------


def test_a_node_that_is_ready_is_found_so_by_the_roster_and_by_its_own_word(vox: VoxCommand) -> None:
    with _up(vox) as (process, url):
        found = _found(vox)
        assert found["nodes"] == ("ok", "one")
        assert found["versions"] == ("ok", f"{version('vox-mesh')} (schema {VERSION})")
        assert found["service"] == ("ok", f"one at {url}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_S) == 0
    found = _found(vox)
    assert found["nodes"][0] == "ok"
    assert "service" not in found, "who has left need not answer"


def test_a_node_that_goes_by_another_tempo_than_the_mesh_is_named(vox: VoxCommand) -> None:
    with _up(vox):
        assert _found(vox)["tempo"] == ("ok", "12 beats a minute, leader none")
        limits = {"max_bpm": 60, "min_bpm": 15}
        other = json.dumps({"cluster_id": "default", "initial_bpm": 30, "limits": limits})
        _change(vox, "INSERT INTO beat_pulses VALUES ('', 'default', 'one', ?, 30, 8, 0, '')", other)
        state, found = _found(vox)["tempo"]
    assert (state, found) == (
        "warn",
        "policy differs from the mesh's: one; no leader, so the median is in force",
    )


def test_who_may_only_read_can_ask_a_node_and_anyone_who_has_another_token_is_notified(
    vox: VoxCommand,
) -> None:
    look_only = "a-token-for-those-who-only-look"
    with _up(vox.having(VOX_MESH_READ_TOKEN=look_only)):
        elsewhere = vox.having(VOX_MESH_HOME="elsewhere", VOX_MESH_TOKEN="")
        assert _found(elsewhere.having(VOX_MESH_READ_TOKEN=look_only))["service"][0] == "ok"
        stranger = elsewhere.having(VOX_MESH_TOKEN="a-token-of-quite-another-mesh")
        assert _found(stranger, 1)["service"] == ("fail", "one: rejects our VOX_MESH_TOKEN")


def test_nodes_that_share_no_token_are_named_and_commands_of_a_home_need_none(vox: VoxCommand) -> None:
    alone = vox.having(VOX_MESH_TOKEN="")
    with _up(alone):
        found = _found(alone)
        assert (found["service"][0], found["relay"]) == ("ok", ("ok", "all nodes share a token"))
        with alone.running("up", "--node-id", "two", "--home-dir", "elsewhere") as other:
            assert any("node up: " in line for line in other.stderr)
            assert _found(alone, 1)["relay"] == (
                "warn",
                "no shared token, so messages between these are polled for: one; two",
            )
            _change(alone, "UPDATE node_versions SET schema_version = 42 WHERE node_id = 'two'")
            state, said = _found(alone, 1)["versions"]
            assert state == "warn"
            assert f"(schema {VERSION}): one; " in said
            assert "(schema 42): two; waiting: retention, sparing heartbeats" in said
            status = alone("status", "--json").document
            assert [each["nodes"] for each in status["versions"]] == [["one"], ["two"]]
            assert said in [each["found"] for each in status["problems"]]
            listed = {each["node_id"]: each for each in alone("nodes", "--json").document}
            assert [listed[name]["schema_version"] for name in ("one", "two")] == [VERSION, 42]
            assert "(schema 42)" in alone("nodes").out


def test_a_forged_address_gets_no_token_and_is_named(vox: VoxCommand) -> None:
    with _up(vox, "--tick", "1h"):
        _change(vox, "UPDATE node_addresses SET control_addr = 'http://192.0.2.1:1'")
        found = _found(vox, 1)
    assert found["relay"] == ("fail", "address not signed by its node: one")
    assert "service" not in found


def test_a_node_that_does_not_answer_fails_until_it_is_known_to_be_dead(vox: VoxCommand) -> None:
    with _up(vox) as (process, url):
        process.kill()
        process.wait(_PATIENCE_S)
    found = _found(vox, 1)
    assert found["nodes"] == ("ok", "one"), "its last tick was just now"
    assert found["service"] == ("fail", f"one: no answer at {url} (ConnectError)")
    _change(vox, "UPDATE mesh_heartbeats SET last_seen_ms = last_seen_ms - 12000")
    assert _found(vox, 1)["nodes"] == ("warn", "no recent heartbeat: one")
    _change(vox, "UPDATE mesh_heartbeats SET last_seen_ms = last_seen_ms - 60000")
    found = _found(vox)
    assert "service" not in found
    assert found["nodes"][0] == "ok"


def test_a_node_that_is_dead_by_the_roster_but_answers_is_asked_what_is_wrong(vox: VoxCommand) -> None:
    with _up(vox, "--tick", "1h") as (_, url):
        _change(vox, "UPDATE mesh_heartbeats SET last_seen_ms = last_seen_ms - 100 * 3600000")
        assert _found(vox)["service"] == ("ok", f"one at {url}"), "it has a reason not to tick"


def test_what_a_node_says_is_wrong_with_it_is_reported_on_every_machine(vox: VoxCommand) -> None:
    with _up(vox) as (process, _):
        process.kill()
        process.wait(_PATIENCE_S)
    _change(vox, "UPDATE mesh_heartbeats SET machine_id = 'of another machine'")
    _change(vox, """UPDATE node_vitals SET faults = '["replica: it is 9.0 s behind"]'""")
    found = _found(vox, 1)
    assert found["nodes"] == ("fail", "one: replica: it is 9.0 s behind")
    assert "service" not in found, "that is for a doctor there to ask"


def test_an_address_that_no_one_could_reach_is_reported(vox: VoxCommand) -> None:
    vox("db", "init")
    open_to_all = vox.having(VOX_MESH_CONTROL_ADDR="http://10.0.0.7:7400")
    assert "reach" not in _found(open_to_all)
    assert _found(open_to_all.having(VOX_MESH_TOKEN=""), 1)["reach"][0] == "fail"
    assert "reach" not in _found(vox.having(VOX_MESH_CONTROL_ADDR="http://127.0.0.1:7400", VOX_MESH_TOKEN=""))


# --- what waits for someone ---------------------------------------------------------------------


def test_jobs_that_no_one_takes_or_that_failed_are_reported(vox: VoxCommand) -> None:
    vox("job", "schedule", "--kind", "report.write")
    assert _found(vox)["jobs"] == ("ok", "1 pending, 0 running")
    _change(vox, "UPDATE jobs SET not_before_ms = not_before_ms - 100000, created_ms = created_ms - 100000")
    assert _found(vox)["jobs"] == ("warn", "no worker for report.write")
    assert vox("kind", "pause", "report.write").code == 0
    assert _found(vox)["jobs"][0] == "ok", "someone has decided that it waits"
    vox("job", "schedule", "--max-attempts", "1", "--timeout", "10s", "--", "false")
    assert vox("up", "--once", "--worker-exec").code == 0
    assert _found(vox)["jobs"] == ("warn", "1 pending, 0 running, 1 failed")


def test_jobs_whose_policy_root_no_worker_allows_are_reported(vox: VoxCommand) -> None:
    job_id = vox("job", "schedule", "--kind", "report.write", "--json").document["job_id"]
    assert vox("up", "--once", "--worker-exec").code == 0
    _change(
        vox,
        "UPDATE mesh_heartbeats SET left_ms = NULL, kinds = '[\"report.*\"]', capacity = 1,"
        " machine_id = 'of another machine', policy_roots = '[\"sha256:ab\"]'",
    )
    state, found = _found(vox, 1)["jobs"]
    assert state == "warn"
    assert found.startswith(
        f"1 held back, such as {job_id[:12]}: it has no policy root: not allowed by VOX_WORKER"
    )
    assert "it has no policy root" in vox("job", "show", job_id).out
    _change(vox, "UPDATE mesh_heartbeats SET policy_roots = NULL")
    assert _found(vox, 1)["jobs"][0] == "ok"


def test_messages_that_are_overdue_or_dead_are_reported(vox: VoxCommand) -> None:
    vox("send", "reviewer", "please look", "--from", "coder")
    assert _found(vox)["messages"] == ("ok", "1 unread")
    _change(vox, "UPDATE a2a_messages SET ack_by_ms = 1")
    assert _found(vox)["messages"] == ("warn", "1 overdue")
    _change(vox, "UPDATE a2a_messages SET state = 'dead', ended_ms = 1")
    assert _found(vox)["messages"] == ("warn", "1 dead letters")


def test_conflicts_that_no_one_has_decided_on_are_reported(vox: VoxCommand) -> None:
    vox("db", "init")
    assert _found(vox)["conflicts"] == ("ok", "none open")
    recorded(vox, "plan", content="theirs")
    assert _found(vox)["conflicts"] == ("warn", "1 open")
