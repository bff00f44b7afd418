"""A server that an agent takes for its node, and that wants signatures which another node accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from vox_mesh.client import AgentClient
from vox_mesh.errors import BadSettings
from vox_mesh.model.principals.request_signature import HEADERS, Audience
from vox_mesh.nodes.agent_keys import agent_key, agent_key_file

VICTIM = Audience("", "repository", "ann")
"""The node whose name the server gives for its own."""


class HostileServer:
    """Refuses all requests, as another node would, and notes for which node signed ones are."""

    def __init__(self) -> None:
        self.signed: list[str] = []
        self.code = "token_missing"

    async def answer(self, request: web.Request) -> web.Response:
        """Refuse a request."""
        if all(name in request.headers for name in HEADERS):
            self.signed.append(request.headers["Signature-Input"].partition("tag=")[2])
        return web.json_response({"code": self.code, "detail": "no", "audience": str(VICTIM)}, status=401)


@pytest.fixture
def hostile() -> HostileServer:
    """The server, which names its victim."""
    return HostileServer()


@pytest.fixture
async def url(hostile: HostileServer) -> AsyncIterator[str]:
    """Its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", hostile.answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/")


@pytest.mark.parametrize("code", ["token_missing", "signature_of_other_node"])
async def test_no_server_gets_a_signature_for_a_node_that_the_agent_did_not_name(
    hostile: HostileServer, url: str, code: str, tmp_path: Path
) -> None:
    hostile.code = code
    agent_key(tmp_path, "coder", create=True)
    key_file = agent_key_file(tmp_path, "coder")
    async with AgentClient.open(url, "coder", key_file=key_file) as client:
        with pytest.raises(BadSettings, match="must be named to sign requests for it"):
            await client.locks.acquire("task:1")
    assert hostile.signed == []
    own = VICTIM._replace(node_id="eve")
    async with AgentClient.open(f"{url}#{own}", "coder", key_file=key_file) as client:
        with pytest.raises(Exception, match=r"no|is /repository/ann, not /repository/eve"):
            await client.locks.acquire("task:1")
    assert hostile.signed == [f'"vox-mesh:{own}"']
