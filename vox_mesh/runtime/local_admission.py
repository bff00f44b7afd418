"""Local admission: the owner's key admits the nodes that its user starts from the same home."""

from __future__ import annotations

from vox_mesh.mesh import Mesh
from vox_mesh.model.base.backends import Backend
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.nodes.identity import local_identities
from vox_mesh.settings import Settings


async def admit_with_local_key(mesh: Mesh, settings: Settings, dependencies: Dependencies) -> bool:
    """Admit the node of this process with the owner's key; return whether this home has that key."""
    owner = await mesh.ownership.owner()
    if owner is None or settings.backend is Backend.MEMORY:
        return False
    own = mesh.identity
    for each in local_identities(settings.home_dir):
        if (each.node_id, each.key.public) == (owner.node_id, owner.public_key):
            as_owner = settings.model_copy(update={"node_id": owner.node_id})
            async with Mesh.open_command(as_owner, dependencies) as command:
                await command.grants.admit_node(own.node_id, own.key.public)
            return True
    return False
