"""The mesh that is attacked: its folder, database and settings, and what the attacker knows of it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proof.chaos.schedule import PACE, StoreKind
from proof.history import Recorder
from proof.hostile.database import HostileDatabase
from tools.homes import FILE, HomeCase
from tools.sqld import Server, free_port
from vox_mesh import Settings
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.model.rhythm.window_keys import RELAY, issue

NODES: Final = ("ann", "ben", "cleo")
SCOPE: Final = "hostile"
REPOSITORY: Final = "default"

_TOKENS: Final = {
    "full": "a-token-that-may-do-everything-1",
    "read": "a-token-that-may-read-everything",
    "metrics": "a-token-that-may-read-metrics-01",
    "guess": "a-token-that-was-never-made-by-1",
}
_DRIVERS: Final = (Driver.WS, Driver.HTTP)
_REPLICAS: Final = (ReplicaChoice.AUTO, ReplicaChoice.OFF, ReplicaChoice.AUTO)
_HANG_UP: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@dataclass
class AttackedMesh:
    """A small mesh of several processes on one machine."""

    folder: Path
    server: Server | None = None
    settings: dict[str, Settings] = field(default_factory=dict)
    id: tuple[str, str] = (SCOPE, REPOSITORY)

    @property
    def urls(self) -> dict[str, str]:
        """The service of each node."""
        return {name: f"http://{settings.bind}" for name, settings in self.settings.items()}

    @property
    def database(self) -> HostileDatabase:
        """The database, for a writer with all rights."""
        return HostileDatabase(self._file if self.server is None else self.server)

    @property
    def _file(self) -> Path:
        return self.folder / "shared" / "mesh.db"

    def credential(self, name: str) -> str | None:
        """Return what a client presents: a token, or a key of the relay, which the full token can make."""
        if name == "relay":
            now_ms = time.time_ns() // 1_000_000
            return issue(_TOKENS["full"], self.id, RELAY, Window(now_ms - 1_000, now_ms + 30_000))
        return _TOKENS.get(name)

    def configure(self, name: str, number: int) -> None:
        """Set a node up: over different protocols, with and without a replica."""
        values: dict[str, Any] = {"node_id": name, "scope_id": SCOPE, "repository_id": REPOSITORY}
        values |= {
            "token": _TOKENS["full"],
            "read_token": _TOKENS["read"],
            "metrics_token": _TOKENS["metrics"],
        }
        values |= {"http": True, "bind": f"127.0.0.1:{free_port()}", "tick": f"{PACE.tick_s * 1_000:.0f}ms"}
        case = FILE
        if self.server is None:
            values["db_path"] = self._file
        else:
            case = HomeCase(
                Backend.SERVER, _DRIVERS[number % len(_DRIVERS)], _REPLICAS[number % len(_REPLICAS)]
            )
        self.settings[name] = case.settings(self.folder / name, self.server, **values)


@asynccontextmanager
async def open_mesh(store: StoreKind) -> AsyncIterator[AttackedMesh]:
    """Yield a mesh that can be started, and remove it afterwards."""
    async with AsyncExitStack() as ending:
        folder = Path(tempfile.mkdtemp(prefix="vox-hostile-"))
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        mesh = AttackedMesh(folder)
        if store is StoreKind.SQLD:
            mesh.server = ending.enter_context(Server())
        for number, name in enumerate(NODES):
            mesh.configure(name, number)
        yield mesh


@asynccontextmanager
async def open_trap(recorder: Recorder) -> AsyncIterator[str]:
    """Yield the address of a service of the attacker; every request that it gets is noted."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        recorder.note("trapped", line=line.decode(errors="replace")[:200])
        writer.write(_HANG_UP)
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield f"http://127.0.0.1:{port}"
