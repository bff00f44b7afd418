"""Lines on MCP: what a tool costs over one that does nothing, on the same connection."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any, Final

import orjson

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from bench.measure import alternate, median_us
from bench.programs.http_wire import HttpWire
from bench.programs.mcp_node import AGENT, ECHO
from bench.programs.subprocess_driver import node_settings, start_program
from tools.sqld import free_port
from vox_mesh.nodes.agent_token_file import find_agent_token

_REVISION: Final = "2026-07-28"
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": _REVISION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_OVER_ECHO_MS: Final = 15.0
_LEAST_S: Final = 0.3
"""A round of calls that each take milliseconds."""


class _Host:
    """A host of an agent, on its connection to a node."""

    def __init__(self, wire: HttpWire) -> None:
        self._wire = wire
        self._numbers = count()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> None:
        params = {"name": tool, "arguments": arguments, "_meta": _META}
        body = {"jsonrpc": "2.0", "id": next(self._numbers), "method": "tools/call", "params": params}
        headers = (
            f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {_REVISION}\r\n"
            f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
        )
        answer = await self._wire.ask("POST", "/mcp", orjson.dumps(body), headers)
        if b'"structuredContent"' not in answer.body:
            raise RuntimeError(f"{tool} was answered with {answer.status}: {answer.body.decode()}")

    async def echo(self) -> None:
        await self.call(ECHO, {"keys": ["task:bench"]})

    async def lock(self) -> None:
        """Take a lock that is free."""
        await self.call("lock", {"keys": [f"task:{next(self._numbers)}"]})

    async def median_ms(self, tool: str, seconds: float) -> float:
        """The median of a tool; what was locked is released afterwards."""
        took_us = await median_us(self.lock if tool == "lock" else self.echo, seconds)
        await self.call("unlock", {})
        return took_us / 1e3


async def tools(environment: BenchEnvironment) -> list[Figure]:
    """A free lock by MCP in a file, next to a tool that answers at once; both with the token of an agent."""
    folder, bind = environment.folder / "mcp", f"127.0.0.1:{free_port()}"
    seconds = max(environment.pace.seconds, _LEAST_S)
    async with start_program("programs.mcp_node", folder, bind) as node:
        await node.ready()
        token = find_agent_token(node_settings(folder, None).home_dir, AGENT)
        assert token is not None, "the node has issued it"
        async with HttpWire.to_url(f"http://{bind}", token) as wire:
            host = _Host(wire)
            found = await alternate(
                {tool: partial(host.median_ms, tool, seconds) for tool in (ECHO, "lock")},
                environment.pace.few_rounds,
            )
    over = [lock - echo for lock, echo in zip(found["lock"], found[ECHO], strict=True)]
    notes = {"echo_ms": min(found[ECHO]), "lock_ms": min(found["lock"])}
    what = "file, a free lock by MCP with the token of an agent, over a tool that only echoes, p50"
    return [Figure("mcp-lock", what, "ms", over, target=at_most(_OVER_ECHO_MS, Of.OURS), notes=notes)]
