"""`vox-mesh server`: installed from a genuine binary, started safe, stopped cleanly."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.repositories import GIT_SETTINGS
from tools.forked import Process
from tools.install_sqld import binary, extensions
from tools.sqld import free_port, is_healthy, wait_for_start
from vox_mesh.cli import app
from vox_mesh.contrib.sqld import binary as binaries
from vox_mesh.contrib.sqld import extension
from vox_mesh.contrib.sqld.launch import Listen

_PATIENCE_S: Final = 60.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> VoxCommand:
    """Commands of a user who has installed a server, and made a key."""
    folder = tmp_path_factory.mktemp("user")
    vox = VoxCommand(folder, XDG_DATA_HOME=str(folder / "data"), XDG_CONFIG_HOME=str(folder / "config"))
    built = folder / "data" / "vox-mesh-server" / extensions().name  # compiled already
    built.parent.mkdir(parents=True, mode=0o700)
    shutil.copytree(extensions(), built)
    assert vox("server", "install", "--binary", str(binary())).code == 0
    return vox


@pytest.fixture(scope="module")
def token(installed: VoxCommand) -> str:
    """A token of the user's key."""
    return installed("token", "create", "--ttl", "1d").out.strip()


def _wait_for(url: str, process: Process) -> None:
    try:
        wait_for_start(lambda: is_healthy(url), lambda: process.poll() is None)
    except RuntimeError:
        process.kill()
        raise AssertionError(process.communicate(_PATIENCE_S)) from None


def _ask(url: str, token: str, sql: str) -> httpx.Response:
    body = {"requests": [{"type": "execute", "stmt": {"sql": sql}}, {"type": "close"}]}
    return httpx.post(f"{url}/v2/pipeline", headers={"Authorization": f"Bearer {token}"}, json=body)


def _type_of(answer: httpx.Response) -> str:
    result: str = answer.json()["results"][0]["type"]
    return result


@pytest.fixture
def address() -> str:
    """A free address."""
    return f"127.0.0.1:{free_port()}"


def test_it_asks_for_a_token_keeps_its_files_private_and_stops_cleanly(
    installed: VoxCommand, token: str, address: str
) -> None:
    url = f"http://{address}"
    with installed.having(VOX_MESH_TOKEN="not-for-the-server").running(
        "server", "start", "--listen", address
    ) as process:
        _wait_for(url, process)
        assert _ask(url, "not-a-token", "SELECT 1").status_code == 401
        assert _type_of(_ask(url, token, "CREATE TABLE IF NOT EXISTS kept (x)")) == "ok"
        assert _type_of(_ask(url, token, "SELECT readfile('/etc/hostname')")) == "error"
        data = installed.folder / "data" / "vox-mesh-server" / "data"
        assert [path for path in (data, *data.rglob("*")) if path.stat().st_mode & 0o077] == []
        again = installed("server", "start", "--listen", f"127.0.0.1:{free_port()}")
        assert (again.code, "another server runs on" in again.error) == (1, True)
        taken = installed("server", "start", "--listen", address)
        assert (taken.code, "can't listen" in taken.error) == (1, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_S) == 0
    address = f"127.0.0.1:{free_port()}"  # the other one may be taken meanwhile
    url = f"http://{address}"
    with installed.running("server", "start", "--listen", address) as process:
        _wait_for(url, process)
        assert _type_of(_ask(url, token, "SELECT x FROM kept")) == "ok"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--listen", "0.0.0.0:8080"), "--allow-plaintext"),
        (("--listen", "db.example.com:8080"), "must be an IP address"),
        (("--key", "nowhere.pub.pem"), "vox-mesh token create"),
        (("--folder", "empty"), "vox-mesh server install"),
    ],
)
def test_a_start_that_would_be_unsafe_is_refused(
    installed: VoxCommand, token: str, arguments: tuple[str, ...], named: str
) -> None:
    ended = installed("server", "start", *arguments)
    assert ended.code in (1, 2)
    assert named in ended.error


