"""The console of the demo: its address, with a code that signs one person in."""

from __future__ import annotations

from typing import Final

import httpx

from tools.demo.processes import Failed
from tools.demo.scenario import OWNER
from tools.demo.workspace import Workspace
from vox_mesh import Mesh

_TIMEOUT_S: Final = 10.0
_NAME: Final = "demo"


async def console_link(workspace: Workspace, mesh: Mesh) -> str:
    """Return the address of the console at the owner's node, with a one-time code."""
    node = await mesh.nodes.find(OWNER)
    if node is None or node.control_addr is None:
        raise Failed(f"{OWNER} announces no address")
    headers = {"Authorization": f"Bearer {workspace.mesh_token}"}
    async with httpx.AsyncClient(base_url=node.control_addr, timeout=_TIMEOUT_S, headers=headers) as client:
        answer = await client.post("/ui/codes", json={"name": _NAME})
    if not answer.is_success:
        raise Failed(f"{OWNER} gives no code for the console: {answer.text[:200]}")
    return f"{node.control_addr}{answer.json()['path']}"
