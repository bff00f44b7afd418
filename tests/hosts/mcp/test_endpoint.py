"""The endpoint: it is loaded when it is used, and ends with its clients and with the node."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import orjson
import pytest
from mcp_types import PARSE_ERROR

from tests.support.hosts.mcp_clients import LEGACY, MODERN, McpNode, call, serving_mcp
from tests.support.messages.relaying import PATIENCE_S, TOKEN, assert_problem
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.store import new_key
from vox_mesh.views.overview import overview

_HEADERS: Final = {
    "Authorization": f"Bearer {TOKEN}",
    "Vox-Agent": "ann",
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}


@pytest.fixture
def shared_mesh(tmp_path: Path) -> SharedMesh:
    """A mesh of the test's own."""
    return SharedMesh(FILE, tmp_path, None, new_key())


def run_python(code: str) -> str:
    """What a program prints in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout


def test_a_node_that_no_agent_calls_does_not_load_the_sdk() -> None:
    code = "import sys, vox_mesh.http.server, vox_mesh.cli.hosts.mcp; print('mcp' in sys.modules)"
    assert run_python(code) == "False\n"


def test_the_sdk_leaves_the_logs_of_the_node_alone() -> None:
    code = """
import logging, sys
kept = logging.StreamHandler(sys.stderr)
logging.basicConfig(handlers=[kept], level=logging.INFO)
from vox_mesh.hosts.mcp.profiles import Profile
from vox_mesh.http.mcp.serving import ProfileServer
ProfileServer(Profile.WORK)
print(logging.root.handlers == [kept], logging.root.level, logging.getLogger("mcp").handlers)
"""
    assert run_python(code) == "True 20 []\n"


async def test_without_the_sdk_the_node_says_how_to_install_it(
    shared_mesh: SharedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("vox_mesh.hosts.mcp.", "vox_mesh.http.mcp.s"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("mcp", "mcp_types"):
        monkeypatch.setitem(sys.modules, name, None)
    async with serving_mcp(shared_mesh) as served, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{served.url}/mcp", headers=_HEADERS, content=b"{}")
        assert_problem(answer, 501, "mcp_missing")
        assert "pip install 'vox-mesh[mcp]'" in answer.json()["hint"]


async def test_what_is_no_request_of_mcp_is_refused_with_a_problem(shared_mesh: SharedMesh) -> None:
    async with serving_mcp(shared_mesh) as served, httpx.AsyncClient(trust_env=False) as client:
        other = await client.put(f"{served.url}/mcp", headers=_HEADERS, content=b"{}")
        assert_problem(other, 405, "method_not_allowed")
        assert set(other.headers["Allow"].split(",")) == {"GET", "POST", "DELETE"}
        typed = {**_HEADERS, "Content-Type": "text/plain"}
        plain = await client.post(f"{served.url}/mcp", headers=typed, content=b"{}")
        assert_problem(plain, 400, "bad_request")
        garbled = await client.post(f"{served.url}/mcp", headers=_HEADERS, content=b"{")
        assert garbled.json()["error"]["code"] == PARSE_ERROR


@pytest.mark.parametrize("mode", [MODERN, LEGACY])
async def test_an_agent_is_the_same_at_every_node(shared_mesh: SharedMesh, mode: str) -> None:
    async with serving_mcp(shared_mesh) as first, serving_mcp(shared_mesh, "ben") as second:
        async with first.client(TOKEN, mode=mode, agent="ann") as client:
            held = await call(client, "lock", keys=["a.py"])
        async with second.client(TOKEN, mode=mode, agent="ann") as client:
            (lock,) = (await call(client, "brief"))["locks"]
            assert lock["token"] == held["token"]


async def test_a_session_lives_at_the_node_that_opened_it(shared_mesh: SharedMesh) -> None:
    ping = orjson.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    async with (
        serving_mcp(shared_mesh) as first,
        serving_mcp(shared_mesh, "ben") as second,
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client,
    ):
        session = await _open_session(client, first)
        for served, status in ((first, 200), (second, 404)):
            answer = await client.post(f"{served.url}/mcp", headers=session, content=ping)
            assert answer.status_code == status


async def test_a_client_that_leaves_stops_waiting_and_is_no_fault(
    shared_mesh: SharedMesh, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving_mcp(shared_mesh) as served:
        await served.node.locks.acquire("file:a.py", agent="ben")
        waiting = asyncio.create_task(_wait_for_lock(served))
        await _until_waiters(served, 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await _until_waiters(served, 0)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert "Traceback" not in caplog.text


async def test_a_node_stops_while_clients_wait_and_listen(shared_mesh: SharedMesh) -> None:
    is_listening = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S):
        async with serving_mcp(shared_mesh) as served:
            await served.node.locks.acquire("file:a.py", agent="ben")
            waiting = asyncio.create_task(_wait_for_lock(served))
            listening = asyncio.create_task(_listen(served, is_listening))
            await is_listening.wait()
            await _until_waiters(served, 1)
        answer, _ = await asyncio.gather(waiting, listening)
    assert "leaving" in answer
    assert not [task for task in asyncio.all_tasks() if "mcp" in task.get_name()]


async def _wait_for_lock(served: McpNode) -> str:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    arguments = {"keys": ["a.py"], "wait_s": 60}
    params = {"name": "lock", "arguments": arguments, "_meta": meta}
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "lock"}
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
        return (await client.post(f"{served.url}/mcp", headers=_HEADERS | headers, content=body)).text


async def _open_session(client: httpx.AsyncClient, served: McpNode) -> dict[str, str]:
    """The headers of a new session of an older revision."""
    info = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    opened = await client.post(f"{served.url}/mcp", headers=_HEADERS, content=body)
    return _HEADERS | {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}


async def _listen(served: McpNode, is_listening: asyncio.Event) -> bytes:
    """Listen to events of a session until the node ends them."""
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
        session = await _open_session(client, served)
        async with client.stream("GET", f"{served.url}/mcp", headers=session) as response:
            is_listening.set()
            return await response.aread()


async def _until_waiters(served: McpNode, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for _ in served.node.store.changes():
            seen = await overview(served.node)
            if sum(len(each.waiters) for each in seen.locks) == count:
                return
