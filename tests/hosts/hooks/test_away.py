"""A node whose database is away: hooks let the agent go on and say so, or deny if they are strict."""

from __future__ import annotations

from pathlib import Path

from tests.hosts.hooks.hosts import HookedAgent, Host
from tests.support.nodes.serving import serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh.store import new_key


async def test_without_a_database_edits_are_allowed_with_a_note_or_denied_if_strict(
    host: Host, project: Path, tmp_path: Path, server: Server
) -> None:
    async with serving_api(SharedMesh(MESH_REPLICA, tmp_path / "mesh", server, new_key())) as served:
        bob = HookedAgent(served, host, project)
        assert await bob.ask("before_edit", file=project / "x.py") == {}
        server.kill()
        answer = await bob.ask("before_edit", file=project / "x.py")
        assert not host.denied(answer)
        assert "locks not checked" in host.note(answer)
        denied = await bob.ask("before_edit", file=project / "x.py", strict="true")
        assert "locks not checked" in host.denied(denied)
        for event in ("session_start", "prompt", "after_tool", "stop", "session_end"):
            assert not host.denied(await bob.ask(event, strict="true"))
        server.start()
