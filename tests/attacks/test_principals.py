"""Agents that prove who they are: by signatures and bearers, in their own name only, by their grants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import orjson
import pytest
import pytest_asyncio

from tests.support.messages.relaying import TOKEN, assert_problem
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.nodes.signing import SigningAgent, audience_of
from tools.homes import FILE
from vox_mesh.errors import BadValue, NotKnown, Refused
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.operations import Operation
from vox_mesh.mesh import Mesh
from vox_mesh.model.principals.agent_bearer import BearerHolder, issue_bearer
from vox_mesh.model.principals.agent_token import digest_of, token_text
from vox_mesh.model.principals.request_signature import MAX_SKEW_MS
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.store import new_key
from vox_mesh.store.script import Script, Statement

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES: Final = ("coder", "Ünal 名")
"""Agents that were admitted with a key, as coders; the second one has a name that no header can carry."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedNode]:
    """The owner's node."""
    shared_mesh = SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())
    async with serving_api(shared_mesh) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agents(served: ServedNode) -> list[SigningAgent]:
    """The admitted agents."""
    found = [SigningAgent(name, served.client, audience_of(served.node)) for name in NAMES]
    for each in found:
        await served.node.grants.admit(each.name, each.key.public)
        await served.node.grants.issue(each.name, ["coder"])
    return found


@pytest.fixture
def coder(agents: list[SigningAgent]) -> SigningAgent:
    """The first agent."""
    return agents[0]


# --- who it is -----------------------------------------------------------------------------------------


async def test_an_agent_acts_in_its_own_name_without_saying_it(
    served: ServedNode, agents: list[SigningAgent]
) -> None:
    for agent in agents:
        body = {"keys": [f"task:{agent.name}"]}
        answer = await agent.ask("POST", "/v1/locks", body)
        assert answer.status_code == 201, answer.text
        lock = answer.json()
        (held,) = [each for each in await served.node.locks.holders() if each.lock_key == body["keys"][0]]
        assert held.holder_agent == agent.name
        sent = await agent.ask("POST", "/v1/messages", {"to": "ben", "payload": 1})
        assert sent.json()[0]["sender_agent"] == agent.name, sent.text
        assert sent.json()[0]["payload"] == 1
        release = {"lock_key": lock["lock_keys"][0], "fence_token": lock["fence_token"]}
        assert (await agent.ask("POST", "/v1/locks/release", release)).status_code == 200


async def test_a_bearer_stands_for_the_signature_of_its_agent(
    served: ServedNode, coder: SigningAgent
) -> None:
    bearer = await coder.bearer()
    sent = await coder.ask_by(bearer, "POST", "/v1/messages", {"to": "ben", "payload": 1})
    assert sent.json()[0]["sender_agent"] == "coder", sent.text
    again = await coder.ask_by(bearer, "POST", "/v1/agents/coder/bearer")
    assert_problem(again, 403, "signature_needed")
    assert_problem(await served.ask("POST", "/v1/agents/coder/bearer"), 403, "signature_needed")


async def test_a_captured_request_is_refused(served: ServedNode, coder: SigningAgent) -> None:
    request = coder.signed("POST", "/v1/messages", {"to": "ben", "payload": 1})
    assert (await coder.client.send(request)).status_code == 201
    assert_problem(await coder.client.send(request), 401, "replayed")
    for later_ms in (-MAX_SKEW_MS - 5_000, MAX_SKEW_MS + 5_000):
        old = coder.signed("GET", "/v1/rhythm/beat", later_ms=later_ms)
        assert_problem(await coder.client.send(old), 401, "signature_stale")
    before_the_start = coder.signed("GET", "/v1/rhythm/beat", later_ms=-MAX_SKEW_MS + 5_000)
    assert_problem(await coder.client.send(before_the_start), 401, "signature_stale")


