"""`vox-mesh nodes`, next to nodes that run."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any, Final

from tests.cli.conftest import VoxCommand, running_node
from tests.support.locks.lock_runs import stop
from tools.forked import Process
from tools.sqld import Server, free_port
from vox_mesh.nodes.identity import temporary_identity
from vox_mesh.nodes.nodes import Node

_SHARED_COMMANDS: Final = (
    *(
        "nodes",
        "nodes watch",
        "nodes rekey n",
        "nodes remove n",
        "roles show",
        "roles designate-coordinator n",
    ),
    *("oplog tail", "oplog tail --follow", "oplog verify", "oplog export e", "oplog anchor", "oplog waiting"),
)


def line_of(process: Process) -> str:
    """The next line that a command prints."""
    return process.stdout.readline()


def interrupted(process: Process | subprocess.Popen[str]) -> tuple[int, str]:
    """End a command with Ctrl-C; its exit code, and what it says then."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.wait(), err


def test_a_node_is_listed_while_it_runs_and_with_all_after_it_left(vox: VoxCommand) -> None:
    with running_node(vox, VOX_AGENT_ID="planner") as node:
        (record,) = vox("nodes", "--json").document
        heading, line = vox("nodes").out.splitlines()
    assert {*Node._fields} - {"now_ms"} <= {*record}
    assert (record["node_id"], record["state"], record["role"]) == (node.node_id, "alive", "owner")
    assert (record["host"], record["pid"], record["kinds"]) == (socket.gethostname(), node.process.pid, [])
    assert (record["agent_id"], record["missed"], record["consuming"]) == ("planner", 0, False)
    assert record["progressing"] is False
    assert 0 <= record["age_ms"] < 60_000
    assert heading.split() == [
        "node_id",
        "state",
        "role",
        "admitted",
        "host",
        "age",
        "version",
        "load",
        "works",
        "on",
        "clock",
    ]
    assert line.split()[:3] == [node.node_id, "alive", "owner"]
    assert "taking notes" in line
    assert vox("nodes", "--json").document == []
    (left,) = vox("nodes", "--all", "--json").document
    assert left["state"] == "left"


def test_who_is_silent_for_longer_than_the_threshold_is_not_listed(vox: VoxCommand) -> None:
    with running_node(vox) as node:
        stop(node.process.send_signal, vox.folder / ".vox/cache/db/local.db")
        try:
            assert vox("nodes", "--stale-ms", "0").out == "none\n"
            assert [each["node_id"] for each in vox("nodes", "--json").document] == [node.node_id]
        finally:
            node.process.send_signal(signal.SIGCONT)


def test_one_that_has_left_is_removed_from_all_lists(vox: VoxCommand) -> None:
    with running_node(vox), running_node(vox, VOX_AGENT_ID="builder") as second:
        refused = vox("nodes", "remove", second.node_id)
        assert (refused.code, refused.out) == (1, "")
        assert f"node '{second.node_id}' not removed: it is alive" in refused.err
    assert vox("nodes", "remove", second.node_id, "--json").document["node_id"] == second.node_id
    for shown in (("nodes", "--all"), ("agents", "--all"), ("status",)):
        assert second.node_id not in vox(*shown).out, shown
    checks = [line for line in vox("doctor").out.splitlines() if second.node_id in line]
    assert [line.split()[1] for line in checks] == ["identity"], "only its folder on this disk is named"
    assert "not found" in vox("nodes", "remove", second.node_id).err


def test_if_all_fell_silent_the_database_is_named_as_a_cause(vox: VoxCommand) -> None:
    with running_node(vox):
        assert vox("nodes", "--all").err == ""
    assert vox("nodes").err == "", "it has left"
    with closing(sqlite3.connect(vox.folder / ".vox/cache/db/local.db")) as database, database:
        database.execute("UPDATE mesh_heartbeats SET left_ms = NULL, last_seen_ms = last_seen_ms - 600000")
    for asked in (["nodes"], ["nodes", "--all", "--json"]):
        assert "no heartbeat advances" in vox(*asked).err


def test_a_worker_is_one_that_has_kinds_and_a_terminal_is_not_steered_by_others(vox: VoxCommand) -> None:
    with running_node(vox), running_node(vox) as second:
        pass
    with closing(sqlite3.connect(vox.folder / ".vox/cache/db/local.db")) as database, database:
        database.execute(
            "UPDATE mesh_heartbeats SET kinds = ?, activity = '' WHERE node_id = ?",
            (json.dumps(["build", "te\x1b[31mst"]), second.node_id),
        )
    reported = {each["node_id"]: each for each in vox("nodes", "--all", "--json").document}
    assert sorted(each["role"] for each in reported.values()) == ["owner", "worker"]
    assert reported[second.node_id]["kinds"] == ["build", "te\x1b[31mst"]
    shown = vox("nodes", "--all").out
    assert "build, te?[31mst" in shown
    assert "\x1b" not in shown


