"""Owners that are lost, and nodes that take their place."""

from __future__ import annotations

from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.oplog.owners import recovery_named
from vox_mesh import Mesh
from vox_mesh.node import MeshNode


async def found_mesh(shared_mesh: SharedMesh, name: str = "owner", recovery: str = "first") -> str:
    """Open a mesh by the command line of a node, with a recovery key; the key of the owner."""
    async with Mesh.open_command(shared_mesh.settings(name)) as mesh:
        key = mesh.identity.key.public
        await mesh.roles.initialise(recovery_named(recovery).signing_key(key).public)
    return key


async def recover(mesh: Mesh | MeshNode, recovery: str = "first", following: str = "next") -> None:
    """Make a node the owner."""
    await mesh.recovery.recover(recovery_named(recovery), recovery_named(following))