async def test_a_changed_request_is_refused(coder: SigningAgent) -> None:
    path = "/v1/inbox/coder?limit=5"

    async def change(**changes: Any) -> httpx.Response:
        request = coder.signed("POST", "/v1/messages", {"to": "ben", "payload": 1})
        headers = {**request.headers, **changes.pop("headers", {})}
        parts: dict[str, Any] = {"method": "POST", "url": request.url, "content": request.content}
        return await coder.client.request(**(parts | changes), headers=headers)

    changed = orjson.dumps({"to": "eve", "payload": 1})
    longer = await change(content=changed, headers={"content-length": str(len(changed))})
    assert_problem(longer, 401, "digest_wrong")
    assert_problem(await change(method="PUT"), 405, "method_not_allowed")
    assert_problem(await change(url="/v1/locks"), 401, "signature_wrong")
    other = await coder.client.get(f"{path}5", headers=coder.signed("GET", path).headers)
    assert_problem(other, 401, "signature_wrong")
    assert_problem(await change(headers={"Authorization": f"Bearer {TOKEN}"}), 401, "signature_malformed")
    for name in ("signature", "signature-input", "content-digest"):
        headers = [*coder.signed("GET", path).headers.raw]
        twice = [*headers, *(each for each in headers if each[0].lower() == name.encode())]
        assert_problem(await coder.client.get(path, headers=twice), 401, "signature_malformed")


async def test_another_key_or_node_or_agent_is_refused(served: ServedNode, coder: SigningAgent) -> None:
    stranger = SigningAgent("stranger", served.client, coder.audience)
    assert_problem(await stranger.ask("GET", "/v1/rhythm/beat"), 401, "signature_wrong")
    forger = SigningAgent("coder", served.client, coder.audience)
    assert_problem(await forger.ask("GET", "/v1/rhythm/beat"), 401, "signature_wrong")
    elsewhere = SigningAgent("coder", served.client, coder.audience._replace(node_id="ben"), coder.key)
    assert_problem(await elsewhere.ask("GET", "/v1/rhythm/beat"), 401, "signature_of_other_node")
    await served.node.grants.admit("keyless")
    assert_problem(
        await SigningAgent("keyless", served.client, coder.audience).ask("GET", "/v1/db"),
        401,
        "signature_wrong",
    )


async def test_a_bearer_of_another_bar_or_key_is_refused(served: ServedNode, coder: SigningAgent) -> None:
    bearers, context = served.node.principals.bearers, served.node.rhythm.context
    now_ms = served.node.clock.now_ms
    for window in (Window(now_ms - 4_000, now_ms - 1), Window(now_ms + 5_000, now_ms + 9_000)):
        holder = BearerHolder(served.node.identity.node_id, coder.key.public, "coder")
        text = issue_bearer(bearers._secret, context.mesh, holder, window)
        assert_problem(await coder.ask_by(text, "GET", "/v1/rhythm/beat"), 401, "token_stale")
    window = Window(now_ms - 1_000, now_ms + 50_000)
    for holder in (
        BearerHolder("ben", coder.key.public, "coder"),
        BearerHolder(served.node.identity.node_id, "ed25519:" + "5" * 64, "coder"),
    ):
        text = issue_bearer(bearers._secret, context.mesh, holder, window)
        assert_problem(await coder.ask_by(text, "GET", "/v1/rhythm/beat"), 401, "token_stale")
        text = issue_bearer(TOKEN, context.mesh, holder, window)
        assert_problem(await coder.ask_by(text, "GET", "/v1/rhythm/beat"), 401, "token_wrong")
    assert_problem(await coder.ask_by("vxb1.", "GET", "/v1/rhythm/beat"), 401, "token_wrong")


async def test_a_bearer_ends_with_the_last_grant_of_its_agent(served: ServedNode) -> None:
    node = served.node
    agent = SigningAgent("brief", served.client, audience_of(node))
    await node.grants.admit("brief", agent.key.public)
    grant = await node.grants.issue("brief", ["reader"])
    await _forget(served)
    bearer = await agent.bearer()
    assert (await agent.ask_by(bearer, "GET", "/v1/nodes")).status_code == 200
    await node.grants.revoke(grant.grant_id)
    await _forget(served)
    assert_problem(await agent.ask_by(bearer, "GET", "/v1/nodes"), 401, "token_stale")
    assert_problem(await agent.ask("GET", "/v1/nodes"), 403, "not_granted")


async def _forget(served: ServedNode) -> None:
    """Have the node read what is known about agents again: it remembers it for a second."""
    served.node.principals.known._reading.expire()
    await served.node.principals.known.refresh()


# --- in its own name only ------------------------------------------------------------------------------

_NAMING: Final = [each for each in OPERATIONS if each.own_path or each.own_query or each.own_body]


@pytest.mark.parametrize("operation", _NAMING, ids=lambda each: each.name)
async def test_an_agent_can_name_no_other(coder: SigningAgent, operation: Operation) -> None:
    path = operation.path.format(**dict.fromkeys(operation.names, "eve"))
    query = "&".join(f"{name}=eve" for name in operation.own_query)
    body = None if operation.body is None else dict.fromkeys(operation.own_body, "eve")
    answer = await coder.ask(operation.method, f"{path}?{query}" if query else path, body)
    assert_problem(answer, 403, "not_your_name")