def test_a_watch_tells_who_comes_and_leaves_and_ends_on_ctrl_c(vox: VoxCommand, server: Server) -> None:
    vox = vox.at(server)
    vox("db", "init")
    with vox.running("nodes", "watch") as plain, vox.running("nodes", "watch", "--json") as documents:
        with running_node(vox) as node:
            time, name, state, role, *_ = line_of(plain).split()
            assert (name, state) == (node.node_id, "alive")
            assert role in ("owner", "peer")  # it may not have had the time to become it
            assert time[10] == "T"
            assert json.loads(line_of(documents))["state"] == "alive"
        while " left " not in (line := line_of(plain)):
            assert node.node_id in line
        while (document := json.loads(line_of(documents)))["state"] != "left":
            assert document["node_id"] == node.node_id
        assert [interrupted(plain)[0], interrupted(documents)[0]] == [130, 130]


def test_a_watch_in_a_terminal_draws_the_list_again(vox: VoxCommand) -> None:
    vox("db", "init")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "vox_mesh.cli", "nodes", "watch"],
        cwd=vox.folder,
        env=vox.environment | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        try:
            with running_node(vox) as node:
                drawn = _drawn_until(ours, node.node_id)
            assert "\x1b[2J" in drawn
            assert "works on" in drawn
            _drawn_until(ours, " left ")
            assert interrupted(process)[0] == 130
        finally:
            process.kill()
    os.close(ours)


def _drawn_until(terminal: int, text: str) -> str:
    drawn = ""
    while text not in drawn:
        drawn += os.read(terminal, 65_536).decode()
    return drawn


def test_the_owner_accepts_a_new_key_and_the_node_starts_with_it(vox: VoxCommand) -> None:
    with running_node(vox) as owner:
        with running_node(vox, VOX_MESH_NODE_ID="builder") as builder:
            assert builder.note("with the first key")
        key = vox.folder / ".vox/slots/builder/key.pem"
        key.unlink()
        with running_node(vox, VOX_MESH_NODE_ID="builder") as refused:
            assert refused.process.returncode == 1
        stranger = vox.having(VOX_MESH_NODE_ID="stranger")
        denied = stranger("nodes", "rekey", "builder")
        assert denied.code == 1
        assert f"the owner of the mesh is {owner.node_id}" in denied.error
        done = vox("nodes", "rekey", "builder", "--json").document
        assert (done["node_id"], done["host"]) == ("builder", socket.gethostname())
        assert done["public_key"].startswith("ed25519:")
        with running_node(vox, VOX_MESH_NODE_ID="builder") as builder:
            assert builder.note("with the second key")
    assert vox("oplog", "verify").code == 0


def test_a_key_that_is_none_and_a_node_that_did_not_ask_are_reported(vox: VoxCommand) -> None:
    with running_node(vox) as owner:
        garbage = vox("nodes", "rekey", owner.node_id, "--key", "ed25519:xyz")
        assert (garbage.code, "public key must be" in garbage.error) == (2, True)
        unasked = vox("nodes", "rekey", owner.node_id)
        assert (unasked.code, "--key" in unasked.error) == (1, True)
        unknown = vox("nodes", "rekey", "stranger", "--key", temporary_identity("n").key.public)
        assert (unknown.code, "stranger" in unknown.error) == (1, True)


def _together(vox: VoxCommand, commands: tuple[str, ...]) -> dict[str, tuple[int, str, str]]:
    """Run commands side by side; how each ended."""
    started = {command: vox.launch(*command.split()) for command in commands}
    ended: dict[str, Any] = {}
    for command, process in started.items():
        out, err = process.communicate(timeout=120)
        ended[command] = (process.returncode, out, err)
    return ended


def test_on_the_memory_home_there_is_no_one_to_see(memory: VoxCommand) -> None:
    for command, (code, out, err) in _together(memory, _SHARED_COMMANDS).items():
        assert (code, out) == (2, ""), command
        assert "vox-mesh init" in err, command
        assert err.count("\n") == 1, command
    assert list(memory.folder.iterdir()) == []


def test_with_the_database_away_every_command_ends_with_3(vox: VoxCommand) -> None:
    away = vox.having(VOX_DB_URL=f"http://127.0.0.1:{free_port()}", VOX_DB_TOKEN="eyJsecret")
    for command, (code, out, err) in _together(away, _SHARED_COMMANDS).items():
        assert (code, out) == (3, ""), command
        assert "can't be reached" in err, command
        assert err.count("\n") == 1, command
        assert "eyJsecret" not in err, command
