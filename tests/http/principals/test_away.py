"""While the database is away and nothing is known about agents yet: tokens work, and agents wait."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.nodes.signing import SigningAgent, audience_of
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh.store import new_key


async def test_an_invalid_request_is_refused_and_is_no_fault_of_the_node(
    tmp_path: Path, server: Server
) -> None:
    async with serving_api(SharedMesh(MESH, tmp_path, server, new_key())) as served:
        server.kill()
        wrong = await served.ask("POST", "/v1/messages", {"to": "ben", "unknown": 1})
        assert_problem(wrong, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_body")
        agent = SigningAgent("coder", served.client, audience_of(served.node))
        answer = await agent.ask("POST", "/v1/messages", {"to": "ben", "payload": 1})
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        server.start()
