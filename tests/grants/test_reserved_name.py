"""The name of the mesh itself: the audit trusts its entries, so there is no way to act in it from outside."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh import acting_as
from vox_mesh.client import AgentClient
from vox_mesh.errors import BadSettings, BadValue
from vox_mesh.http.agent_socket import parse_agents
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.node import MeshNode
from vox_mesh.settings.quick import quick_settings
from vox_mesh.settings.settings import load_settings
from vox_mesh.store import new_key

REFUSED: Final = "must not be '?mesh'?: only the mesh itself acts in this name"


async def act(node: MeshNode) -> None:
    with acting_as(MESH_AGENT):
        await node.crons.remove("any")


WAYS: Final[dict[str, Callable[[MeshNode], Awaitable[Any]]]] = {
    "act": act,
    "lock": lambda node: node.locks.acquire("task:1", agent=MESH_AGENT),
    "heartbeat": lambda node: node.locks.heartbeat(agent=MESH_AGENT),
    "send": lambda node: node.messages.send("bob", 1, sender=MESH_AGENT),
    "broadcast": lambda node: node.messages.broadcast(1, sender=MESH_AGENT),
    "receive": lambda node: node.messages.poll_inbox_from_db(MESH_AGENT),
    "ask for help": lambda node: node.rhythm.help.ask("bob", "how?", sender=MESH_AGENT),
    "take a job": lambda node: node.work.take(MESH_AGENT),
    "admit": lambda node: node.grants.admit(MESH_AGENT),
    "token": lambda node: node.principals.tokens.issue(MESH_AGENT),
}


async def test_python_refuses_the_name_of_the_mesh(tmp_path: Path) -> None:
    async with Mesh.open(SharedMesh(FILE, tmp_path, None, new_key()).settings("owner")) as owner:
        for way in WAYS.values():
            with pytest.raises(BadValue, match=REFUSED):
                await way(owner)


@pytest.mark.parametrize("variable", ["VOX_AGENT_ID", "VOX_MESH_NODE_ID"])
def test_settings_refuse_the_name_of_the_mesh(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, MESH_AGENT)
    assert quick_settings() is None
    with pytest.raises(BadSettings, match=f"{variable}.*{REFUSED}"):
        load_settings()


async def test_no_user_and_no_client_has_the_name_of_the_mesh() -> None:
    with pytest.raises(BadSettings, match=REFUSED):
        parse_agents("1001=mesh")
    with pytest.raises(BadValue, match=REFUSED):
        async with AgentClient.open("http://127.0.0.1:1", MESH_AGENT):
            pass


async def test_http_refuses_the_name_of_the_mesh(tmp_path: Path) -> None:
    async with serving_api(SharedMesh(FILE, tmp_path, None, new_key())) as served:
        requests: list[tuple[str, Any, dict[str, str]]] = [
            ("/v1/messages", {"to": "bob", "payload": 1, "sender": MESH_AGENT}, {}),
            ("/v1/locks", {"keys": ["task:1"], "agent": MESH_AGENT}, {}),
            ("/v1/agents/mesh/heartbeat", None, {}),
            ("/v1/inbox/mesh/claim", {}, {}),
            ("/v1/jobs/take", {}, {"Vox-Agent": MESH_AGENT}),
            ("/v1/jobs", {"manifests": [{"kind": "notes"}]}, {"Vox-Agent": MESH_AGENT}),
        ]
        for path, body, headers in requests:
            answer = await served.ask("POST", path, body, headers=headers)
            assert_problem(answer, 422, "bad_value")
            assert re.search(REFUSED, answer.json()["detail"]), path


def test_no_agent_has_the_name_of_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSettings, match="must not begin with 'person:'"):
        parse_agents("1001=person:alice")
    monkeypatch.setenv("VOX_AGENT_ID", "person:alice")
    assert quick_settings() is None
    with pytest.raises(BadSettings, match=r"VOX_AGENT_ID.*must not begin with person:"):
        load_settings()
