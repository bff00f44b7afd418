"""A real node with MCP, and the SDK's own client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.support.messages.relaying import PATIENCE_S, TOKEN
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh.http.access import Access
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.api.api import Api
from vox_mesh.http.api.performer import Performer
from vox_mesh.http.mcp.endpoint import McpEndpoint
from vox_mesh.http.server import agents_of
from vox_mesh.http.service import Service
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode

MODERN: Final = "2026-07-28"
LEGACY: Final = "legacy"


@dataclass
class McpNode:
    """A node that serves MCP, and its address."""

    node: MeshNode
    url: str
    service: Service
    endpoint: McpEndpoint
    shared_mesh: SharedMesh

    async def token_of(self, agent: str, *capabilities: str) -> str:
        """Admit an agent with these grants, by default those of a coder; its token."""
        await self.node.grants.admit(agent)
        await self.node.grants.issue(agent, [*(capabilities or ("coder",))])
        return (await self.node.principals.tokens.issue(agent, lasts="1h")).text

    @asynccontextmanager
    async def client(
        self, token: str, *, path: str = "/mcp", mode: str = MODERN, agent: str | None = None, **more: Any
    ) -> AsyncIterator[Client]:
        """The SDK's client of this node; one of an older revision has its stream for notices open."""
        has_stream = asyncio.Event()

        async def note(response: httpx2.Response) -> None:
            if response.request.method == "GET":
                has_stream.set()

        headers = {"Authorization": f"Bearer {token}"} | ({} if agent is None else {"Vox-Agent": agent})
        async with httpx2.AsyncClient(
            headers=headers, timeout=PATIENCE_S, trust_env=False, event_hooks={"response": [note]}
        ) as http:
            transport = streamable_http_client(f"{self.url}{path}", http_client=http)
            async with Client(transport, mode=mode, cache=None, **more) as client:
                if mode == LEGACY:
                    await asyncio.wait_for(has_stream.wait(), PATIENCE_S)
                yield client


@asynccontextmanager
async def serving_mcp(shared_mesh: SharedMesh, name: str = "ann", **more: Any) -> AsyncIterator[McpNode]:
    """A node of this mesh, with its API and MCP."""
    async with Mesh.open(shared_mesh.settings(name, http=False, **more)) as node:
        agents = agents_of(node)
        performer = Performer(node, Access(TOKEN, READ_TOKEN, agents=agents))
        endpoint = McpEndpoint(performer)
        address = ListenAddress.from_settings(None, None, has_token=True)
        service = Service(address, [Api(performer).add_to, endpoint.add_to])
        try:
            yield McpNode(node, await service.start(), service, endpoint, shared_mesh)
        finally:
            performer.end_waiting()
            endpoint.end()
            await service.stop()
            await endpoint.stop()
            await agents.refusals.close()


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool that succeeds."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, text_of(result)
    found: dict[str, Any] = result.structured_content
    return found


async def error_of(client: Client, tool: str, **arguments: Any) -> str:
    """The line of a tool that fails."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error, result.structured_content
    assert result.structured_content is None
    return text_of(result)


def text_of(result: CallToolResult) -> str:
    """The text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text
