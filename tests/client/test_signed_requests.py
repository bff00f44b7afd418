"""The client of agents over a URL: it signs requests with the agent's key, which the owner has admitted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.nodes.signing import audience_of
from tests.support.running.through_node import run_through
from tools.homes import FILE
from vox_mesh.client import AgentClient
from vox_mesh.errors import BadSettings, Unauthorized
from vox_mesh.nodes.agent_keys import agent_key, agent_key_file


@pytest.fixture
async def served(folder: Path) -> AsyncIterator[ServedNode]:
    """The owner's node of a mesh without a scope, as most are, which serves on a port."""
    async with serving_api(SharedMesh(FILE, folder, None, scope_id="")) as served:
        yield served


def _url(served: ServedNode) -> str:
    return str(served.client.base_url).rstrip("/")


def _address(served: ServedNode) -> str:
    """The URL of the node, with its name."""
    return f"{_url(served)}#{audience_of(served.node)}"


async def _admit(served: ServedNode, home: Path, agent: str) -> Path:
    """Admit an agent with a new key; return the file of the key."""
    key = agent_key(home, agent, create=True)
    await served.node.grants.admit(agent, key.public)
    await served.node.grants.issue(agent, ["coder"])
    return agent_key_file(home, agent)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """The requests that are sent from now on."""
    requests: list[httpx.Request] = []
    send = httpx.AsyncClient.send

    async def record(client: httpx.AsyncClient, request: httpx.Request, **more: object) -> httpx.Response:
        requests.append(request)
        return await send(client, request, **more)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(httpx.AsyncClient, "send", record)
    return requests


@pytest.mark.parametrize("agent", ["coder", "Ünal 名"])
async def test_an_agent_signs_its_requests(
    served: ServedNode, folder: Path, sent: list[httpx.Request], agent: str
) -> None:
    key_file = await _admit(served, folder / "own", agent)
    async with AgentClient.open(_address(served), agent, key_file=key_file) as client:
        held = await client.locks.acquire(["file:a b?.py"])
        assert held.holder_agent == agent
        message = await client.messages.send(agent, {"pr": 42})
        assert [each.message_uuid for each in await client.messages.wait(5)] == [message.message_uuid]
        assert all("Signature" in each.headers for each in sent)
        assert [each.url.path for each in sent[:2]] == ["/v1/locks", "/v1/locks"], (
            "signed again, since the node has just started"
        )
        assert len(sent) == 4
        assert (await client.brief())["locks"] == ["file:a b?.py"]


async def test_an_agent_signs_for_the_named_node_only(
    served: ServedNode, folder: Path, sent: list[httpx.Request]
) -> None:
    key_file = await _admit(served, folder / "own", "coder")
    async with AgentClient.open(_url(served), "coder", key_file=key_file) as client:
        with pytest.raises(BadSettings, match="must be named to sign") as unnamed:
            await client.locks.acquire("task:1")
    assert f"VOX_MESH_NODE={_address(served)}" in str(unnamed.value.hint)
    assert not any("Signature" in each.headers for each in sent)
    other = f"{_url(served)}#{audience_of(served.node)._replace(node_id='ben')}"
    async with AgentClient.open(other, "coder", key_file=key_file) as client:
        with pytest.raises(BadSettings, match=f"is {audience_of(served.node)}, not .*/ben"):
            await client.locks.acquire("task:1")
    signed_for = {each.headers["Signature-Input"].rpartition("/")[2] for each in sent[1:]}
    assert signed_for == {'ben"'}, "the answer of a server changes nothing"
    assert await served.node.locks.holders() == []
    with pytest.raises(BadSettings, match="audience must be scope/repository/node"):
        async with AgentClient.open(f"{_url(served)}#ben", "coder", key_file=key_file):
            pass


async def test_a_replay_is_refused(served: ServedNode, folder: Path, sent: list[httpx.Request]) -> None:
    key_file = await _admit(served, folder / "own", "coder")
    async with AgentClient.open(_address(served), "coder", key_file=key_file) as client:
        await client.locks.acquire("task:1")
        acquiring = sent[-1]
        await client.locks.release_held()
    assert_problem(await served.client.send(acquiring), 401, "replayed")
    assert await served.node.locks.holders() == []


async def test_a_key_that_was_not_admitted_is_refused(served: ServedNode, folder: Path) -> None:
    await _admit(served, folder / "own", "coder")
    agent_key(folder / "other", "coder", create=True)
    key_file = agent_key_file(folder / "other", "coder")
    async with AgentClient.open(_address(served), "coder", key_file=key_file) as client:
        with pytest.raises(Unauthorized, match="no key of an admitted agent"):
            await client.locks.acquire("task:1")
    with pytest.raises(BadSettings, match="can't be combined"):
        async with AgentClient.open(_address(served), "coder", key_file=key_file, bearer="any"):
            pass


async def test_a_command_signs_with_the_key_in_the_home(served: ServedNode, folder: Path) -> None:
    at_node = {"VOX_MESH_NODE": _address(served), "VOX_AGENT_ID": "coder", "VOX_MESH_HOME": "keys"}
    unsigned = await run_through(folder, "lock", "acquire", "task:1", variables=at_node)
    assert (unsigned.code, unsigned.err.count("\n")) == (2, 1)
    assert "keys/agents/coder.pem can't be read" in unsigned.err
    made = await run_through(folder, "agents", "init", "coder", variables=at_node)
    key = agent_key(folder / "own" / "keys", "coder", create=False)
    assert key.public in made.out, made.err
    await served.node.grants.admit("coder", key.public)
    await served.node.grants.issue("coder", ["coder"])
    acquired = await run_through(folder, "lock", "acquire", "task:1", variables=at_node)
    assert acquired.code == 0, acquired.err
    assert [each.holder_agent for each in await served.node.locks.holders()] == ["coder"]
