"""An agent that tries to use up the sessions of MCP, or to end those of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx
import orjson
import pytest
import pytest_asyncio

from tests.support.hosts.mcp_clients import MODERN, McpNode, serving_mcp
from tests.support.messages.relaying import PATIENCE_S, TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.http.mcp.sessions import MAX_SESSIONS
from vox_mesh.store import new_key

_SESSION: Final = "Mcp-Session-Id"
_VERSION: Final = "MCP-Protocol-Version"
_TIMES: Final = MAX_SESSIONS + 20


class _Sessions:
    """An agent that opens sessions by plain requests."""

    def __init__(self, client: httpx.AsyncClient, url: str, token: str, agent: str) -> None:
        self._client = client
        self._url = f"{url}/mcp"
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Vox-Agent": agent,
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }

    async def post(self, method: str, headers: dict[str, str], **params: object) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self._client.post(self._url, headers=self._headers | headers, content=orjson.dumps(body))

    async def open(self) -> httpx.Response:
        info = {"name": "test", "version": "1"}
        return await self.post(
            "initialize", {}, protocolVersion="2025-06-18", capabilities={}, clientInfo=info
        )

    async def is_open(self, session_id: str) -> bool:
        return (await self.post("ping", {_SESSION: session_id})).status_code == 200

    async def name_session(self, session_id: str) -> httpx.Response:
        """Send a request of the newest revision, which has no sessions, and name one all the same."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers = {_SESSION: session_id, _VERSION: MODERN, "Mcp-Method": "tools/list"}
        return await self.post("tools/list", headers, _meta=meta)

    async def seem_to_end(self, session_id: str) -> None:
        headers = self._headers | {_SESSION: session_id, _VERSION: MODERN}
        await self._client.delete(self._url, headers=headers)


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[McpNode]:
    """A node with MCP."""
    async with serving_mcp(SharedMesh(FILE, tmp_path, None, new_key())) as served:
        yield served


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client with enough connections."""
    limits = httpx.Limits(max_connections=_TIMES)
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S, limits=limits) as client:
        yield client


@pytest.mark.parametrize("how", ["at once", "seeming to end", "with names of none"])
async def test_no_agent_takes_the_sessions_of_others(
    served: McpNode, client: httpx.AsyncClient, how: str
) -> None:
    ann = _Sessions(client, served.url, TOKEN, "ann")
    eve = _Sessions(client, served.url, await served.token_of("eve"), "eve")
    own = (await ann.open()).headers[_SESSION]
    if how == "at once":
        await asyncio.gather(*(eve.open() for _ in range(_TIMES)))
    elif how == "seeming to end":
        for _ in range(_TIMES):
            await eve.seem_to_end((await eve.open()).headers.get(_SESSION, "none"))
    else:
        for number in range(_TIMES):
            assert (await eve.name_session(f"{number:032}")).status_code == 200
    assert (await _Sessions(client, served.url, TOKEN, "ben").open()).status_code == 200
    assert await ann.is_open(own)
