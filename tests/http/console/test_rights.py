"""The rights of people: in their own name, never more than the credential with which they signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from tests.support.messages.relaying import TOKEN, assert_problem
from tests.support.nodes.api_scene import approval
from tests.support.nodes.served_console import ConsoleBrowser, ServedConsole
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import assert_whole
from tests.support.nodes.signing import SigningAgent, audience_of
from vox_mesh.errors import BadValue
from vox_mesh.http.api.api import OPERATIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _last_op(served: ServedConsole, kind: str) -> Any:
    """The last entry of a kind in the log."""
    entries = [each async for page in served.node.oplog.entries() for each in page if each.kind == kind]
    return entries[-1]


async def _ask(
    browser: ConsoleBrowser, token: str, method: str, path: str, body: Any = None, **headers: str
) -> Any:
    """Ask with a token instead of a session."""
    headers |= {"Authorization": f"Bearer {token}"}
    return await browser.client.request(method, browser.url + path, headers=headers, json=body)


@asynccontextmanager
async def _strict(served: ServedConsole) -> AsyncIterator[None]:
    known = served.node.principals.known
    await served.node.grants.set_strict(strict=True)
    await known.renew()
    try:
        yield
    finally:
        await served.node.grants.set_strict(strict=False)
        await known.renew()


async def test_the_log_names_the_person(served: ServedConsole, alice: ConsoleBrowser) -> None:
    await served.node.locks.acquire("file:named", agent="coder", ttl=60.0)
    broken = await alice.ask("POST", "/v1/locks/break", {"lock_key": "file:named", "reason": "hangs"})
    assert broken.status_code == HTTPStatus.OK, broken.text
    entry = await _last_op(served, "BreakLock")
    assert (entry.op_id, entry.agent) == (broken.json()["op_id"], "person:alice")
    await assert_whole(served.node)


async def test_a_person_acts_in_no_other_name(alice: ConsoleBrowser) -> None:
    sent = await alice.ask("POST", "/v1/messages", {"to": "coder", "payload": "hello"})
    assert [each["sender_agent"] for each in sent.json()] == ["person:alice"], sent.text
    for body in ({"sender": "coder"}, {"sender": "person:bob"}):
        answer = await alice.ask("POST", "/v1/messages", {"to": "coder", "payload": "hello", **body})
        assert_problem(answer, 403, "not_your_name")
    for header in ("coder", "person:bob"):
        answer = await alice.ask("POST", "/v1/messages", {"to": "coder", "payload": 1}, Vox_Agent=header)
        assert_problem(answer, 403, "not_your_name")
    taken = await alice.ask("POST", "/v1/inbox/coder/claim", {})
    assert_problem(taken, 403, "not_your_name")
    assert [each["payload"] for each in (await alice.get("/v1/inbox/coder"))["items"]] == ["hello"]


async def test_nothing_but_a_session_acts_in_the_name_of_a_person(
    served: ServedConsole, browser: ConsoleBrowser
) -> None:
    body = {"to": "coder", "payload": "hello", "sender": "person:alice"}
    assert_problem(await _ask(browser, TOKEN, "POST", "/v1/messages", body), 403, "not_your_name")
    lock = {"keys": ["x"], "agent": "person:alice"}
    assert_problem(await _ask(browser, TOKEN, "POST", "/v1/locks", lock), 403, "not_your_name")
    named = {"Vox-Agent": "person:alice"}
    answer = await _ask(browser, TOKEN, "POST", "/v1/locks", {"keys": ["x"], "agent": "eve"}, **named)
    assert_problem(answer, 403, "not_your_name")
    with pytest.raises(BadValue, match="must not begin with 'person:'"):
        await served.node.grants.admit("person:alice")


async def test_a_read_only_session_reads_what_a_read_token_reads(
    served: ServedConsole, browser: ConsoleBrowser
) -> None:
    await served.node.messages.send("coder", "a secret", sender="planner")
    async with served.signed_in("carl", read_only=True) as carl:
        seen = await carl.get("/v1/messages")
        assert seen == (await _ask(browser, READ_TOKEN, "GET", "/v1/messages")).json()
        assert "a secret" not in str(seen)
        refused = await carl.ask("POST", "/v1/messages", {"to": "coder", "payload": "hello"})
        assert_problem(refused, 403, "read_only")
        me = await carl.get("/v1/me")
        by_name = {each.name: each for each in OPERATIONS}
        assert (me["may_write"], me["kind"]) == (False, "person")
        assert {by_name[name].scope.value for name in me["operations"]} == {"read"}


async def test_the_owner_decides_on_approvals_in_person(served: ServedConsole, alice: ConsoleBrowser) -> None:
    name = await approval(served.node)
    done = await alice.ask("POST", f"/v1/approvals/{name}/approve", {"reason": "fine"})
    assert done.status_code == HTTPStatus.OK, done.text
    assert (done.json()["state"], done.json()["decided_by"]) == ("applied", "person:alice")
    await assert_whole(served.node)


async def test_in_a_strict_mesh_the_user_of_the_owner_writes_and_the_token_reads(
    served: ServedConsole, alice: ConsoleBrowser, browser: ConsoleBrowser
) -> None:
    await browser.sign_in(token=TOKEN, name="bob")
    async with _strict(served):
        assert (await alice.get("/ui/session"))["strict"]
        jobs = {"manifests": [{"kind": "strict.job"}]}
        made = await alice.ask("POST", "/v1/jobs", jobs)
        assert made.status_code == HTTPStatus.OK, made.text
        lock = await alice.ask("POST", "/v1/locks", {"keys": ["strict"]})
        assert lock.status_code == HTTPStatus.CREATED, lock.text
        sent = await alice.ask("POST", "/v1/messages", {"to": "coder", "payload": "hello"})
        assert sent.is_success, sent.text
        assert (await _last_op(served, "ScheduleJob")).agent == "person:alice"
        await assert_whole(served.node)
        assert (await browser.get("/v1/me"))["may_write"] is False
        assert (await browser.get("/ui/session"))["may_write"] is False
        assert_problem(await browser.ask("POST", "/v1/jobs", jobs), 403, "strict_mode")


async def test_only_the_owners_side_gets_a_code(served: ServedConsole, browser: ConsoleBrowser) -> None:
    body = {"name": "eve"}
    assert_problem(await browser.client.post(f"{served.url}/ui/codes", json=body), 401, "token_missing")
    assert_problem(await _ask(browser, READ_TOKEN, "POST", "/ui/codes", body), 403, "person_only")
    assert_problem(await _ask(browser, "wrong", "POST", "/ui/codes", body), 401, "token_wrong")
    for_agent = await _ask(browser, TOKEN, "POST", "/ui/codes", body, **{"Vox-Agent": "eve"})
    assert_problem(for_agent, 403, "person_only")
    assert_problem(await served.ask_for_code(body, **{"Vox-Agent": "eve"}), 403, "person_only")
    assert_problem(await served.ask_for_code(body, Origin="http://evil.example"), 403, "forwarded")
    async with served.signed_in() as alice:
        assert_problem(await alice.ask("POST", "/ui/codes", body), 401, "token_missing")
    given = await _ask(browser, TOKEN, "POST", "/ui/codes", body)
    assert given.status_code == HTTPStatus.OK


async def test_no_agent_gets_a_code(served: ServedConsole, browser: ConsoleBrowser) -> None:
    browser.client.base_url = served.url
    agent = SigningAgent("eve", browser.client, audience_of(served.node))
    await served.node.grants.admit("eve", agent.key.public)
    await served.node.grants.issue("eve", ["*"])
    await served.node.principals.known.renew()
    assert_problem(await agent.ask("POST", "/ui/codes", {"name": "eve"}), 403, "person_only")
    bearer = await agent.bearer()
    refused = await agent.ask_by(bearer, "POST", "/ui/codes", {"name": "eve"})
    assert_problem(refused, 403, "person_only")
    signed_in = await browser.ask("POST", "/ui/session", {"token": bearer, "name": "eve"})
    assert_problem(signed_in, 401, "token_wrong")


async def test_every_credential_learns_who_it_is(served: ServedConsole, alice: ConsoleBrowser) -> None:
    everything = {each.name for each in OPERATIONS if not each.need.is_signed}
    me = await alice.get("/v1/me")
    assert {**me, "operations": None} == {
        "name": "alice",
        "kind": "person",
        "agent": "person:alice",
        "may_write": True,
        "operations": None,
    }
    assert set(me["operations"]) == everything
    token = (await _ask(alice, TOKEN, "GET", "/v1/me")).json()
    assert (token["kind"], token["agent"], token["may_write"]) == ("token", None, True)
    assert set(token["operations"]) == everything
    reader = (await _ask(alice, READ_TOKEN, "GET", "/v1/me")).json()
    assert (reader["kind"], reader["may_write"]) == ("read", False)
    assert "show_me" in reader["operations"]
    assert "schedule_jobs" not in reader["operations"]


async def test_an_agent_learns_what_its_grants_allow(served: ServedConsole, browser: ConsoleBrowser) -> None:
    browser.client.base_url = served.url
    agent = SigningAgent("meek", browser.client, audience_of(served.node))
    await served.node.grants.admit("meek", agent.key.public)
    await served.node.grants.issue("meek", ["lock.acquire"])
    answer = await agent.ask("GET", "/v1/me")
    me = answer.json()
    assert (me["name"], me["kind"], me["agent"]) == ("meek", "agent", "meek"), answer.text
    assert {"acquire_lock", "show_me", "issue_bearer"} <= set(me["operations"])
    assert not {"break_lock", "sweep_locks", "remove_node"} & set(me["operations"])
