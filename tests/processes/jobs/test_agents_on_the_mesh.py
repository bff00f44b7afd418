"""A coding agent that a worker runs uses the mesh itself, in its own name and by its own grants."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.jobs.agent_jobs import AgentDesk
from tools.homes import FILE
from vox_mesh.mesh import Mesh
from vox_mesh.nodes.node_sockets import FILE as SOCKET
from vox_mesh.store.slots import folder_of_slot


async def test_an_agent_of_a_job_locks_a_file_with_its_own_token(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, http=True)
    async with Mesh.open(settings) as node:
        await node.grants.admit("coder")
        await node.grants.issue("coder", ["coder"])
        token = tmp_path / "coder.token"
        token.write_text((await node.principals.tokens.issue("coder", lasts="1h")).text)
        socket = folder_of_slot(settings.home_dir, node.store.slot_name or "").absolute() / SOCKET
        access = {"agent_id": "coder", "token_file": str(token), "node": f"unix:{socket}"}
        desk = AgentDesk(node, tmp_path)
        desk.configure(mesh=access)
        job = await desk.run([{"mesh": ["lock", {"keys": ["src/main.py"]}]}])
        held = json.loads((await desk.result(job))["message"])
        (found,) = await node.locks.holders()
        assert (found.holder_agent, found.fence_token) == ("coder", held["token"])
