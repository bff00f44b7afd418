"""`deploy/sqld/`: the server is started as a mesh needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.deploy.files import DEPLOY
from tools.install_sqld import binary, extensions
from tools.sqld import Server, free_port
from vox_mesh import load_settings, open_store
from vox_mesh.errors import Unauthorized
from vox_mesh.model.base.keys import SigningKey, public_pem, signed_token
from vox_mesh.nodes.key_file import new_key

_START: Final = DEPLOY / "sqld" / "start.sh"
_HEALTHY: Final = DEPLOY / "sqld" / "healthy.sh"
_BUILD: Final = DEPLOY / "sqld" / "build_extension.sh"
_PATIENCE_S: Final = 30.0
_FULL: Final = 2


class ScriptedServer(Server):
    """The test server, started by the script instead of by its own flags."""

    def __init__(self, **more: str) -> None:
        super().__init__()
        self.admin_port = free_port()
        self._more = more

    @property
    def environment(self) -> dict[str, str]:
        """The script's settings."""
        return {
            **os.environ,
            "SQLD_BINARY": str(binary()),
            "SQLD_DATA": str(self._folder / "data"),
            "SQLD_LISTEN": f"127.0.0.1:{self.port}",
            "SQLD_ADMIN_PORT": str(self.admin_port),
            "SQLD_KEY": str(self.key_file()),
            "SQLD_EXTENSIONS": str(extensions()),
            **self._more,
        }

    def launch(self) -> None:
        """Start without waiting."""
        with (self._folder / "log").open("ab") as log:
            # With the umask of a careless caller.
            self._process = subprocess.Popen(
                [_START], env=self.environment, stdout=log, stderr=log, umask=0o000
            )


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    """A server that the script has started."""
    with ScriptedServer() as server:
        yield server


async def test_the_start_script_runs_a_server_that_is_safe_for_a_mesh(
    scripted: ScriptedServer, tmp_path: Path
) -> None:
    settings = load_settings(
        _env_file=None, enabled=True, home_dir=tmp_path, db_url=scripted.url, db_token=scripted.token
    )
    deadline = time.monotonic() + _PATIENCE_S
    synchronous = None
    while (
        synchronous != _FULL and time.monotonic() < deadline
    ):  # of new streams, once the server was configured
        async with await open_store(settings) as store:
            synchronous = (await store.read("PRAGMA synchronous")).value
            assert (await store.read("PRAGMA wal_autocheckpoint")).value == 0
    assert synchronous == _FULL
    with pytest.raises(Unauthorized):
        await open_store(settings.model_copy(update={"db_token": None}))


def test_the_data_of_the_server_is_for_its_user_alone(scripted: ScriptedServer) -> None:
    data = scripted._folder / "data"
    opened = [path for path in (data, *data.rglob("*")) if path.stat().st_mode & 0o077]
    assert data.is_dir()
    assert opened == []


def test_no_one_else_on_the_machine_may_use_the_admin_port(scripted: ScriptedServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{scripted.admin_port}/v1/namespaces/default/config")
    refused.value.close()
    assert refused.value.code == 401


def test_the_health_check_tells_a_server_that_answers_from_one_that_does_not(
    scripted: ScriptedServer,
) -> None:
    def ended(port: int) -> int:
        env = {**os.environ, "SQLD_LISTEN": f"0.0.0.0:{port}"}
        return subprocess.run([_HEALTHY], env=env, capture_output=True, timeout=_PATIENCE_S).returncode

    assert ended(scripted.port) == 0
    assert ended(scripted.admin_port) != 0  # it answers, and not with 200
    assert ended(free_port()) != 0


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "SQLD_KEY"),
        ({"SQLD_KEY": "nowhere.pem"}, "nowhere.pem"),
        ({"SQLD_KEY": str(_START), "SQLD_BINARY": "no-such-server"}, "no-such-server"),
        ({"SQLD_KEY": str(_START), "SQLD_BINARY": "sh", "SQLD_EXTENSIONS": "/nowhere"}, "build_extension.sh"),
        (
            {
                "SQLD_KEY": str(_START),
                "SQLD_BINARY": "sh",
                "SQLD_EXTENSIONS": str(extensions()),
                "SQLD_TENANTS": "/nowhere",
            },
            "NAME.pub.pem",
        ),
    ],
)
def test_the_start_script_names_what_is_missing(environment: dict[str, str], named: str) -> None:
    done = subprocess.run(
        [_START], env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr


class TenantServer(ScriptedServer):
    """A server with namespaces; it has started when each answers its tenant, and has strong durability."""

    def __init__(self, folder: Path, keys: dict[str, SigningKey]) -> None:
        super().__init__(SQLD_TENANTS=str(folder))
        self.tokens = {name: signed_token(key, {"a": "rw"}) for name, key in keys.items()}

    def status(self, tenant: str, token: str) -> int:
        """Ask for the durability of a namespace; 0 if it is not strong."""
        headers = {"Host": f"{tenant}.localhost", "Authorization": f"Bearer {token}"}
        body = {"requests": [{"type": "execute", "stmt": {"sql": "PRAGMA synchronous"}}]}
        answer = httpx.post(f"{self.url}/v2/pipeline", headers=headers, json=body)
        return answer.status_code if '"value":"2"' in answer.text or not answer.is_success else 0

    def _answers(self) -> bool:
        return super()._answers() and all(self.status(*each) == 200 for each in self.tokens.items())


def test_the_start_script_opens_a_namespace_to_the_key_of_its_tenant_alone(tmp_path: Path) -> None:
    keys = {name: SigningKey(new_key()) for name in ("acme", "globex")}
    for name, key in keys.items():
        (tmp_path / f"{name}.pub.pem").write_bytes(public_pem(key))
    with TenantServer(tmp_path, keys) as server:
        for _ in ("first start", "another"):
            assert server.status("acme", server.tokens["globex"]) == 401
            assert server.status("acme", server.token) == 401
            assert server.status("initech", server.token) == 404
            server.kill()
            server.start()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", [_START, _HEALTHY, _BUILD], ids=lambda path: path.name)
def test_the_scripts_are_sound(script: Path) -> None:
    subprocess.run(["shellcheck", script], check=True, timeout=_PATIENCE_S)