async def test_the_fields_that_name_an_agent_are_known() -> None:
    found = {(each.name, name) for each in _NAMING for name in each.own_path | each.own_body | each.own_query}
    assert found == {
        *(("acquire_lock", "agent"), ("release_held_locks", "agent"), ("check_paths", "agent")),
        *(("send_message", "sender"), ("send_heartbeat", "agent_id"), ("issue_bearer", "agent_id")),
        *(("look_into_inbox", "agent"), ("claim_messages", "agent"), ("wait_for_messages", "agent")),
        *(("ask_for_help", "agent"), ("promise_help", "agent"), ("answer_help", "agent")),
        *(("withdraw_promise", "agent"), ("claim_status", "agent_id")),
    }


async def test_a_header_can_name_no_other(served: ServedNode, agents: list[SigningAgent]) -> None:
    coder, unal = agents
    path = "/v1/rhythm/beat"
    assert (await coder.ask("GET", path, **{"Vox-Agent": "coder"})).status_code == 200
    assert_problem(await coder.ask("GET", path, **{"Vox-Agent": "eve"}), 403, "not_your_name")
    assert (await unal.ask("GET", path)).status_code == 200  # learns since when the node runs
    own = [*unal.signed("GET", path).headers.raw, (b"Vox-Agent", unal.name.encode())]
    assert (await served.client.get(path, headers=own)).status_code == 200
    for names in ((b"coder", b"eve"), (b"eve", b"coder")):
        headers = [*coder.signed("GET", path).headers.raw, *((b"Vox-Agent", name) for name in names)]
        assert_problem(await served.client.get(path, headers=headers), 400, "bad_header")
    headers = [(b"Authorization", f"Bearer {TOKEN}".encode()), (b"Vox-Agent", b"a"), (b"Vox-Agent", b"b")]
    assert_problem(await served.client.get(path, headers=headers), 400, "bad_header")


async def test_what_is_of_others_stays_theirs(served: ServedNode, coder: SigningAgent) -> None:
    node = served.node
    lock = await node.locks.acquire("task:of-eve", agent="eve")
    held = {"lock_key": "task:of-eve", "fence_token": lock.fence_token}
    for action in ("renew", "release"):
        assert_problem(await coder.ask("POST", f"/v1/locks/{action}", held), 403, "not_its_agent")
    await node.messages.send("eve", "secret", sender="ann")
    (message,) = await node.messages.poll_inbox_from_db("eve")
    claim = {"claim_owner": message.claim_owner}
    for action in ("ack", "nack"):
        answer = await coder.ask("POST", f"/v1/messages/{message.message_uuid}/{action}", claim)
        assert_problem(answer, 403, "not_its_agent")
    job = await node.jobs.schedule("test.of-eve")
    (taken,) = await node.work.take("eve", ["test.of-eve"])
    claimed = {"claim_token": taken.claim_token}
    for action, body in (("report", {"outcome": "succeeded"}), ("log", {"text": "x"}), ("renew", {})):
        answer = await coder.ask("POST", f"/v1/jobs/{job.job_id}/{action}", {**body, **claimed})
        assert_problem(answer, 403, "not_its_agent")


async def test_an_agent_sees_what_is_its_own_and_others_redacted(
    served: ServedNode, agents: list[SigningAgent]
) -> None:
    coder, _ = agents
    await served.node.messages.send("coder", "for you", sender="ann")
    await served.node.messages.send("dan", "for dan", sender="ann")
    (own,) = (await coder.ask("GET", "/v1/inbox/coder")).json()["items"]
    assert own["payload"] == "for you"
    (other,) = (await coder.ask("GET", "/v1/messages?receiver=dan")).json()["items"]
    assert other["payload"] is None
    (claimed,) = (await coder.ask("POST", "/v1/inbox/coder/claim", {})).json()
    ack = {"claim_owner": claimed["claim_owner"]}
    answer = await coder.ask("POST", f"/v1/messages/{claimed['message_uuid']}/ack", ack)
    assert answer.status_code == 200, answer.text
    await served.node.locks.acquire("task:seen", agent="dan")
    (seen,) = (await coder.ask("GET", "/v1/locks?key=task:seen")).json()["items"]
    assert (seen["holder_agent"], seen["fence_token"]) == ("dan", None)


