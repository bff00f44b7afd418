"""What commands print of the mesh of a node that is asked over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.cli.conftest import VoxCommand
from tests.support.nodes.serving import ServedNode


def commands_of(served: ServedNode) -> VoxCommand:
    """Commands on the same mesh, in the name of the node."""
    shared_mesh, name = served.shared_mesh, served.node.identity.node_id
    return VoxCommand(
        shared_mesh.folder,
        VOX_MESH_ENABLED="1",
        VOX_DB_PATH=str(shared_mesh.folder / "shared.db"),
        VOX_MESH_HOME=str(shared_mesh.folder / name / "vox"),
        VOX_MESH_NODE_ID=name,
        VOX_MESH_SCOPE_ID=shared_mesh.scope_id,
    )


async def printed(served: ServedNode, *arguments: str) -> Any:
    """What a command prints with `--json`."""
    return (await asyncio.to_thread(commands_of(served), *arguments, "--json")).document


def timeless(answer: Any) -> Any:
    """The same without what is another number a moment later."""
    if isinstance(answer, list):
        return [timeless(each) for each in answer]
    if isinstance(answer, dict):
        return {name: timeless(value) for name, value in answer.items() if name not in ("age_ms", "left_ms")}
    return answer
