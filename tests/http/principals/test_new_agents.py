"""New agents: what the owner grants on another node counts at once, also where a node was asked before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.nodes.signing import SigningAgent, audience_of
from tools.homes import FILE
from vox_mesh.mesh import Mesh
from vox_mesh.model.principals.agent_token import SECRET_BYTES, token_text
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key


class _Mesh(NamedTuple):
    owner: MeshNode
    other: ServedNode
    """Which knows nothing of what the owner does, until it reads it."""


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[_Mesh]:
    """The owner's node, and another that agents ask."""
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key())
    async with (
        Mesh.open(shared_mesh.settings("ann", http=False)) as owner,
        serving_api(shared_mesh, "ben") as other,
    ):
        yield _Mesh(owner, other)


async def test_a_token_is_accepted_right_after_it_was_issued_and_its_agent_granted(mesh: _Mesh) -> None:
    owner, other = mesh
    agent = SigningAgent("coder", other.client, audience_of(other.node))
    for _ in range(3):  # so it knows the state of this moment
        guess = token_text(new_key(), b"s" * SECRET_BYTES)
        assert_problem(await agent.ask_by(guess, "GET", "/v1/hooks/brief"), 401, "token_wrong")
        await owner.grants.admit("coder")
        token = (await owner.principals.tokens.issue("coder")).text
        assert_problem(await agent.ask_by(token, "GET", "/v1/hooks/brief"), 401, "token_wrong")
        grant = await owner.grants.issue("coder", ["reader"])
        answer = await agent.ask_by(token, "GET", "/v1/hooks/brief")
        assert answer.status_code == 200, answer.text
        await owner.grants.revoke(grant.grant_id)
        other.node.principals.known._reading.expire()


async def test_a_signature_is_accepted_right_after_its_agent_was_admitted(mesh: _Mesh) -> None:
    owner, other = mesh
    first, second = (SigningAgent("coder", other.client, audience_of(other.node)) for _ in range(2))
    assert_problem(await first.ask("GET", "/v1/hooks/brief"), 401, "signature_wrong")
    await owner.grants.admit("coder", first.key.public)
    assert (await first.ask("GET", "/v1/hooks/brief")).status_code == 200
    await owner.grants.admit("coder", second.key.public)
    assert (await second.ask("GET", "/v1/hooks/brief")).status_code == 200
    assert_problem(await first.ask("GET", "/v1/hooks/brief"), 401, "signature_wrong")


async def test_an_agent_may_do_what_it_was_granted_a_moment_ago(mesh: _Mesh) -> None:
    owner, other = mesh
    agent = SigningAgent("coder", other.client, audience_of(other.node))
    await owner.grants.admit("coder", agent.key.public)
    await owner.grants.issue("coder", ["message.send"])
    for method, path, body, capability in (
        ("POST", "/v1/locks", {"keys": ["task:1"]}, "lock.acquire"),
        ("GET", "/v1/nodes", None, "mesh.read"),
    ):
        assert_problem(await agent.ask(method, path, body), 403, "not_granted")
        await owner.grants.issue("coder", [capability])
        answer = await agent.ask(method, path, body)
        assert answer.status_code in (200, 201), answer.text


async def test_guessed_tokens_ask_the_database_together(mesh: _Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, readings = mesh.other.node.principals.tokens, 0
    read = tokens.in_force

    async def count(agent: str | None = None) -> object:
        nonlocal readings
        readings += 1
        return await read(agent)

    monkeypatch.setattr(tokens, "in_force", count)
    agent = SigningAgent("coder", mesh.other.client, audience_of(mesh.other.node))
    guesses = [token_text(new_key(), b"s" * SECRET_BYTES) for _ in range(60)]
    answers = await asyncio.gather(*(agent.ask_by(each, "GET", "/v1/hooks/brief") for each in guesses))
    assert {answer.status_code for answer in answers} == {401}
    assert readings < len(guesses) / 2