# --- by its grants -------------------------------------------------------------------------------------


async def test_the_front_refuses_what_no_grant_allows(served: ServedNode) -> None:
    node = served.node
    agent = SigningAgent("narrow", served.client, audience_of(node))
    await node.grants.admit("narrow", agent.key.public)
    lines = ["lock.acquire on task:*", "message.send to role:qa", "message.receive to role:qa"]
    await node.grants.issue("narrow", lines)
    await _forget(served)
    refused: list[tuple[str, str, Any]] = [
        ("GET", "/v1/locks", None),
        ("GET", "/v1/agents/coder", None),
        ("GET", "/v1/nodes", None),
        ("POST", "/v1/locks", {"keys": ["file:a"]}),
        ("POST", "/v1/messages", {"to": "coder", "payload": 1}),
        ("POST", "/v1/inbox/narrow/claim", {"roles": ["qa", "ops"]}),
        ("GET", "/v1/inbox/narrow?roles=ops", None),
        ("POST", "/v1/jobs/take", {}),
        ("POST", "/v1/jobs", {"manifests": [{"kind": "test.a"}]}),
        ("PUT", "/v1/budgets", {"subject": "agent:narrow", "budget": None}),
        ("DELETE", "/v1/crons/daily", None),
        ("GET", "/v1/jobs/ffffff/logs", None),
    ]
    for method, path, body in refused:
        assert_problem(await agent.ask(method, path, body), 403, "not_granted")
    for method, path in (
        ("POST", "/v1/oplog/anchor"),
        ("POST", "/v1/locks/sweep"),
        ("GET", "/v1/oplog/export"),
    ):
        assert_problem(await agent.ask(method, path), 403, "owner_only")
    allowed: list[tuple[str, str, Any]] = [
        ("GET", "/v1/locks?agent=narrow", None),
        ("GET", "/v1/inbox/narrow?roles=qa", None),
        ("POST", "/v1/locks", {"keys": ["task:1"]}),
        ("POST", "/v1/messages", {"to": "role:qa", "payload": 1}),
        ("POST", "/v1/inbox/narrow/claim", {"roles": ["qa"]}),
        ("GET", "/v1/openapi.json", None),
    ]
    for method, path, body in allowed:
        answer = await agent.ask(method, path, body)
        assert answer.is_success, answer.text
    async with asyncio.timeout(30):
        async for entry in node.oplog.follow(0):
            if entry.kind == "AccessRefused" and entry.agent == "narrow":
                break
    found = orjson.loads(entry.payload)
    sorts = {(each["operation"], each["reason"]) for each in found["refused"]}
    assert found["agent"] == "narrow"
    assert {("GET /v1/locks", "not_granted"), ("POST /v1/locks/sweep", "owner_only")} <= sorts
    await assert_whole(node)


async def test_what_a_grant_asks_for_is_not_read_without_an_approval(served: ServedNode) -> None:
    node = served.node
    agent = SigningAgent("asker", served.client, audience_of(node))
    await node.grants.admit("asker", agent.key.public)
    await node.grants.issue("asker", ["ask *"])
    await _forget(served)
    job = await node.jobs.schedule("test.asked")
    for path in ("/v1/nodes", "/v1/inbox/asker?roles=qa", f"/v1/jobs/{job.job_id}/logs"):
        assert_problem(await agent.ask("GET", path), 403, "not_granted")
    claim = await agent.ask("POST", "/v1/inbox/asker/claim", {"roles": ["qa"]})
    assert_problem(claim, 403, "not_granted")
    assert (await agent.ask("GET", "/v1/inbox/asker")).status_code == 200


_NEEDS_NOTHING: Final = {
    *("send_heartbeat", "release_lock", "release_held_locks", "ack_message", "nack_message"),
    *("report_job_progress", "log_job", "keep_artifact", "report_job", "claim_status"),
    *("delegate_grant", "approve", "deny", "answer_hook", "wait_for_mail", "cancel_task"),
}
"""What acts on an agent's own things, which it proves by a token or by its name."""


async def test_each_operation_that_writes_says_what_it_needs(served: ServedNode) -> None:
    writes = [each for each in OPERATIONS if each.method != "GET"]
    assert {each.name for each in writes if not each.need.words} == _NEEDS_NOTHING
    document = await served.get("/v1/openapi.json")
    assert document["paths"]["/v1/locks"]["post"]["x-vox-needs"] == ["lock.acquire"]
    assert document["paths"]["/v1/nodes"]["get"]["x-vox-needs"] == ["mesh.read"]


