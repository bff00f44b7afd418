"""A command that a mesh runs finds neither the tokens nor the key of the node that runs it."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson
import pytest

from tests.support.running.confined import IS_ROOT, OTHER_USER, RealVox, bwrap
from vox_mesh import Manifest
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec.secrets import ExecSecrets, Redactor
from vox_mesh.settings import Settings, load_settings
from vox_mesh.settings.process import _current_values
from vox_mesh.settings.secrets import SECRET_VARIABLES
from vox_mesh.settings.sources import is_secret, names_of
from vox_mesh.views.redaction import redacted_json

_TOKENS: Final = {
    "VOX_DB_TOKEN": "eyJ-the-token-of-the-database",
    "TURSO_AUTH_TOKEN": "eyJ-the-second-name-of-it",
    "VOX_MESH_TOKEN": "the-token-between-the-nodes-000000",
    "VOX_MESH_READ_TOKEN": "the-token-for-all-who-read-0000000",
    "VOX_MESH_METRICS_TOKEN": "the-token-of-the-monitoring-000000",
}
_API_KEY: Final = "sk-live-0123456789abcdef"
_SPY: Final = 'tr "\\0" "\\n" </proc/$PPID/environ; env; cat "$0"; ls /proc; id -u; ls -a "$1"; echo seen'
"""Prints all that a command can find out about its worker: $0 is the key of the node, $1 is its home."""

on_linux: Final = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


def spy_on(vox: RealVox) -> list[str]:
    """A command that looks for secrets."""
    return ["/bin/sh", "-c", _SPY, str(vox.home / "slots/1/key.pem"), str(vox.home)]


@on_linux
def test_a_command_job_finds_no_token_in_the_environment_of_its_worker(tmp_path: Path) -> None:
    asked = {"VOX_WORKER_EXEC_SANDBOX": "off", "VOX_WORKER_EXEC_SECRETS": "API_KEY", "API_KEY": _API_KEY}
    vox = RealVox(tmp_path, {**_TOKENS, **asked})
    [found], log = vox.attempt(spy_on(vox))
    assert "seen" in found.printed
    for secret in (*_TOKENS.values(), _API_KEY):
        assert secret not in found.printed
    # Nothing but isolation keeps a command of the same user from the key; the log says so.
    assert "PRIVATE KEY" in found.printed
    assert "exec jobs not isolated" in log
    doctor = json.loads(
        RealVox(tmp_path, {**vox.variables, "VOX_WORKER_EXEC": "1"})("doctor", "--json").stdout
    )
    [isolation] = [each for each in doctor if each["check"] == "exec_isolation"]
    assert (isolation["state"], "can read its key" in isolation["found"]) == ("warn", True)


@pytest.mark.skipif(not IS_ROOT, reason="only root can run commands as another user")
def test_a_command_job_of_another_user_can_t_read_the_key_of_its_node(tmp_path: Path) -> None:
    name = pwd.getpwuid(OTHER_USER).pw_name
    vox = RealVox(tmp_path, {**_TOKENS, "VOX_WORKER_EXEC_USER": name})
    limits = (
        "ulimit -n; ulimit -u 2>/dev/null || ulimit -p; pwd; : >made && ls; grep NoNewPrivs /proc/self/status"
    )
    [spied, confined], log = vox.attempt(spy_on(vox), ["/bin/bash", "-c", limits])
    assert "\n65534\n" in spied.printed
    assert not _secrets_in(spied.printed)
    files, processes, folder, made, privileges = confined.printed.splitlines()
    assert (files, processes, made) == ("4096", "1024", "made")
    assert not Path(folder).exists()
    assert privileges.split() == ["NoNewPrivs:", "1"]
    assert "not isolated" not in log


@pytest.mark.skipif(bwrap() is None, reason="bubblewrap is not installed")
def test_a_command_job_in_a_sandbox_sees_neither_its_worker_nor_the_home(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"VOX_AGENT_ID={_API_KEY}\n")
    (tmp_path / "token").write_text(_TOKENS["VOX_DB_TOKEN"])
    path = f"/usr/bin:/bin:{Path(str(bwrap())).parent}"
    vox = RealVox(tmp_path, {"VOX_DB_TOKEN_FILE": str(tmp_path / "token")}, path=path)
    escape = (
        f"umount {vox.home}; unshare -Urm sh -c 'umount {vox.home}; ls -a {vox.home}'; cat {vox.home}/*/*/*"
    )
    files = f"cat {tmp_path}/.env {tmp_path}/token; wc -c <{vox.home}/cache/db/local.db; pwd; : >made && ls"
    commands = [["/bin/sh", "-c", each] for each in (escape, files, "exit 7")]
    [spied, escaped, read, failed], log = vox.attempt(spy_on(vox), *commands)
    for each in (spied, escaped, read):
        assert not _secrets_in(each.printed)
        assert _API_KEY not in each.printed
    assert "slots" not in (spied.printed + escaped.printed).splitlines()
    numbers = [line for line in spied.printed.splitlines() if line.isdigit()]
    assert len(numbers) < 10  # its own processes, and its user
    assert "made" in read.printed.splitlines()
    assert failed.job.reason == "ended with exit code 7"
    assert "not isolated" not in log


def _secrets_in(text: str) -> list[str]:
    return [each for each in (*_TOKENS.values(), "PRIVATE KEY") if each in text]


@pytest.mark.skipif(bwrap() is None, reason="bubblewrap is not installed")
def test_a_command_job_can_t_have_the_home_as_its_folder_to_see_it_in_the_sandbox(tmp_path: Path) -> None:
    vox = RealVox(tmp_path, path=f"/usr/bin:/bin:{Path(str(bwrap())).parent}")
    [found], _ = vox.attempt(["/bin/sh", "-c", "cat slots/1/key.pem"], cwd=str(vox.home))
    assert (found.printed, "one of the node's own" in str(found.job.reason)) == ("", True)


def test_a_user_or_a_sandbox_that_can_t_be_had_stops_the_start(tmp_path: Path) -> None:
    for variables, fault in (
        ({"VOX_WORKER_EXEC_USER": "no-such-user"}, "there is no user 'no-such-user'"),
        ({"VOX_WORKER_EXEC_USER": "root"}, "must not run as root" if IS_ROOT else "only root can"),
        ({"VOX_WORKER_EXEC_LIMITS": "beer=3"}, "each limit must be NAME=NUMBER, got 'beer=3'"),
    ):
        ended = RealVox(tmp_path, variables)("worker", "run", "--exec")
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert fault in ended.stderr


# --- commands under a lock, and for messages -----------------------------------------------------


def test_a_command_under_a_lock_inherits_no_token(tmp_path: Path) -> None:
    vox = RealVox(tmp_path, _TOKENS | {"OTHER": "kept"})
    spy = 'env; tr "\\0" "\\n" </proc/$PPID/environ; echo seen'
    ended = vox("lock", "run", "task:x", "--", "/bin/sh", "-c", spy)
    assert ended.returncode == 0, ended
    assert not _secrets_in(ended.stdout)
    assert {"seen", "OTHER=kept", "VOX_MESH_ENABLED=1"} <= set(ended.stdout.splitlines())


def test_a_command_for_a_message_inherits_no_token(tmp_path: Path) -> None:
    vox = RealVox(tmp_path, _TOKENS)
    assert vox("send", "ada", "hello").returncode == 0
    ended = vox("inbox", "ada", "--exec", 'env; cat; tr "\\0" "\\n" </proc/$PPID/environ; echo seen')
    assert "hello" in ended.stdout, ended
    assert "seen" in ended.stdout.splitlines()
    assert not _secrets_in(ended.stdout)


_NODE_ITSELF: Final = """
import os, sys
from vox_mesh.settings.secrets import SECRET_VARIABLES, secret_of, take_variables
take_variables(SECRET_VARIABLES)
print(os.getpid(), secret_of("VOX_DB_TOKEN"), flush=True)
sys.stdin.read()
"""


@on_linux
def test_no_process_of_the_same_user_reads_the_memory_of_a_node(tmp_path: Path) -> None:
    # The interpreter of the tests may be in a folder of root's.
    python, user = ("/usr/bin/python3", OTHER_USER) if IS_ROOT else (sys.executable, os.getuid())
    if not os.access(python, os.X_OK):
        pytest.skip(f"there is no {python} that another user could run")
    root = Path(__file__).resolve().parents[3]
    node = subprocess.Popen(
        [python, "-S", "-c", _NODE_ITSELF],
        env={"PYTHONPATH": str(root), **_TOKENS},
        cwd="/",
        user=user,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with node:
        assert node.stdout is not None
        pid, known = node.stdout.readline().split()
        assert known == _TOKENS["VOX_DB_TOKEN"]  # to itself
        for name in ("environ", "mem", "maps"):
            spied = subprocess.run(["cat", f"/proc/{pid}/{name}"], user=user, capture_output=True, text=True)
            assert (spied.returncode, spied.stdout) == (1, ""), name
        with suppress(PermissionError):
            assert not _secrets_in(Path(f"/proc/{pid}/environ").read_text())


def test_the_environment_of_the_c_library_is_found_on_every_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOX_DB_TOKEN", "a-token-of-this-test")
    lengths = [length for _, length in _current_values({b"VOX_DB_TOKEN"})]
    assert lengths == [len("a-token-of-this-test")]


# --- where secrets come from ---------------------------------------------------------------------


def test_every_secret_of_the_settings_leaves_the_environment() -> None:
    secrets = [names_of(field) for field in Settings.model_fields.values() if is_secret(field)]
    assert sorted(SECRET_VARIABLES) == sorted(name for names in secrets for name in names)


@pytest.mark.parametrize("source", ["file", "credential"])
def test_a_secret_comes_from_a_file_or_a_credential(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "VOX_MESH_TOKEN"
    file.write_text(_TOKENS["VOX_MESH_TOKEN"] + "\n")
    if source == "file":
        monkeypatch.setenv("VOX_MESH_TOKEN_FILE", str(file))
    else:
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    token = load_settings().token
    assert token is not None
    assert token.get_secret_value() == _TOKENS["VOX_MESH_TOKEN"]
    if source == "file":
        monkeypatch.setenv("VOX_MESH_TOKEN", "another-token-of-the-environment")
        with pytest.raises(BadSettings, match="are both set"):
            load_settings()
        monkeypatch.delenv("VOX_MESH_TOKEN")
        file.unlink()
        with pytest.raises(BadSettings, match=r"VOX_MESH_TOKEN_FILE: .* can't be read: No such file"):
            load_settings()


# --- secrets by reference ------------------------------------------------------------------------


def test_a_secret_by_reference_reaches_the_command_and_is_kept_nowhere(tmp_path: Path) -> None:
    (tmp_path / "npm").write_text("npm-secret-of-a-file\n")
    offered = f"API_KEY,NPM={tmp_path / 'npm'}"
    vox = RealVox(
        tmp_path,
        {"VOX_WORKER_EXEC_SECRETS": offered, "API_KEY": _API_KEY, "VOX_WORKER_EXEC_SANDBOX": "off"},
    )
    script = 'say() { printf "%s" "$KEY"; }; say | wc -c; say | head -c 9; say | tail -c +10;'
    given = Manifest.of(
        command=["/bin/sh", "-c", f'{script} echo " $NPM"; echo "$KEY" >&2'],
        timeout=30,
        max_attempts=1,
        env_from={"KEY": "API_KEY", "NPM": "NPM"},
    )
    withheld = Manifest.of(
        command=["/bin/sh", "-c", "echo $X"], timeout=30, max_attempts=1, env_from={"X": "VOX_DB_TOKEN"}
    )
    [given_end, withheld_end], log = vox.attempt_all([given, withheld])
    assert given_end.job.state == "succeeded", given_end
    assert str(len(_API_KEY)) in given_end.printed
    assert given_end.printed.count("***") == 3  # of two streams, in any order
    assert "secret VOX_DB_TOKEN is not given to jobs on this worker" in str(withheld_end.job.reason)
    kept = b"".join(path.read_bytes() for path in vox.home.rglob("*") if path.is_file())
    for secret in (_API_KEY, "npm-secret-of-a-file"):
        assert secret.encode() not in kept
        assert secret not in given_end.printed + log


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_secret_is_hidden_wherever_the_stream_is_cut(cut: int) -> None:
    redactor = Redactor(["sesame-1"])
    text = b"open sesame-1 ses sesame-sesame-1 sesam"
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    assert b"".join([*map(redactor.redact, pieces), redactor.rest()]) == b"open *** ses sesame-*** sesam"


@pytest.mark.parametrize("offered", ["VOX_DB_TOKEN", "VOX_MESH_TOKEN=/etc/x", "A B", "KEY=relative"])
def test_a_secret_of_the_node_itself_can_t_be_offered(offered: str) -> None:
    with pytest.raises(BadSettings, match="VOX_WORKER_EXEC_SECRETS: "):
        ExecSecrets.parsed(offered)


def test_a_variable_that_a_workflow_binds_is_hidden_as_others_are() -> None:
    parts = [{"text": "postgres://u:sesame@"}, {"job": "01M7NX92FQG9PQSZAA7J0RFP96"}]
    inputs = [{"bind": ["env", "URL"], "parts": parts}, {"bind": ["args", 0], "parts": parts}, {"bind": 5}]
    (seen,) = [orjson.loads(each) for each in redacted_json({"manifest": {"inputs": inputs}}) if each]
    assert [each.get("parts") for each in seen["manifest"]["inputs"]] == [None, parts, None]
