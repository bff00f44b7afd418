"""The MCP inspector, an outside client, lists and calls tools with the token of an agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from tests.support.mcp.inspector import Inspector
from tests.support.mcp.suite_mesh import AGENT, PLAIN, suite_mesh
from vox_mesh.hosts.mcp.profiles import Profile


def _said(result: dict[str, Any]) -> Any:
    (content,) = result["content"]
    assert content["type"] == "text"
    return orjson.loads(content["text"])


def _use(inspector: Inspector) -> None:
    """Do what a first user does."""
    assert [tool["name"] for tool in inspector.ask("tools/list")["tools"]] == [*Profile.WORK.tools]
    held = inspector.call("lock", keys='["src/app.py"]')
    assert _said(held)["keys"] == ["file:src/app.py"]
    assert held["structuredContent"]["keys"] == ["file:src/app.py"]
    locks = inspector.ask("resources/read", "--uri", "vox://locks")["contents"]
    assert [row["holder"] for row in orjson.loads(locks[0]["text"])["locks"]] == [AGENT]


async def test_over_stdio(tmp_path: Path) -> None:
    async with suite_mesh(tmp_path, "one", module=PLAIN) as mesh:
        command, variables = mesh.pipe()
        await asyncio.to_thread(_use, Inspector.over_stdio(tmp_path, *command, variables=variables))


async def test_over_http(tmp_path: Path) -> None:
    async with suite_mesh(tmp_path, "one", module=PLAIN) as mesh:
        await asyncio.to_thread(_use, Inspector.over_http(tmp_path, mesh.url(), mesh.token))
        stranger = Inspector.over_http(tmp_path, mesh.url(), f"{mesh.token}x")
        refused = await asyncio.to_thread(stranger.run, "tools/list")
        assert refused.returncode != 0
        assert "tools" not in refused.stdout
