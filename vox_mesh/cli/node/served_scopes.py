"""The scopes that one process serves: a node of each, opened and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from vox_mesh.messages.forwarder import Forwarder
from vox_mesh.messages.scope_inbox import ScopeInbox
from vox_mesh.node import MeshNode, open_node
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.observability.log_context import log_scope
from vox_mesh.settings import Settings


@asynccontextmanager
async def open_nodes(
    scopes: Sequence[Settings], dependencies: Dependencies | None = None
) -> AsyncIterator[Sequence[MeshNode]]:
    """Join one or several meshes as a node of each, and leave them at the end of the block.

    They start and leave together: none waits for another's database.
    """
    dependencies = Dependencies() if dependencies is None else dependencies
    tasks = [
        asyncio.create_task(_open_in_scope(each, dependencies, is_named=len(scopes) > 1)) for each in scopes
    ]
    try:
        await asyncio.wait(tasks)
        meshes = [task.result() for task in tasks]
        for mesh, settings in zip(meshes, scopes, strict=True):
            if len(meshes) > 1 and settings.directory is not None:
                forwarder = forwarder_of(mesh, meshes, settings.directory.names, dependencies)
                mesh.supervisor.start("forwarder", forwarder.run)
        yield meshes
    finally:
        for task in tasks:
            task.cancel()
        opened = await asyncio.gather(*tasks, return_exceptions=True)
        closing = [node.close() for node in opened if isinstance(node, MeshNode)]
        for fault in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(fault, BaseException):
                raise fault


def forwarder_of(
    mesh: MeshNode, meshes: Sequence[MeshNode], known: Sequence[str], dependencies: Dependencies
) -> Forwarder:
    """Return what forwards the messages of one scope to the others; `known`: all scopes of the directory."""
    inboxes = {
        other.store.mesh_id[0]: ScopeInbox(
            other.store, other.writer, other.clock, other.messages, other.roles, other.permits
        )
        for other in meshes
        if other is not mesh
    }
    claims, owner_key = mesh.messages.claims, mesh.ownership.key
    return Forwarder(mesh.store, claims, mesh.clock, owner_key, known, inboxes, dependencies.monotonic)


async def _open_in_scope(settings: Settings, dependencies: Dependencies, *, is_named: bool) -> MeshNode:
    with log_scope(**({"scope": settings.scope_id} if is_named else {})):
        return await open_node(settings, dependencies)
