"""Grants over HTTP: shown, checked and delegated there, but issued and revoked with the owner's key only."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.grants.grant import Grant, Terms
from vox_mesh.model.grants.templates import capabilities_of
from vox_mesh.store.script import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANN: Final = SigningKey(b"a" * 32)


async def test_grants_are_listed_shown_and_checked_as_the_commands_do(served: ServedNode) -> None:
    await served.node.grants.admit("amy", ANN.public)
    line = "lock.acquire on 'file:src/**'"
    grant = await served.node.grants.issue("amy", [f"{line} rate 5/1h open 2"], budget=10, delegations=1)
    found = await served.all("/v1/grants", limit=1)
    assert [each["grant_id"] for each in found] == [None, grant.grant_id]
    assert found == await printed(served, "grant", "list")
    assert [each["grant_id"] for each in await served.all("/v1/grants", agent="amy")] == [grant.grant_id]
    assert await served.get(f"/v1/grants/{grant.grant_id}") == found[1]
    assert_problem(await served.ask("GET", "/v1/grants/nemo"), HTTPStatus.NOT_FOUND, "not_known")
    for path, is_allowed in (("src/a", True), ("doc", False)):
        asked = {"agent": "amy", "act": f"lock.acquire on file:{path}"}
        answer = (await served.ask("POST", "/v1/grants/check", asked, token=READ_TOKEN)).json()
        assert answer["is_allowed"] is is_allowed
    lock = await served.node.locks.acquire("file:src/a", agent="amy")
    await served.node.run_once()
    shown = await served.get("/v1/agents/amy")
    assert (shown["admitted"], shown["public_key"], shown["grants"]) == (True, ANN.public, 1)
    assert shown["grant_use"] == [
        {"grant_id": grant.grant_id, "allows": allows, "limit": limit, "used": used, "most": most}
        for allows, limit, used, most in (
            (line, "rate 5/1h", 1, 5),
            (line, "open 2", 1, 2),
            ("jobs", "budget 10", 0, 10),
        )
    ]
    assert (await printed(served, "agents", "show", "amy"))["grant_use"] == shown["grant_use"]
    await served.node.locks.release(lock)
    await served.node.grants.revoke(grant.grant_id)


async def test_an_agent_delegates_by_a_document_that_it_has_signed(served: ServedNode) -> None:
    await served.node.grants.admit("amy", ANN.public)
    await served.node.grants.admit("bob")
    parent = await served.node.grants.issue("amy", ["lock.acquire on file:src/**"], delegations=1)

    def delegation(line: str, key: SigningKey, **more: Any) -> dict[str, str]:
        terms = Terms(capabilities_of([line]), parent.terms.from_ms)
        grant = Grant(new_key(), ANN.public, "bob", None, parent.grant_id, terms)._replace(**more)
        document, signature = grant.sign(key, served.shared_mesh.scope_id)
        return {"grant": document, "signature": signature}

    narrow = "lock.acquire on file:src/web/**"
    refused = {
        "not_authentic": delegation(narrow, SigningKey(b"b" * 32)),
        "wider": delegation("lock.acquire on file:**", ANN),
        "other key": delegation(narrow, ANN, agent_key=ANN.public),
        "no parent": delegation(narrow, ANN, parent_id=None),
    }
    for name, body in refused.items():
        answer = await served.ask("POST", "/v1/grants/delegate", body)
        assert answer.status_code in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.NOT_FOUND), name
    assert len(await served.node.grants.in_force()) == 1
    body = delegation(narrow, ANN)
    answer = await served.ask("POST", "/v1/grants/delegate", body)
    assert (answer.status_code, answer.json()["parent_id"]) == (HTTPStatus.CREATED, parent.grant_id)
    again = await served.ask("POST", "/v1/grants/delegate", body)  # as after a lost answer
    assert (again.status_code, again.json()) == (HTTPStatus.CREATED, answer.json())
    assert (await served.node.grants.check("bob", "lock.acquire on file:src/web/a")).is_allowed
    await served.node.grants.revoke(parent.grant_id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/grants/issue"),
        ("POST", "/v1/grants/any/revoke"),
        ("POST", "/v1/agents/ann/admit"),
        ("POST", "/v1/nodes/ann/admit"),
        ("PUT", "/v1/strict"),
    ],
)
async def test_what_needs_the_owner_s_key_is_not_done_over_http(
    served: ServedNode, method: str, path: str
) -> None:
    answer = await served.ask(method, path, {})
    assert_problem(answer, HTTPStatus.FORBIDDEN, "owner_only")
    assert answer.json()["hint"].startswith("run `vox-mesh ")
