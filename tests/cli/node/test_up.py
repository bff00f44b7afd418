"""`vox-mesh up`: one command is a node, with all that one does, and ends as it should."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import pytest

from tests.cli.conftest import MESH_TOKEN, VoxCommand, assert_wrong_usage
from tests.support.jobs import example_handlers
from tools.forked import Process
from vox_mesh.settings import Settings, variable_of

_PATIENCE_S = 60.0
_KIND = "example.wait"


@pytest.fixture
def folder(vox: VoxCommand) -> VoxCommand:
    """A folder in which there are handlers."""
    shutil.copy(str(example_handlers.__file__), vox.folder / "example.py")
    return vox


@contextmanager
def _up(vox: VoxCommand, *options: str) -> Iterator[tuple[Process, str]]:
    """A node that is up, and where it is to be asked."""
    with vox.running("up", "--node-id", "one", *options) as process:
        said = heard(process, "node up: ")
        address = re.search(r"http://\S+", said)
        yield process, "" if address is None else address[0]


def _asked(url: str, path: str) -> Any:
    return httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {MESH_TOKEN}"}).json()


def heard(process: Process, words: str) -> str:
    """The next line of the log with these words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def _ended(process: Process, number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(_PATIENCE_S)


# --- being a node --------------------------------------------------------------------------------


def test_a_node_that_is_up_is_ready_listed_and_leaves(folder: VoxCommand) -> None:
    with _up(folder, "--handlers", "example:handlers") as (process, url):
        assert httpx.get(f"{url}/livez").json() == {"live": True}
        assert httpx.get(f"{url}/readyz").json() == {"ready": True}
        checks = _asked(url, "/readyz?verbose")["checks"]
        assert {check["name"] for check in checks} == {
            *("database", "writes", "clock", "rollback", "parts", "background", "worker", "tempo")
        }
        (node,) = _asked(url, "/v1/nodes")["items"]
        assert (node["node_id"], node["state"], node["role"]) == ("one", "alive", "owner")
        assert "example.echo" in node["kinds"]
        assert _ended(process) == 0
    (left,) = folder("nodes", "--all", "--json").document
    assert left["state"] == "left"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_on_a_signal_it_gives_back_what_it_has_in_hand(folder: VoxCommand, number: signal.Signals) -> None:
    with _up(folder, "--handlers", "example:handlers", "--grace", "0s") as (process, _):
        job = folder("job", "schedule", "--kind", _KIND, "--json").document
        _until_running(folder, job["job_id"])
        assert _ended(process, number) == 0
    after = folder("job", "show", job["job_id"], "--json").document
    assert (after["state"], after["failures"], after["claimer"]) == ("pending", 0, None)
    assert folder("oplog", "verify").code == 0


@pytest.mark.parametrize(
    ("loaded", "number"),
    [
        ("click.globals", signal.SIGINT),
        ("vox_mesh.settings.sources", signal.SIGTERM),
        ("uvloop", signal.SIGINT),
        ("vox_mesh.cli.node.traces", signal.SIGTERM),
        ("vox_mesh.store.engines.file", signal.SIGINT),
    ],
)
def test_a_signal_while_it_starts_ends_it_with_0_and_no_traceback(
    vox: VoxCommand, loaded: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "vox_mesh.cli", "up", "--node-id", "one"]
    with subprocess.Popen(command, cwd=vox.folder, env=vox.environment, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.split()[-1:] == [loaded] for line in process.stderr)
        process.send_signal(number)
        said = [line for line in process.stderr if not line.startswith("import time:")]
        assert (process.wait(_PATIENCE_S), [line for line in said if "Traceback" in line]) == (0, []), said
    assert vox("nodes", "--json").document == [], "it is no node, or has left"


def test_a_second_signal_ends_it_at_once_and_nothing_is_damaged(folder: VoxCommand) -> None:
    with _up(folder, "--handlers", "example:handlers", "--grace", "1h") as (process, _):
        job = folder("job", "schedule", "--kind", _KIND, "--json").document
        _until_running(folder, job["job_id"])
        process.send_signal(signal.SIGTERM)
        heard(process, "draining: ")
        assert _ended(process) == 128 + signal.SIGTERM
    assert folder("job", "show", job["job_id"], "--json").document["state"] == "running"
    assert folder("oplog", "verify").code == 0
    with _up(folder, "--handlers", "example:handlers") as (process, _):
        assert _ended(process) == 0


def _until_running(vox: VoxCommand, job_id: str) -> None:
    for _ in range(600):
        if vox("job", "show", job_id, "--json").document["state"] == "running":
            return
    pytest.fail("the job was never begun")


def test_once_it_does_what_there_is_to_do_and_ends(folder: VoxCommand) -> None:
    job = folder("job", "schedule", "--kind", "example.echo", "--payload", '"hello"', "--json").document
    ended = folder("up", "--once", "--handlers", "example:handlers")
    assert ended.code == 0, ended
    assert folder("job", "show", job["job_id"], "--json").document["state"] == "succeeded"
    (node,) = folder("nodes", "--all", "--json").document
    assert node["state"] == "left"


def test_without_a_worker_no_job_is_taken(vox: VoxCommand) -> None:
    with _up(vox, "--no-worker", "--worker-exec") as (_, url):
        (node,) = _asked(url, "/v1/nodes")["items"]
        assert (node["capacity"], node["kinds"], node["role"]) == (0, [], "owner")
        assert "worker" not in {each["name"] for each in _asked(url, "/readyz?verbose")["checks"]}


def test_without_http_nothing_listens(vox: VoxCommand) -> None:
    with vox.running("up", "--no-http") as process:
        assert "url=none" in heard(process, "node up: ")
        (node,) = vox("nodes", "--json").document
        assert node["control_addr"] is None


def test_without_the_switch_it_runs_for_itself_and_says_so(vox: VoxCommand) -> None:
    with vox.having(VOX_MESH_ENABLED="0").running("up") as process:
        assert "shares nothing; set VOX_MESH_ENABLED=1" in heard(process, "warning: ")
        assert "home=memory url=none" in heard(process, "node up: ")
        assert _ended(process) == 0
    assert not any((vox.folder / ".vox").iterdir())


def test_where_there_is_no_mesh_it_refuses_to_run_for_itself(memory: VoxCommand) -> None:
    refused = memory("up", "--once")
    assert refused.code == 2
    assert (
        "`vox-mesh up` needs a mesh, and this folder or repository has none; run `vox-mesh init`"
        in refused.err
    )
    assert memory("up", "--once", "--no-enabled").code == 0
    missing = memory.folder / "missing"
    refused = memory.having(VOX_MESH_HOME=str(missing))("lock", "list")
    assert (refused.code, f"VOX_MESH_HOME={missing} does not exist; run" in refused.err) == (2, True)


# --- its options ---------------------------------------------------------------------------------


def test_every_setting_is_an_option_but_for_the_secrets(vox: VoxCommand) -> None:
    shown = vox("up", "--help").out
    for name in Settings.model_fields:
        is_secret = "token" in name or name in ("archive_secret", "backup_secret")
        assert (f"--{name.replace('_', '-')} " in shown) is not is_secret, name
        assert (f"Value of {variable_of(name)}" in " ".join(shown.split())) is not is_secret, name


def test_an_option_counts_more_than_its_variable(vox: VoxCommand) -> None:
    having = vox.having(VOX_MESH_NODE_ID="from-variable", VOX_MESH_HTTP="1")
    with having.running("up", "--node-id", "from-option", "--no-http") as process:
        assert "node_id=from-option home=file url=none" in heard(process, "node up: ")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--tick soon", "VOX_MESH_TICK: 'soon' is not a duration"),
        ("--db-url postgres://x", "VOX_DB_URL: the scheme must be"),
        ("--no-worker --handlers example:handlers", "--handlers and --no-worker can't be combined"),
        ("--handlers nowhere:handlers", "module nowhere not found"),
        ("--worker-exec --worker-exec-allow bin/echo", "VOX_WORKER_EXEC_ALLOW: each program must be"),
        ("--log-format xml", "VOX_LOG_FORMAT: input should be 'text' or 'json'"),
    ],
)
def test_what_can_not_begin_ends_with_2_and_one_line(
    arguments: str, fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    assert_wrong_usage(f"up {arguments}", fault, capsys)


def test_a_port_that_is_taken_ends_it_with_one_line(vox: VoxCommand) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ended = vox("up", "--bind", f"127.0.0.1:{other.getsockname()[1]}")
    assert ended.code == 2, ended
    assert "VOX_MESH_BIND: can't listen on 127.0.0.1:" in ended.err
    assert "Traceback" not in ended.err


def test_a_token_that_is_used_twice_or_too_short_ends_it_with_one_line(vox: VoxCommand) -> None:
    ended = vox.having(VOX_MESH_READ_TOKEN=MESH_TOKEN)("up")
    assert ended.code == 2, ended
    assert "must have different values" in ended.err
    assert MESH_TOKEN not in ended.err
    ended = vox.having(VOX_MESH_READ_TOKEN="look-only")("up")
    assert ended.code == 2, ended
    assert "must have at least 128 bits" in ended.error
    assert "`vox-mesh token random`" in ended.error
    assert "look-only" not in ended.err


def test_a_node_that_was_replaced_ends_with_a_line_that_says_so(vox: VoxCommand) -> None:
    with _up(vox, "--tick", "100ms") as (process, _):
        shutil.copytree(vox.folder / ".vox", vox.folder / "copy", ignore=shutil.ignore_patterns("*.sock"))
        _forget_place(vox)
        with vox.running(
            "up", "--node-id", "one", "--home-dir", "copy", "--db-path", ".vox/cache/db/local.db", "--no-http"
        ) as heir:
            heard(heir, "node up: ")
            assert process.wait(_PATIENCE_S) == 1
            assert process.stderr is not None
            rest = process.stderr.read()
        assert "incarnation 1, the database knows 2" in rest
        assert "Traceback" not in rest


def _forget_place(vox: VoxCommand) -> None:
    """As if the database had been restored: it does not know that the node lives."""
    with sqlite3.connect(vox.folder / ".vox/cache/db/local.db") as database:
        database.execute("UPDATE mesh_heartbeats SET left_ms = 1")


# --- under a service manager ---------------------------------------------------------------------


def test_the_service_manager_is_notified_when_it_is_ready_alive_and_stopping(
    vox: VoxCommand, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(_PATIENCE_S)
        manager.bind(str(tmp_path / "notify"))
        with vox.having(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="300000").running("up") as node:
            said = manager.recv(4_096).decode()
            assert said.startswith("READY=1\nSTATUS=")
            assert " home=file url=http://127.0.0.1:" in said
            assert [manager.recv(4_096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            node.send_signal(signal.SIGTERM)
            while (said := manager.recv(4_096).decode()) == "WATCHDOG=1":
                pass
            assert said.startswith("STOPPING=1")
            assert node.wait(_PATIENCE_S) == 0


def test_a_service_manager_that_is_gone_is_no_reason_to_stop(vox: VoxCommand, tmp_path: Path) -> None:
    with vox.having(NOTIFY_SOCKET=str(tmp_path / "gone"), WATCHDOG_USEC="100000").running("up") as node:
        assert "service manager not notified" in heard(node, "warning: ")
        assert _ended(node) == 0
