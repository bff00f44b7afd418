"""What `deploy/` holds does what it says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tools.install_sqld import binary
from tools.sqld import Server
from vox_mesh import load_settings, open_store
from vox_mesh.errors import Unauthorized

_START: Final = Path(__file__).resolve().parent.parent / "deploy" / "sqld" / "start.sh"


class ScriptedServer(Server):
    """The test server, started by the script instead of by its own flags."""

    def launch(self) -> None:
        """Start without waiting."""
        environment = {
            **os.environ,
            "SQLD_BINARY": str(binary()),
            "SQLD_DATA": str(self._folder / "data"),
            "SQLD_LISTEN": f"127.0.0.1:{self.port}",
            "SQLD_KEY": str(self.key_file()),
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([_START], env=environment, stdout=log, stderr=log)


async def test_the_start_script_runs_a_server_that_is_safe_for_a_mesh(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        settings = load_settings(
            _env_file=None, enabled=True, home_dir=tmp_path, db_url=server.url, db_token=server.token
        )
        async with await open_store(settings) as store:
            assert (await store.read("PRAGMA wal_autocheckpoint")).value == 0
        with pytest.raises(Unauthorized):
            await open_store(settings.model_copy(update={"db_token": None}))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "SQLD_KEY"),
        ({"SQLD_KEY": "nowhere.pem"}, "nowhere.pem"),
        ({"SQLD_KEY": str(_START), "SQLD_BINARY": "no-such-server"}, "no-such-server"),
    ],
)
def test_the_start_script_names_what_is_missing(environment: dict[str, str], named: str) -> None:
    done = subprocess.run(
        [_START], env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr
