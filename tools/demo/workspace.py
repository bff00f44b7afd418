"""The workspace of the demo: a folder with a database, or with a server, and the events of its processes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.demo.fenced_files import FencedFiles
from tools.demo.scenario import OWNER
from vox_mesh import Settings, load_settings
from vox_mesh.nodes.home_token import new_token
from vox_mesh.settings import EXAMPLES

FOLDER: Final = Path(".cache/demo")
_ROOT: Final = Path(__file__).resolve().parents[2]
_TICK: Final = "500ms"

Event = dict[str, Any]
"""An event of a process: when, by the database's clock; which node; its kind; and more."""


@dataclass(frozen=True)
class Workspace:
    """The folder, and the server if there is one. Without it the database is a file in the folder.

    `is_strict`: nothing is done without a grant.
    """

    folder: Path
    url: str | None = None
    token: str | None = None
    mesh_token: str = field(default_factory=new_token, repr=False)
    is_strict: bool = False

    @property
    def database(self) -> Path:
        """The database, or after the run a copy of the server's."""
        return self.folder / "mesh.db"

    @property
    def fenced_files(self) -> FencedFiles:
        """The files that the locks protect."""
        return FencedFiles(self.folder / "board")

    @property
    def event_log(self) -> Path:
        """All events of the processes, one on each line."""
        return self.folder / "events.jsonl"

    def log(self, name: str) -> Path:
        """Return the log file of a node's process."""
        return self.folder / f"{name}.log"

    def events(self) -> list[Event]:
        """Return the events of the processes."""
        return [json.loads(line) for line in self.event_log.read_text().splitlines()]

    def variables(self, name: str) -> dict[str, str]:
        """Return the settings of a node. On a server each has its own folder, as on its own machine."""
        folder = self.folder.absolute()
        home = folder if self.url is None else folder / name
        variables = {
            "VOX_MESH_ENABLED": "1",
            "VOX_MESH_NODE_ID": name,
            "VOX_MESH_HOME": str(home),
            "VOX_MESH_TICK": _TICK,
            "VOX_MESH_TOKEN": self.mesh_token,
            "VOX_DB_PATH": str(self.database.absolute() if self.url is None else home / "local.db"),
        }
        if self.is_strict:
            variables["VOX_MESH_STRICT"] = "1"
        if self.url is not None and self.token is not None:
            variables |= {"VOX_DB_URL": self.url, "VOX_DB_TOKEN": self.token}
        return variables

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a node's process."""
        return {**os.environ, **self.variables(name), "PYTHONPATH": str(_ROOT)}

    def settings(self) -> Settings:
        """Return the settings of a command of the owner."""
        return load_settings(_env_file=None, **self.variables(OWNER))


def forget_settings() -> None:
    """Remove the settings of the user's own mesh from the environment."""
    for name in (*EXAMPLES, "TURSO_DATABASE_URL", "TURSO_AUTH_TOKEN"):
        os.environ.pop(name, None)
