"""The real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tools.sqld import Server

_ROOT: Final = Path(__file__).resolve().parents[2]
_PATIENCE_S: Final = 60.0
MESH_TOKEN: Final = "a-token-between-nodes-that-nobody-may-see"


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout; fails if there is anything else."""
        assert self.code in (0, 1, 3), self
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of a command that ended with an error."""
        assert self.out == "", self
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        assert self.err.startswith("vox-mesh: "), self
        assert "; " in self.err, self
        return self.err


class Vox:
    """Runs `vox-mesh` in a folder, with these variables and no others."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = variables

    def having(self, **variables: str) -> Vox:
        """The same with more variables."""
        return Vox(self.folder, **(self.variables | variables))

    def at(self, server: Server, token: str | None = None) -> Vox:
        """The same on the mesh home of this server."""
        token = server.token if token is None else token
        return self.having(VOX_DB_URL=server.url, VOX_DB_TOKEN=token)

    @property
    def environment(self) -> dict[str, str]:
        """All that the command can see."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return kept | {"PYTHONPATH": str(_ROOT)} | self.variables

    def launch(self, *arguments: str, python: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, *python, "-m", "vox_mesh.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, python: tuple[str, ...] = ()) -> Ended:
        """Run a command to its end."""
        with self.launch(*arguments, python=python) as process:
            try:
                out, err = process.communicate(timeout=_PATIENCE_S)
            except BaseException:
                process.kill()
                raise
        return Ended(process.returncode, out, err)


@pytest.fixture
def memory(tmp_path: Path) -> Vox:
    """Commands on the memory home."""
    return Vox(tmp_path)


@pytest.fixture
def vox(tmp_path: Path) -> Vox:
    """Commands on the file home."""
    return Vox(tmp_path, VOX_MESH_ENABLED="1", VOX_MESH_TOKEN=MESH_TOKEN)


@pytest.fixture(params=["file", "mesh"])
def shared(request: pytest.FixtureRequest, vox: Vox) -> Vox:
    """Commands on an empty database, of the file home and of the mesh home in turn."""
    return vox if request.param == "file" else vox.at(request.getfixturevalue("server"))
