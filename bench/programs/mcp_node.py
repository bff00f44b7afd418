"""A node of the benchmark whose MCP server has a tool that does nothing but answer."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

from mcp_types import CallToolRequestParams, CallToolResult, TextContent, Tool

from bench.environment import give_token
from bench.programs.subprocess_driver import node_settings
from vox_mesh import Mesh, Settings, run
from vox_mesh.hosts.mcp.server import PARTS, ExtraTool, RequestContext, ServerSetup

ECHO: Final = "echo"
AGENT: Final = "bench"
"""The agent whose token is in the home of the node."""


async def _echo(_: RequestContext, params: CallToolRequestParams) -> CallToolResult:
    arguments = params.arguments or {}
    return CallToolResult(content=[TextContent(text=str(arguments))], structured_content=arguments)


def _add_echo(setup: ServerSetup) -> None:
    setup.extra_tools[ECHO] = ExtraTool(Tool(name=ECHO, input_schema={"type": "object"}), _echo)


async def _serve(settings: Settings) -> None:
    PARTS.append(_add_echo)
    await give_token(settings, AGENT)
    async with Mesh.open(settings):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("bind")
    given = parser.parse_args()
    run(_serve(node_settings(given.folder, None, http="1", bind=given.bind, rate_limit="100000")))
