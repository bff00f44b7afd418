"""`vox-mesh mcp`: real processes, with the SDK's own client and with plain lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.support.hosts.mcp_clients import LEGACY, MODERN, call, error_of
from tests.support.messages.relaying import PATIENCE_S
from tools.homes import FILE, environment
from vox_mesh import Settings
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.nodes.agent_token_file import agent_token_file
from vox_mesh.views.overview import overview

each_era = pytest.mark.parametrize("mode", [MODERN, LEGACY])

_ROOT: Final = Path(__file__).resolve().parents[3]
_COMMAND: Final = ("-m", "vox_mesh.cli", "mcp")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a mesh in a file, with a path that is short enough for a socket."""
    return FILE.settings(tmp_path, None, http=True)


def variables(settings: Settings, **more: str) -> dict[str, str]:
    """The variables of the command."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), **environment(settings), **more}


@asynccontextmanager
async def stdio(settings: Settings, *options: str, mode: str = MODERN, **more: str) -> AsyncIterator[Client]:
    """The SDK's client of the command."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=[*_COMMAND, *options],
        env=variables(settings, **more),
        cwd=settings.home_dir.parent,
    )
    async with asyncio.timeout(PATIENCE_S):
        async with Client(parameters, mode=mode, cache=None) as client:
            yield client


async def token_of(node: MeshNode, agent: str) -> str:
    """Admit an agent as a coder; its token."""
    await node.grants.admit(agent)
    await node.grants.issue(agent, ["coder"])
    return (await node.principals.tokens.issue(agent, lasts="1h")).text


@each_era
async def test_an_agent_works_through_the_node_that_runs(settings: Settings, mode: str) -> None:
    async with Mesh.open(settings) as node:
        token = await token_of(node, "coder")
        async with stdio(settings, mode=mode, VOX_AGENT_TOKEN=token, VOX_AGENT_ID="coder") as client:
            assert len((await client.list_tools()).tools) == 10
            brief = await call(client, "brief")
            assert (brief["agent"], brief["node"]) == ("coder", node.identity.node_id)
            held = await call(client, "lock", keys=["a.py"])
            (found,) = await node.locks.holders()
            assert (found.holder_agent, found.fence_token) == ("coder", held["token"])
        async with stdio(settings, "--profile", "read", mode=mode, VOX_AGENT_TOKEN=token) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["brief", "look"]


async def test_a_token_in_a_file_is_the_agents(settings: Settings, tmp_path: Path) -> None:
    async with Mesh.open(settings) as node:
        own, other = await token_of(node, "coder"), await token_of(node, "tester")
        given = tmp_path / "given.token"
        given.write_text(f"{own}\n")
        given.chmod(0o600)
        async with stdio(settings, VOX_AGENT_TOKEN_FILE=str(given)) as client:
            assert (await call(client, "brief"))["agent"] == "coder"
        kept = agent_token_file(settings.home_dir, "tester")
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(other)
        kept.chmod(0o600)
        async with stdio(settings, VOX_AGENT_ID="tester") as client:
            assert (await call(client, "brief"))["agent"] == "tester"


async def test_a_token_does_not_stand_for_another_agent(settings: Settings) -> None:
    async with Mesh.open(settings) as node:
        token = await token_of(node, "coder")
        answer = await one_answer(settings, _call("brief"), VOX_AGENT_TOKEN=token, VOX_AGENT_ID="tester")
        assert answer["error"]["message"].startswith("not_your_name: ")
        answer = await one_answer(settings, _call("brief"), VOX_AGENT_TOKEN=f"{token[:-2]}xx")
        assert answer["error"]["message"].startswith("token_wrong: ")


@each_era
async def test_without_a_node_the_command_serves_the_same(settings: Settings, mode: str) -> None:
    async with stdio(settings, mode=mode, VOX_AGENT_ID="coder") as first:
        held = await call(first, "lock", keys=["a.py"])
        async with stdio(settings, mode=mode, VOX_AGENT_ID="tester") as second:
            assert (await call(second, "brief"))["node"] == (await call(first, "brief"))["node"]
            assert (await error_of(second, "lock", keys=["a.py"])).startswith("lock_held: ")
    async with Mesh.open_command(settings) as mesh:
        (found,) = await mesh.locks.holders()
        assert (found.holder_agent, found.fence_token) == ("coder", held["token"])


@each_era
async def test_a_host_does_not_notice_that_the_node_was_started_again(settings: Settings, mode: str) -> None:
    node = Mesh.open(settings)
    await node.__aenter__()
    async with stdio(settings, mode=mode, VOX_AGENT_ID="coder") as client:
        assert (await call(client, "brief"))["agent"] == "coder"
        await node.__aexit__(None, None, None)
        async with Mesh.open(settings) as again:
            await call(client, "lock", keys=["a.py"])
            (found,) = await again.locks.holders()
            assert found.holder_agent == "coder"


# --- plain lines ---------------------------------------------------------------------------------


def _call(tool: str, **arguments: Any) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) + b"\n"


async def started(settings: Settings, **more: str) -> asyncio.subprocess.Process:
    """The command, with pipes."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *_COMMAND),
        env=variables(settings, **more),
        cwd=settings.home_dir.parent,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        limit=2**22,
    )


async def one_answer(settings: Settings, line: bytes, **more: str) -> Any:
    """The one line that is answered to a line; the command ends by itself when its input ends."""
    process = await started(settings, **more)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    async with asyncio.timeout(PATIENCE_S):
        answer = await process.stdout.readline()
        process.stdin.close()
        rest, _ = await process.communicate()
    assert (rest, process.returncode) == (b"", 0)
    return orjson.loads(answer)


@pytest.mark.parametrize("line", [b"not json\n", b"[]\n", b'"x"\n', b"{" * 3_000_000 + b"\n"])
async def test_a_line_that_is_no_message_is_refused_and_the_next_one_served(
    settings: Settings, line: bytes
) -> None:
    async with Mesh.open(settings):
        process = await started(settings, VOX_AGENT_ID="coder")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + _call("brief"))
        async with asyncio.timeout(PATIENCE_S):
            refused = orjson.loads(await process.stdout.readline())
            served = orjson.loads(await process.stdout.readline())
            process.stdin.close()
            await process.communicate()
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)
        assert served["result"]["structuredContent"]["agent"] == "coder"


async def test_a_request_is_answered_after_the_end_of_the_input(settings: Settings) -> None:
    process = await started(settings, VOX_AGENT_ID="coder")
    async with asyncio.timeout(PATIENCE_S):
        out, _ = await process.communicate(_call("brief"))
    assert orjson.loads(out)["result"]["structuredContent"]["agent"] == "coder"
    assert process.returncode == 0


async def test_a_signal_ends_the_command_while_a_tool_waits(settings: Settings) -> None:
    async with Mesh.open(settings) as node:
        await node.locks.acquire("file:a.py", agent="ann")
        process = await started(settings, VOX_AGENT_ID="coder")
        assert process.stdin is not None
        process.stdin.write(_call("lock", keys=["a.py"], wait_s=60))
        async with asyncio.timeout(PATIENCE_S):
            async for _ in node.store.changes():
                if any(each.waiters for each in (await overview(node)).locks):
                    break
            process.send_signal(signal.SIGTERM)
            out, _ = await process.communicate()
        assert (out, process.returncode) == (b"", 128 + signal.SIGTERM)
