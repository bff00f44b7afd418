"""A real node in a process of its own, and a client of its HTTP service."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import httpx

from tools.fork_server import Program
from tools.forked import AsyncProcess

TOKEN: Final = "the-token-of-the-example-fleet-0123456789"
READ_TOKEN: Final = "the-read-token-of-the-example-fleet-01234"
_ROOT: Final = Path(__file__).resolve().parents[2]
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.02
_NODE_UP: Final = re.compile(r"node up: .*url=(http://[\w.:]+)")


class NodeProcess:
    """`vox-mesh up` in a folder: a mesh on a file, which other nodes of the folder share."""

    def __init__(self, folder: Path, name: str, process: AsyncProcess, url: str) -> None:
        self.folder = folder
        self.name = name
        self.url = url
        self.pid = process.pid
        self.client = httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S)
        self._process = process

    @classmethod
    async def start(cls, folder: Path, name: str, *options: str, **variables: str) -> Self:
        """Start a node and wait until it is up."""
        log = folder / f"{name}.log"
        program = Program(
            ("up", "--node-id", name, *options),
            {**_environment(), **variables_of(folder), **variables, "PYTHONPATH": str(_ROOT)},
            module="vox_mesh.cli",
            folder=str(folder),
        )
        with log.open("wb") as stderr:
            process = await AsyncProcess.start(program, stderr.fileno())
        return cls(folder, name, process, await _address(process, log))

    @property
    def log(self) -> str:
        """The node's log."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        agent: str | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        """Send a request with the full token; `agent` acts."""
        headers = {b"Authorization": f"Bearer {TOKEN}".encode()}
        if agent is not None:
            headers[b"Vox-Agent"] = agent.encode()
        return await self.client.request(method, path, json=body, headers=headers, params=query)

    async def get(self, path: str, **query: Any) -> Any:
        """Return what the node answers to a read."""
        answer = await self.ask("GET", path, query=query)
        assert answer.is_success, f"GET {path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def send(
        self, path: str, body: Any = None, *, method: str = "POST", agent: str | None = None
    ) -> Any:
        """Return what the node answers to a write."""
        answer = await self.ask(method, path, {} if body is None else body, agent=agent)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def local(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a request through the node's local socket, as the user of this process."""
        socket = self.folder / ".vox" / "slots" / self.name / "http.sock"
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        async with httpx.AsyncClient(transport=transport, timeout=_PATIENCE_S) as client:
            return await client.request(method, f"http://node{path}", json=body)

    async def console_path(self, name: str = "alice", *, read_only: bool = False) -> str:
        """Return the path that signs a person in, once, with a one-time code."""
        answer = await self.local("POST", "/ui/codes", {"name": name, "read_only": read_only})
        assert answer.is_success, answer.text
        path: str = answer.json()["path"]
        return path

    async def stop(self) -> None:
        """Shut the node down gracefully."""
        self._process.terminate()
        await self._ended()

    async def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        await self._ended()

    async def _ended(self) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await self._process.communicate()
        await self.client.aclose()


def _environment() -> dict[str, str]:
    """Return the variables of this process without the settings of the user's own mesh."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("VOX_", "TURSO_"))}


def variables_of(folder: Path) -> dict[str, str]:
    """Return the settings of all nodes and commands of a folder."""
    home = folder / ".vox"
    return {
        "VOX_MESH_ENABLED": "1",
        "VOX_MESH_HOME": str(home),
        "VOX_DB_PATH": str(home / "mesh.db"),
        "VOX_MESH_TOKEN": TOKEN,
        "VOX_MESH_READ_TOKEN": READ_TOKEN,
        "VOX_MESH_COMMAND_SERVER": "0",
        "VOX_MESH_SCOPE_ID": "shop",
        "VOX_MESH_REPOSITORY_ID": "website",
    }


async def _address(process: AsyncProcess, log: Path) -> str:
    """Wait until a node has logged its address."""

    def logged() -> str:
        return log.read_text(errors="replace")

    async with asyncio.timeout(_PATIENCE_S):
        while (found := _NODE_UP.search(logged())) is None:
            assert process.returncode is None, f"the node ended early:\n{logged()}"
            await asyncio.sleep(_POLL_S)
    return found[1]


def settings_of(folder: Path, name: str) -> Mapping[str, Any]:
    """Return the arguments of `load_settings` for a node of a folder in this process."""
    home = folder / ".vox"
    return {
        "_env_file": None,
        "enabled": True,
        "node_id": name,
        "home_dir": home,
        "db_path": home / "mesh.db",
        "scope_id": "shop",
        "repository_id": "website",
        "http": False,
    }
