"""The mesh as an agent reaches it: an MCP server that is started with a token of the agent's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from vox_mesh.jobs.agents.config import MeshAccess
from vox_mesh.settings.secrets import read_secret

AGENT_ID: Final = "VOX_AGENT_ID"
AGENT_TOKEN: Final = "VOX_AGENT_TOKEN"  # noqa: S105 - the name of a variable
_NODE: Final = "VOX_MESH_NODE"


@dataclass(frozen=True)
class McpServer:
    """A command that speaks MCP, and its variables."""

    command: str
    arguments: Sequence[str]
    variables: dict[str, str]

    @property
    def secrets(self) -> list[str]:
        """Return what must not be in a transcript."""
        return [self.variables[AGENT_TOKEN]]


def mcp_server_of(access: MeshAccess | None) -> McpServer | None:
    """Return the mesh as an MCP server, or `None` without a token or without the extra `mcp`.

    Without a token the server would open the mesh with the rights of the worker. Raises `BadSettings` if the
    token can't be read. Blocking.
    """
    if access is None or find_spec("mcp") is None:
        return None
    token = read_secret(access.token_file, "token of the agent")
    variables = {AGENT_ID: access.agent_id, AGENT_TOKEN: token, _NODE: access.node}
    arguments = ("-m", "vox_mesh.cli", "mcp", "--profile", access.profile)
    return McpServer(sys.executable, arguments, variables)
