"""The real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.running.programs import NOTING_NODE
from tools.fork_server import Program
from tools.forked import Process
from tools.sqld import Server
from vox_mesh.cli import app

_ROOT: Final = Path(__file__).resolve().parents[2]
_PATIENCE_S: Final = 60.0
MESH_TOKEN: Final = "a-token-between-nodes-that-no-one-may-see"


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout; fails if there is anything else."""
        assert self.code in (0, 1, 3, 4), self
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


class VoxCommand:
    """Runs `vox-mesh` in a folder, with these variables and no others."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = variables

    @classmethod
    def with_home(cls, folder: Path, **variables: str) -> VoxCommand:
        """Runs it in a folder that has a home of its own, as those of earlier versions have."""
        (folder / ".vox").mkdir(mode=0o700, exist_ok=True)
        return cls(folder, VOX_MESH_ENABLED="1", **variables)

    def having(self, **variables: str) -> VoxCommand:
        """The same with more variables."""
        return VoxCommand(self.folder, **(self.variables | variables))

    def at(self, server: Server, token: str | None = None) -> VoxCommand:
        """The same on the mesh home of this server."""
        token = server.token if token is None else token
        return self.having(VOX_DB_URL=server.url, VOX_DB_TOKEN=token)

    @property
    def environment(self) -> dict[str, str]:
        """All that the command can see."""
        kept = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
            if name in os.environ
        }
        return kept | {"PYTHONPATH": str(_ROOT)} | self.variables

    def launch(self, *arguments: str) -> Process:
        """Start a command."""
        return Process(Program(arguments, self.environment, module="vox_mesh.cli", folder=str(self.folder)))

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Process]:
        """A command that goes on until it is asked to end; however the test ends, it does not outlive it."""
        with self.launch(*arguments) as process:
            try:
                yield process
            finally:
                process.kill()

    def __call__(self, *arguments: str, python: tuple[str, ...] = ()) -> Ended:
        """Run a command to its end; with options for Python, in an interpreter that is started for it."""
        if not python:
            with self.launch(*arguments) as process:
                out, err = process.communicate(_PATIENCE_S)
            return Ended(process.wait(), out, err)
        ended = subprocess.run(
            [sys.executable, *python, "-m", "vox_mesh.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)


class RunningNode:
    """A node that runs next to the commands and logs what it receives."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.node_id = self._heard()

    def note(self, text: str) -> str:
        """Have it log an op of the kind `note`; the op's id."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self._heard()

    def _heard(self) -> str:
        return self.process.stdout.readline().strip()


@contextmanager
def running_node(vox: VoxCommand, **variables: str) -> Iterator[RunningNode]:
    """A node in the commands' folder; it leaves cleanly at the end."""
    seen = vox.having(**variables).environment
    noting = Program((), seen, code=NOTING_NODE, folder=str(vox.folder))
    with Process(noting, has_stdin=True) as process:
        try:
            node = RunningNode(process)
            if not node.node_id:
                process.wait(_PATIENCE_S)
            yield node
            if process.poll() is None:
                process.communicate(timeout=_PATIENCE_S)  # which ends its input
        finally:
            process.kill()


@pytest.fixture
def memory(tmp_path: Path) -> VoxCommand:
    """Commands on the memory home."""
    return VoxCommand(tmp_path)


@pytest.fixture
def vox(tmp_path: Path) -> VoxCommand:
    """Commands on the file home."""
    return VoxCommand.with_home(tmp_path, VOX_MESH_TOKEN=MESH_TOKEN)


@pytest.fixture(params=["file", "mesh"])
def shared(request: pytest.FixtureRequest, vox: VoxCommand) -> VoxCommand:
    """Commands on an empty database, of the file home and of the mesh home in turn."""
    return vox if request.param == "file" else vox.at(request.getfixturevalue("server"))


def assert_wrong_usage(command: str, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with 2, and one line that names the fault."""
    assert app.run(command.split()) == 2
    shown = capsys.readouterr()
    assert (shown.out, fault in shown.err, shown.err.count("\n")) == ("", True, 1)