async def test_in_a_strict_mesh_the_shared_token_reads_only(served: ServedNode) -> None:
    await served.node.grants.set_strict(strict=True)
    await _forget(served)
    try:
        body = {"keys": ["task:strict"], "agent": "eve"}
        assert_problem(await served.ask("POST", "/v1/locks", body), 403, "strict_mode")
        assert (await served.ask("GET", "/v1/nodes")).status_code == 200
        named = await served.ask("GET", "/v1/nodes", headers={"Vox-Agent": "eve"})
        assert_problem(named, 403, "not_your_name")
    finally:
        await served.node.grants.set_strict(strict=False)
        await _forget(served)


# --- tokens for hosts ----------------------------------------------------------------------------------


async def test_a_token_of_an_agent_opens_its_two_surfaces_until_it_is_revoked(
    served: ServedNode, coder: SigningAgent
) -> None:
    node = served.node
    await node.locks.acquire("task:brief", agent="coder")
    await node.messages.send("coder", "read me", sender="ann")
    job = await node.jobs.schedule("test.brief")
    issued = await node.principals.tokens.issue("coder", lasts="1h")
    answer = await coder.ask_by(issued.text, "GET", "/v1/hooks/brief")
    assert answer.status_code == 200, answer.text
    brief = answer.json()
    assert (brief["agent_id"], brief["node_id"], brief["unread"]) == ("coder", "ann", 1)
    (lock,) = [each for each in brief["locks"] if each["lock_key"] == "task:brief"]
    assert lock["fence_token"] > 0
    assert job.job_id in {each["job_id"] for each in brief["ready"]}
    assert "can job.take" in brief["grants"]
    assert (await coder.ask("GET", "/v1/hooks/brief")).json()["agent_id"] == "coder"
    for method, path in (("GET", "/v1/nodes"), ("POST", "/v1/locks"), ("POST", "/v1/agents/coder/bearer")):
        assert_problem(await coder.ask_by(issued.text, method, path, {}), 403, "token_of_surface")
    escaping = await coder.ask_by(issued.text, "GET", "/v1/hooks/%2e%2e/nodes")
    assert escaping.status_code in (403, 404)
    changed = issued.text[:-1] + ("A" if issued.text[-1] != "A" else "B")
    for text in (changed, "vxa1.", f"vxa1.{new_key()}.{'A' * 43}"):
        assert_problem(await coder.ask_by(text, "GET", "/v1/hooks/brief"), 401, "token_wrong")
    assert [each.token_id for each in await node.principals.tokens.in_force("coder")] == [
        issued.token.token_id
    ]
    await node.principals.tokens.revoke(issued.token.token_id)
    assert_problem(await coder.ask_by(issued.text, "GET", "/v1/hooks/brief"), 401, "token_wrong")
    await assert_whole(node)


async def test_a_token_that_the_owner_did_not_sign_is_refused(
    served: ServedNode, coder: SigningAgent
) -> None:
    node = served.node
    issued = await node.principals.tokens.issue("coder")
    forged_id, secret = new_key(), b"s" * 32
    text = token_text(forged_id, secret)
    insert = "INSERT INTO agent_tokens VALUES (?, ?, ?, 'coder', ?, 9000000000000)"
    await node.store.write(Script(Statement(insert, (*node.store.mesh_id, forged_id, digest_of(text)))))
    node.principals.tokens._reading.expire()
    assert_problem(await coder.ask_by(text, "GET", "/v1/hooks/brief"), 401, "token_wrong")
    assert (await coder.ask_by(issued.text, "GET", "/v1/hooks/brief")).status_code == 200


async def test_only_the_owner_issues_tokens_and_to_admitted_agents_only(served: ServedNode) -> None:
    with pytest.raises(Refused, match="agent_not_admitted"):
        await served.node.principals.tokens.issue("nameless")
    with pytest.raises(BadValue, match="lasts"):
        await served.node.principals.tokens.issue("coder", lasts="400d")
    async with Mesh.open(served.shared_mesh.settings("ben", http=False)) as other:
        with pytest.raises(Refused, match="not_the_owner"):
            await other.principals.tokens.issue("coder")
    with pytest.raises(NotKnown, match="not found"):
        await served.node.principals.tokens.revoke(new_key())
