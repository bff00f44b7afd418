"""What an idle node asks of its server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.node import MeshNode

_LOOKS: Final[dict[str, Callable[[MeshNode], Awaitable[None]]]] = {
    "approvals": lambda node: node.approvals.apply_due(),
    "jobs": lambda node: node._job_maintenance.run_once(),
}


@pytest.mark.parametrize("look", _LOOKS)
async def test_an_idle_node_finds_in_its_replica_that_there_is_nothing_to_do(
    tmp_path: Path, shared_server: Server, look: str
) -> None:
    async with Mesh.open(MESH_REPLICA.settings(tmp_path, shared_server, tick="1h")) as node:
        await node.run_once()
        await _LOOKS[look](node)  # the first look may ask for what the replica lacks
        await node.store.synced()
        before = dict(node.store.stats.requests)
        await _LOOKS[look](node)
        assert dict(node.store.stats.requests) == before
