"""A mesh of real nodes for outside clients: processes with fixtures of the suite, and an agent's token."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.nodes.node_runs import UpNode, machines, node_settings
from tools.homes import FILE, environment
from vox_mesh import Mesh, Settings

AGENT: Final = "coder"
_ROOT: Final = Path(__file__).resolve().parents[3]
FIXTURES: Final = "tests.support.mcp.fixture_node"
PLAIN: Final = "vox_mesh.cli"
_HANDLERS: Final = "tests.support.mcp.fixtures.jobs:handlers"


@dataclass(frozen=True)
class SuiteMesh:
    """Nodes in processes of their own, and the token of an agent that all of them accept."""

    nodes: list[UpNode]
    token: str

    def url(self, place: int = 0, path: str = "/mcp") -> str:
        """Return where a node serves MCP. Tests of DNS rebinding want this name."""
        port = str(self.nodes[place].settings.bind).rpartition(":")[2]
        return f"http://localhost:{port}{path}"

    def pipe(self, place: int = 0) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return `vox-mesh mcp` as a host starts it next to a node: the command, and its variables."""
        settings = self.nodes[place].settings
        own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), **environment(settings)}
        return (sys.executable, "-m", PLAIN, "mcp"), {**own, "VOX_AGENT_TOKEN": self.token}


@asynccontextmanager
async def suite_mesh(folder: Path, *names: str, module: str = FIXTURES) -> AsyncIterator[SuiteMesh]:
    """Run a mesh of these nodes, by default with fixtures."""
    token = await _issue_token(_settings(folder, "owner", http=False))
    async with machines(folder) as here:
        nodes = [
            await here.ready(_settings(folder, name), "--handlers", _HANDLERS, module=module)
            for name in names
        ]
        yield SuiteMesh(nodes, token)


def _settings(folder: Path, name: str, **more: Any) -> Settings:
    # The suite calls as fast as it can, and is one agent.
    return node_settings(FILE, folder, None, name, db_path=folder / "shared.db", **more)


async def _issue_token(settings: Settings) -> str:
    async with Mesh.open(settings) as owner:
        await owner.grants.admit(AGENT)
        await owner.grants.issue(AGENT, ["coder"])
        return (await owner.principals.tokens.issue(AGENT, lasts="1h")).text
