"""Where the demo takes place: a folder, with a database or beside a server, and what the processes told."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.demo.board import Board
from tools.demo.cast import OWNER
from vox_mesh import Settings, load_settings
from vox_mesh.settings import EXAMPLES

FOLDER: Final = Path(".vox/demo")
_ROOT: Final = Path(__file__).resolve().parents[2]
_TICK: Final = "500ms"

Event = dict[str, Any]
"""What a process told: when, by the database's clock; which node; what; and what else there is to it."""


@dataclass(frozen=True)
class Stage:
    """The folder, and the server if there is one. Without it the database is a file in the folder."""

    folder: Path
    url: str | None = None
    token: str | None = None

    @property
    def database(self) -> Path:
        """The database, or in the end a copy of the server's."""
        return self.folder / "mesh.db"

    @property
    def board(self) -> Board:
        """The files that the locks protect."""
        return Board(self.folder / "board")

    @property
    def diary(self) -> Path:
        """All that the processes told, one event on each line."""
        return self.folder / "events.jsonl"

    def log(self, name: str) -> Path:
        """What a node's process says to people."""
        return self.folder / f"{name}.log"

    def events(self) -> list[Event]:
        """What the processes told."""
        return [json.loads(line) for line in self.diary.read_text().splitlines()]

    def variables(self, name: str) -> dict[str, str]:
        """The settings of a node. On a server each has a folder of its own, as on a machine of its own."""
        folder = self.folder.absolute()
        home = folder if self.url is None else folder / name
        variables = {
            "VOX_MESH_ENABLED": "1",
            "VOX_MESH_NODE_ID": name,
            "VOX_MESH_HOME": str(home),
            "VOX_MESH_TICK": _TICK,
            "VOX_DB_PATH": str(self.database.absolute() if self.url is None else home / "local.db"),
        }
        if self.url is not None and self.token is not None:
            variables |= {"VOX_DB_URL": self.url, "VOX_DB_TOKEN": self.token}
        return variables

    def environment(self, name: str) -> dict[str, str]:
        """All that a node's process sees."""
        return {**os.environ, **self.variables(name), "PYTHONPATH": str(_ROOT)}

    def settings(self) -> Settings:
        """For a command beside the owner of the mesh."""
        return load_settings(_env_file=None, **self.variables(OWNER))


def forget_settings() -> None:
    """Have nothing of the user's own mesh reach the demo."""
    for name in (*EXAMPLES, "TURSO_DATABASE_URL", "TURSO_AUTH_TOKEN"):
        os.environ.pop(name, None)
