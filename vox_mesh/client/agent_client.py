"""The client of one agent: locks, messages, jobs and approvals through a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vox_mesh.client.approvals import ClientApprovals
from vox_mesh.client.connection import NodeConnection
from vox_mesh.client.jobs import ClientJobs
from vox_mesh.client.locks import ClientLocks
from vox_mesh.client.messages import ClientMessages
from vox_mesh.client.work import ClientWork
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.messages.records import checked_agent


class AgentClient:
    """An agent that speaks to a node, with the nouns and records of `Mesh`.

    Every call has a deadline. Errors are those of the mesh; `Unreachable` and `NoAnswer` are about the node.
    """

    def __init__(
        self, address: str, agent: str, *, key: SigningKey | None = None, bearer: str | None = None
    ) -> None:
        """Use `open`."""
        self.agent = checked_agent(agent)
        self._connection = NodeConnection(address, self.agent, key=key, bearer=bearer)
        self.locks = ClientLocks(self._connection)
        self.messages = ClientMessages(self._connection, key)
        self.jobs = ClientJobs(self._connection)
        self.work = ClientWork(self._connection)
        self.approvals = ClientApprovals(self._connection)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, address: str, agent: str, *, key_file: Path | None = None, bearer: str | None = None
    ) -> AsyncIterator[AgentClient]:
        """Open a client of the node at `unix:PATH`, `http://HOST:PORT` or `https://HOST`.

        Over a socket, the user of this process is the agent. Over a URL, `key_file` is the key of the agent
        (`vox-mesh agents init`), with which requests are signed, or `bearer` is a bearer of it. To sign them,
        the URL ends with `#SCOPE/REPOSITORY/NODE`: the client signs for no other node.
        """
        key = None
        if key_file is not None:
            from vox_mesh.nodes.key_file import load_key  # imported late: few have a key

            key = load_key(key_file)
        client = cls(address, agent, key=key, bearer=bearer)
        try:
            yield client
        finally:
            await client._connection.close()

    async def brief(self) -> dict[str, Any]:
        """Return what the mesh knows of this agent: its locks, what it waits for, its jobs and its mail."""
        found: dict[str, Any] = await self._connection.get(f"/v1/agents/{quote(self.agent, safe='')}")
        return found
