"""Who may use the tools: the same credentials, grants and refusals as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest
import pytest_asyncio
from mcp.shared.exceptions import MCPError

from tests.support.hosts.mcp_clients import LEGACY, MODERN, McpNode, call, error_of, serving_mcp
from tests.support.messages.relaying import PATIENCE_S, TOKEN, assert_problem
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.nodes.signing import SigningAgent, audience_of
from tools.homes import FILE
from vox_mesh import Manifest
from vox_mesh.hosts.mcp.definitions import DEFINITIONS
from vox_mesh.http.requests import MAX_BODY_BYTES
from vox_mesh.store import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

each_era = pytest.mark.parametrize("mode", [MODERN, LEGACY])

_SOME_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "lock": {"keys": ["task:a"]},
    "send": {"to": "ben", "body": "hello"},
    "submit": {"kind": "test.some"},
    "take": {},
    "look": {"what": "jobs"},
    "break": {"key": "task:a", "reason": "test"},
    "pause": {"kind": "test.some"},
    "budget": {"subject": "agent:ben", "max_tokens": 1},
    "resolve": {"what": "conflict", "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "value": "left"},
}
_SAME: Final = {
    "lock": ("POST", "/v1/locks", {"keys": ["task:a"]}),
    "send": ("POST", "/v1/messages", {"to": "ben", "payload": "hello"}),
    "submit": ("POST", "/v1/jobs", {"manifests": [{"kind": "test.some", "payload": None}]}),
    "take": ("POST", "/v1/jobs/take", {}),
    "look": ("GET", "/v1/jobs", None),
    "break": ("POST", "/v1/locks/break", {"lock_key": "task:a", "reason": "test"}),
    "pause": ("POST", "/v1/kinds/test.some/pause", None),
    "budget": ("PUT", "/v1/budgets", {"subject": "agent:ben", "budget": {"max_tokens": 1}}),
    "resolve": ("POST", "/v1/conflicts/01ARZ3NDEKTSV4RRFFQ69G5FAV/resolve", {"take": "left"}),
}
"""The requests that do the same over HTTP."""


async def post(served: McpNode, body: bytes | None, path: str = "/mcp", **headers: str) -> httpx.Response:
    """A plain request to a profile."""
    given = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {TOKEN}",
    }
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE_S, trust_env=False) as client:
        return await client.post(path, content=body, headers=given | headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(served: McpNode) -> AsyncIterator[tuple[SigningAgent, str]]:
    """An agent that may do nothing of the sort, and its token; it has a key, too, for the API."""
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE_S, trust_env=False) as client:
        agent = SigningAgent("narrow", client, audience_of(served.node))
        await served.node.grants.admit("narrow", agent.key.public)
        await served.node.grants.issue("narrow", ["can op.append"])
        yield agent, (await served.node.principals.tokens.issue("narrow", lasts="1h")).text


@each_era
@pytest.mark.parametrize("tool", _SAME)
async def test_an_agent_is_refused_by_a_tool_as_by_the_api(
    served: McpNode, narrow: tuple[SigningAgent, str], tool: str, mode: str
) -> None:
    agent, token = narrow
    async with served.client(token, path="/mcp/operator", mode=mode) as client:
        line = await error_of(client, tool, **_SOME_ARGUMENTS[tool])
    refused = await agent.ask(*_SAME[tool])
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (HTTPStatus.FORBIDDEN, "not_granted")
    assert line.startswith(f"not_granted: {problem['detail']}. ")


async def test_what_a_tool_refuses_is_recorded_in_the_log(
    served: McpNode, narrow: tuple[SigningAgent, str]
) -> None:
    async with served.client(narrow[1]) as client:
        await error_of(client, "send", to="ben", body="hello")
    async with asyncio.timeout(PATIENCE_S):
        async for _ in served.node.store.changes():
            written = [each.payload async for page in served.node.oplog.entries() for each in page]
            if any("POST /v1/messages" in payload and "narrow" in payload for payload in written):
                return


@pytest.mark.parametrize("tool", DEFINITIONS)
async def test_no_argument_names_the_agent_that_acts(served: McpNode, tool: str) -> None:
    token = await served.token_of(f"own-{tool}")
    async with served.client(token, path="/mcp/operator") as client:
        for name in ("agent", "agent_id", "sender", "as"):
            line = await error_of(client, tool, **_SOME_ARGUMENTS.get(tool, {}), **{name: "ben"})
            assert line.startswith(f"bad_argument: argument {name!r} is unknown")


async def test_a_token_acts_as_its_agent_only(served: McpNode) -> None:
    token = await served.token_of("ann")
    answer = await post(served, b"{}", Authorization=f"Bearer {token}", **{"Vox-Agent": "ben"})
    assert_problem(answer, 403, "not_your_name")
    twice = await post(served, b"{}", Authorization=f"Bearer {token[:-1]}")
    assert_problem(twice, 401, "token_wrong")
    assert_problem(await post(served, b"{}", Authorization="Bearer nothing"), 401, "token_wrong")


async def test_a_revoked_token_ends_what_a_session_may_do(served: McpNode) -> None:
    token = await served.token_of("leaver")
    async with served.client(token, mode=LEGACY) as client:
        await call(client, "brief")
        (issued,) = await served.node.principals.tokens.in_force("leaver")
        await served.node.principals.tokens.revoke(issued.token_id)
        with pytest.raises(MCPError):
            await call(client, "brief")


async def test_the_owners_side_acts_for_the_agent_that_it_names(served: McpNode) -> None:
    async with served.client(TOKEN, agent="ann") as client:
        assert (await call(client, "brief"))["agent"] == "ann"
    async with served.client(TOKEN) as client:
        assert (await error_of(client, "brief")).startswith("no_agent: ")
        assert "nodes" in await call(client, "look", what="nodes")


async def test_a_token_for_reading_writes_nothing_and_sees_no_body(served: McpNode) -> None:
    await served.node.messages.send("ben", "for ben alone", sender="ann")
    async with served.client(READ_TOKEN, agent="ben") as client:
        assert (await error_of(client, "lock", keys=["task:a"])).startswith("read_only: ")
        assert "for ben alone" not in str(await call(client, "look", what="messages", full=True))


async def test_a_strict_mesh_lets_the_shared_token_write_nothing(tmp_path: Path) -> None:
    shared_mesh = SharedMesh(FILE, tmp_path, None, new_key())
    async with serving_mcp(shared_mesh, strict=True) as served, served.client(TOKEN) as client:
        assert (await error_of(client, "send", to="ben", body="hello")).startswith("no_agent: ")
        assert (await error_of(client, "unlock")).startswith("no_agent: ")
        answer = await post(served, b"{}", **{"Vox-Agent": "ann"})
        assert_problem(answer, 403, "not_your_name")
    async with serving_mcp(shared_mesh) as served:
        await served.node.grants.admit("ann")
        await served.node.grants.issue("ann", ["can op.append"])
        token = (await served.node.principals.tokens.issue("ann")).text
        async with served.client(token) as client:
            assert (await error_of(client, "lock", keys=["task:a"])).startswith("not_granted: ")


async def test_variables_of_jobs_do_not_reach_a_model(served: McpNode) -> None:
    manifest = Manifest.of(command=["true"], timeout="5s", env={"API_KEY": "s3cret-value"})
    (job,) = await served.node.jobs.schedule_all([manifest])
    async with served.client(TOKEN, agent="ann") as client:
        for arguments in ({"what": "job", "id": job.job_id}, {"what": "jobs"}, {"what": "log"}):
            seen = str(await call(client, "look", **arguments, full=True))
            assert "s3cret-value" not in seen
        taken = await call(client, "take", kinds=["exec"], full=True)
        assert taken["taken"][0]["job"] == job.job_id[:12]
        assert "API_KEY" in str(taken)
        assert "s3cret-value" not in str(taken)


# --- the transport -------------------------------------------------------------------------------


async def test_a_page_of_another_site_is_refused(served: McpNode) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        assert_problem(await post(served, b"{}", Origin=origin), 403, "bad_origin")
    assert_problem(await post(served, b"{}", Host="evil.example"), 421, "bad_host")
    served_too = await post(served, b"{}", Origin="http://localhost:3000")
    assert served_too.json()["error"]["code"] < 0


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(served: McpNode) -> None:
    assert_problem(await post(served, b"x" * (MAX_BODY_BYTES + 1)), 413, "too_large")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b'{"jsonrpc":"2.0","id":1}'])
@pytest.mark.parametrize("version", [MODERN, "2025-06-18", "1999-01-01", "x" * 1_000])
async def test_what_is_no_message_is_answered_with_an_error(
    served: McpNode, body: bytes, version: str
) -> None:
    answer = await post(served, body, **{"MCP-Protocol-Version": version})
    assert HTTPStatus.BAD_REQUEST <= answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR


async def test_a_credential_has_few_sessions_and_the_oldest_one_ends(served: McpNode) -> None:
    token = await served.token_of("opener")
    ids = [await _open_session(served, token) for _ in range(17)]
    assert len({*ids}) == 17
    statuses = [await _ping(served, token, session_id) for session_id in ids]
    assert statuses == [404] + [200] * 16


async def test_a_session_is_of_the_credential_that_opened_it(served: McpNode) -> None:
    session_id = await _open_session(served, await served.token_of("first"))
    assert await _ping(served, await served.token_of("second"), session_id) == HTTPStatus.NOT_FOUND


async def _open_session(served: McpNode, token: str) -> str:
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    answer = await post(served, orjson.dumps(body), Authorization=f"Bearer {token}")
    assert answer.status_code == HTTPStatus.OK, answer.text
    return answer.headers["Mcp-Session-Id"]


async def _ping(served: McpNode, token: str, session_id: str) -> int:
    body = orjson.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    headers = {"Mcp-Session-Id": session_id, "Authorization": f"Bearer {token}"}
    return (await post(served, body, **headers)).status_code
