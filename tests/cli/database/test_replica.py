"""Replicas from the command line: `db sync`, `db status` and `doctor`, on a real server."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.programs import NODE
from tools.fork_server import Program
from tools.forked import Process
from tools.sqld import Server, free_port
from vox_mesh.store.replica.pages import file_bytes
from vox_mesh.store.replica.paths import replica_path
from vox_mesh.store.replica.wire import PAGE

_PATIENCE_S: Final = 30.0


@pytest.fixture
def mesh(vox: VoxCommand, server: Server) -> VoxCommand:
    """Commands on an empty database of a server, its schema made."""
    mesh = vox.at(server)
    assert mesh("db", "init").code == 0
    return mesh


@contextmanager
def node(vox: VoxCommand) -> Iterator[None]:
    """A node that runs next to the commands, and has caught up."""
    running = Program((), vox.environment, code=NODE, folder=str(vox.folder))
    with Process(running, has_stdin=True) as process:
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == "in touch\n"
            yield
            process.stdin.close()
            assert process.wait(_PATIENCE_S) == 0
        finally:
            process.kill()


def replicas(vox: VoxCommand) -> list[dict[str, Any]]:
    """What `db status` says of them."""
    found: list[dict[str, Any]] = vox("db", "status", "--json").document["replicas"]
    return found


def test_sync_makes_the_copy_that_a_node_will_find(mesh: VoxCommand) -> None:
    synced = mesh("db", "sync", "--json").document
    assert (synced["slot"], synced["driver"], synced["state"]) == ("1", "pushed", "stopped")
    assert (synced["lag_frames"], synced["error"]) == (0, "")
    assert synced["frame"] > 0
    copy = replica_path(mesh.folder / ".vox/cache/db/local.db", "1")
    assert copy.stat().st_size == file_bytes(synced["bytes"] // PAGE) > 0
    assert copy.stat().st_mode & 0o777 == 0o600
    (listed,) = replicas(mesh)
    assert (listed["slot"], listed["bytes"], listed["frame"]) == ("1", synced["bytes"], synced["frame"])


def test_sync_takes_the_slot_that_is_named(mesh: VoxCommand) -> None:
    named = mesh.having(VOX_MESH_NODE_ID="builder-1")
    assert named("db", "sync", "--json").document["slot"] == "builder-1"
    assert [replica["slot"] for replica in replicas(mesh)] == ["builder-1"]


def test_sync_beside_a_running_node_waits_for_its_replica(mesh: VoxCommand) -> None:
    with node(mesh):
        synced = mesh("db", "sync", "--json").document
        assert (synced["state"], synced["reads"], synced["lag_frames"]) == ("in touch", "replica", 0)
        assert synced["lag_ms"] == 0
    assert replicas(mesh)[0]["state"] == "stopped"


def test_commands_that_end_soon_leave_no_replica(mesh: VoxCommand) -> None:
    mesh("db", "status")
    mesh("doctor")
    assert replicas(mesh) == []
    assert not list(mesh.folder.glob(".vox/**/*.replica-*"))


def test_status_says_that_a_replica_is_out_of_touch_and_that_the_primary_is_asked(
    mesh: VoxCommand, server: Server
) -> None:
    with node(mesh.having(VOX_DB_MAX_STALE_MS="200")):
        server.kill()
        command = mesh.having(VOX_DB_MAX_STALE_MS="200", VOX_DB_DEADLINE="1s")
        deadline = time.monotonic() + _PATIENCE_S
        while True:  # another process notices it in its own time
            ended = command("db", "status", "--json")
            assert ended.code == 3
            (found,) = json.loads(ended.out)["replicas"]
            if (found["state"], found["reads"]) == ("out of touch", "primary") or time.monotonic() > deadline:
                break
        assert found["state"] == "out of touch"
        assert found["error"]
        assert found["reads"] == "primary"
        assert found["lag_frames"] is None
        assert found["lag_ms"] > 200


def test_a_first_copy_draws_a_bar_on_the_terminal_and_nothing_else_on_stdout(mesh: VoxCommand) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "vox_mesh.cli", "db", "sync", "--json"],
        cwd=mesh.folder,
        env=mesh.environment | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        out, _ = process.communicate(timeout=_PATIENCE_S)
    drawn = os.read(ours, 65_536).decode()
    os.close(ours)
    assert json.loads(out)["lag_frames"] == 0
    assert "copying" in drawn
    assert "100%" in drawn


@pytest.mark.parametrize("variables", [{}, {"VOX_DB_URL": "http://127.0.0.1:1", "VOX_DB_REPLICA": "off"}])
def test_sync_without_a_replica_is_refused(vox: VoxCommand, variables: dict[str, str]) -> None:
    ended = vox.having(**variables)("db", "sync")
    assert ended.code == 2
    assert "no replica to sync" in ended.error


def test_sync_with_the_server_away_ends_with_3_and_one_line(vox: VoxCommand) -> None:
    away = vox.having(VOX_DB_URL=f"http://127.0.0.1:{free_port()}", VOX_DB_DEADLINE="1s")
    ended = away("db", "sync")
    assert ended.code == 3
    assert ended.err.splitlines()[-1].startswith("vox-mesh: the replica does not get on: ")


def test_sync_leaves_a_file_alone_that_is_no_replica(mesh: VoxCommand) -> None:
    path = replica_path(mesh.folder / ".vox/cache/db/local.db", "1")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"precious")
    ended = mesh("db", "sync")
    assert ended.code == 1
    assert "not marked as a replica" in ended.error
    assert path.read_bytes() == b"precious"


def test_the_doctor_says_which_replica_there_can_be(mesh: VoxCommand) -> None:
    def check(vox: VoxCommand) -> dict[str, Any]:
        return next(each for each in vox("doctor", "--json").document if each["check"] == "replica")

    assert check(mesh)["found"].startswith("pushed: ")
    assert check(mesh.having(VOX_DB_REPLICA="off"))["state"] == "warn"


def test_the_doctor_goes_by_what_is_chosen(mesh: VoxCommand) -> None:
    ended = mesh.having(VOX_DB_REPLICA="native")("doctor", "--json")
    found = next(each for each in ended.document if each["check"] == "replica")
    assert ("native" in found["found"]) is (importlib.util.find_spec("libsql") is not None)
    assert "pushed" not in found["found"]


def test_a_path_with_brackets_is_a_path_like_any_other(mesh: VoxCommand) -> None:
    odd = mesh.having(VOX_DB_PATH="a[1]*.db")
    assert odd("db", "sync", "--json").document["lag_frames"] == 0
    assert [replica["slot"] for replica in replicas(odd)] == ["1"]


def test_sync_with_a_wrong_token_says_so_at_once(mesh: VoxCommand, server: Server) -> None:
    with Server() as other:
        forged = other.token
    ended = mesh.at(server, forged)("db", "sync")
    assert ended.code == 2
    assert "refused the token" in ended.err.splitlines()[-1]


def test_a_replica_of_another_server_is_not_shown_as_one_of_this(mesh: VoxCommand) -> None:
    assert mesh("db", "sync").code == 0
    with Server() as other:
        assert replicas(mesh.at(other)) == []


def test_a_replica_that_cannot_be_opened_is_named_with_its_reason(mesh: VoxCommand, tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    ended = mesh.having(VOX_DB_PATH=str(blocked / "local.db"))("db", "sync")
    assert ended.code == 1
    assert "can't be opened" in ended.error


def test_a_shared_replica_is_shown_once_with_the_process_that_follows(mesh: VoxCommand) -> None:
    def found(vox: VoxCommand) -> str:
        checks = vox("doctor", "--json").document
        return str(next(each["found"] for each in checks if each["check"] == "replica"))

    shared = mesh.having(VOX_DB_REPLICA="shared")
    assert found(shared).startswith("shared: no process of this home runs")
    with node(shared), node(shared):
        synced = shared("db", "sync", "--json").document
        assert (synced["slot"], synced["driver"], synced["state"]) == ("shared", "shared", "in touch")
        (listed,) = replicas(shared)
        assert (listed["slot"], listed["reads"]) == ("shared", "replica")
        assert listed["follower_pid"] > 0
        assert found(shared).startswith(f"shared: process {listed['follower_pid']} follows the server, ")
    (listed,) = replicas(shared)
    assert (listed["state"], listed["follower_pid"]) == ("stopped", None)
