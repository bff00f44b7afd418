"""Workers in interpreters of their own, as an attacker meets them: with a true environment in /proc."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tools.install_sqld import cache_folder
from vox_mesh import Job, Manifest, Mesh, load_settings

_ROOT: Final = Path(__file__).resolve().parents[3]
_PATIENCE_S: Final = 120.0
_SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
IS_ROOT: Final = os.geteuid() == 0
OTHER_USER: Final = 65534
"""A user that is neither this one nor root."""


def bwrap() -> str | None:
    """Return bubblewrap: the installed one, or one in the cache."""
    return shutil.which("bwrap", path=f"{os.environ['PATH']}:{cache_folder() / 'bin'}")


class Ending(NamedTuple):
    """A job that has ended, and all that its command printed."""

    job: Job
    printed: str


@dataclass(frozen=True)
class RealVox:
    """Runs `vox-mesh` on the file home of a folder, each command in a new interpreter."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    path: str = _SYSTEM_PATH

    def __post_init__(self) -> None:
        self.home.mkdir(mode=0o700, exist_ok=True)

    @property
    def home(self) -> Path:
        """Return the home of its node."""
        return self.folder / ".vox"

    @property
    def environment(self) -> dict[str, str]:
        """Return all that the command can see."""
        kept = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config")}
        # Named, because jobs are scheduled by this process, which has another configuration.
        kept["VOX_MESH_HOME"] = str(self.home)
        settings = {"VOX_MESH_ENABLED": "1", "VOX_MESH_HTTP": "0", "VOX_AGENT_ID": "ada"}
        return {"PATH": self.path, "PYTHONPATH": str(_ROOT), **kept, **settings, **self.variables}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "vox_mesh.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )

    def attempt(self, *commands: Sequence[str], **fields: Any) -> tuple[list[Ending], str]:
        """Have a real worker run each command once; their ends in order, and what the worker logged."""
        each = {"timeout": 30, "max_attempts": 1, **fields}
        return self.attempt_all([Manifest.of(command=list(command), **each) for command in commands])

    def attempt_all(self, manifests: Sequence[Manifest], *options: str) -> tuple[list[Ending], str]:
        """Have a real worker run these jobs; their ends in order, and what the worker logged."""
        ids = asyncio.run(self._schedule(manifests))
        worked = self("worker", "run", "--exec", "--until-idle", *options)
        assert worked.returncode == 0, worked
        return asyncio.run(self._read(ids)), worked.stderr

    async def _schedule(self, manifests: Sequence[Manifest]) -> list[str]:
        async with Mesh.open_command(self._settings) as mesh:
            # One by one: the order of a batch is that of their dependencies.
            return [(await mesh.jobs.schedule_all([each]))[0].job_id for each in manifests]

    async def _read(self, ids: Sequence[str]) -> list[Ending]:
        async with Mesh.open_command(self._settings) as mesh:
            found = []
            for job_id in ids:
                pieces = await mesh.jobs.notes.logged(job_id)
                found.append(Ending(await mesh.jobs.find(job_id), "".join(each.text for each in pieces)))
            return found

    @property
    def _settings(self) -> Any:
        places = {"home_dir": self.home, "db_path": self.home / "cache/db/local.db"}
        return load_settings(_env_file=None, enabled=True, http=False, **places)