def test_data_that_others_can_read_is_refused(installed: VoxCommand, token: str, tmp_path: Path) -> None:
    data = tmp_path / "open"
    data.mkdir()
    data.chmod(0o755)
    ended = installed("server", "start", "--listen", f"127.0.0.1:{free_port()}", "--data", str(data))
    assert (ended.code, f"chmod 700 {data}" in ended.error) == (2, True)


def test_a_binary_that_is_not_the_pinned_one_is_not_installed(memory: VoxCommand) -> None:
    (memory.folder / "sqld").write_bytes(binary().read_bytes()[:-1])
    ended = memory("server", "install", "--folder", "there", "--binary", "sqld")
    assert (ended.code, "SHA-256" in ended.error) == (1, True)
    assert list((memory.folder / "there").iterdir()) == []


def test_a_binary_that_was_changed_later_is_not_started(installed: VoxCommand, token: str) -> None:
    changed = installed.folder / "changed"
    shutil.copytree(installed.folder / "data" / "vox-mesh-server", changed)
    found = binaries.installed_binary(changed)
    assert found is not None
    with found.open("ab") as file:
        file.write(b"x")
    ended = installed("server", "start", "--folder", str(changed))
    assert (ended.code, "no genuine sqld" in ended.error) == (1, True)


@pytest.mark.parametrize(
    ("missing", "named"), [("a C compiler is needed", "gcc or clang"), ("npm is needed", "--binary FILE")]
)
def test_a_missing_tool_is_named_with_what_to_do(
    missing: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiler = Path(extension.compiler().split()[0])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(extension, "find_spec", lambda _: None)
    monkeypatch.setattr(binaries, "find_spec", lambda _: None)
    if "npm" in missing:
        (tmp_path / "cc").symlink_to(compiler)
    assert app.run(["server", "install", "--folder", str(tmp_path / "there")]) == 2
    error = capsys.readouterr().err
    assert (missing in error, named in error, error.count("\n")) == (True, True, 1)


@pytest.mark.parametrize(
    ("text", "is_local"),
    [("127.0.0.1:1", True), ("localhost:80", True), ("[::1]:80", True), ("10.0.0.7:80", False)],
)
def test_an_address_is_local_or_not(text: str, is_local: bool) -> None:
    assert Listen.parse(text).is_local is is_local


@pytest.mark.parametrize("text", ["", ":80", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "::1:x"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|appear"):
        Listen.parse(text)


def test_the_server_gets_no_secrets_of_the_mesh(installed: VoxCommand, token: str, address: str) -> None:
    with installed.having(VOX_DB_TOKEN="secret-of-the-mesh").running(
        "server", "start", "--listen", address
    ) as process:
        _wait_for(f"http://{address}", process)
        seen = Path(f"/proc/{process.pid}/environ")
        if seen.exists() and os.access(seen, os.R_OK):
            assert b"secret-of-the-mesh" not in seen.read_bytes()


def test_a_second_home_joins_a_started_server_and_its_first_job_runs(
    installed: VoxCommand, token: str, address: str, tmp_path: Path
) -> None:
    """From a server to a job on another machine; the database of another application is refused."""
    first, second = (VoxCommand(tmp_path / name, **GIT_SETTINGS) for name in ("first", "second"))
    join = ("join", f"http://{address}", "--token-file", "given.token")
    with installed.running(
        "server", "start", "--listen", address, "--data", str(tmp_path / "data")
    ) as server:
        _wait_for(f"http://{address}", server)
        for home in (first, second):
            home.folder.mkdir()
            (home.folder / "given.token").write_text(token)
        assert _type_of(_ask(f"http://{address}", token, "CREATE TABLE customers (name)")) == "ok"
        refused = first(*join)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
        assert ("customers" in refused.err, "[foreign_database]" in refused.error) == (True, True), refused
        assert _type_of(_ask(f"http://{address}", token, "DROP TABLE customers")) == "ok"
        assert [home(*join).code for home in (first, second)] == [0, 0]
        with first.running("up", "--worker-exec"):
            ran = second("job", "schedule", "--wait", "--isolated", "--", "true")
        assert (ran.code, ran.out.splitlines()[-1].split(" ")[-1]) == (0, "succeeded"), ran
