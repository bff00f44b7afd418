"""The mesh, opened as a node or for a command next to the nodes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import MeshError, ScriptFailed
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.model.base.backends import Backend
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import Identity, command_identity, temporary_identity
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.runtime.open_store import Role, open_store_of, writer_id_of
from vox_mesh.runtime.services import MeshServices
from vox_mesh.runtime.store_memories import remembered_stores
from vox_mesh.settings import Settings, load_settings
from vox_mesh.store.slots import slot_folder

if TYPE_CHECKING:
    from vox_mesh.node import MeshNode

_log = logging.getLogger(__name__)

ARTIFACTS: Final = "artifacts"
"""The folder of artifacts in the home directory."""

LOCAL: Final = "local"
"""The name of a node that no other process can see."""


class Mesh(MeshServices):
    """A node of the mesh, or a command next to the nodes: `async with Mesh.open(settings) as mesh`."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings | None = None, dependencies: Dependencies | None = None
    ) -> AsyncIterator[MeshNode]:
        """Join the mesh that the settings choose as a node, and leave it at the end of the block."""
        from vox_mesh.node import open_node  # imported late: most commands do not need it

        settings = load_settings() if settings is None else settings
        dependencies = Dependencies() if dependencies is None else dependencies
        node = await open_node(settings, dependencies)
        try:
            yield node
        finally:
            await node.close()

    @classmethod
    @asynccontextmanager
    async def open_command(
        cls, settings: Settings, dependencies: Dependencies | None = None
    ) -> AsyncIterator[Mesh]:
        """Open the mesh to read from it or write to it without becoming a node."""
        writer_id = writer_id_of(settings, None)
        dependencies = Dependencies() if dependencies is None else dependencies
        clock = MeshClock(dependencies)
        writer = OpLogWriter(lambda: _command_identity(settings), writer_id, clock)
        store = await open_store_of(settings, Role.COMMAND, None, writer_id, writer, dependencies)
        # A command that only reads needs no identity, and creates no key.
        artifacts = Artifacts(store, settings.home_dir / ARTIFACTS, lambda: "")
        mesh = cls(
            store,
            writer,
            clock,
            dependencies,
            settings.agent_id,
            artifacts,
            policy_file=settings.tempo_policy,
            rates_file=settings.rates,
            owner_key=settings.owner_key,
            remembered=lambda: remembered_stores(settings),
        )
        try:
            await mesh.nodes.now_ms()  # before the local clock is used
            try:
                yield mesh
            except ScriptFailed:
                await mesh._seal()  # the op log has the refused op too
                raise
            await mesh._seal()
        finally:
            await mesh.locks.close()
            await mesh.messages.close()
            await mesh.store.close()

    async def _seal(self) -> None:
        """Seal the ops of a command. They are committed even if this fails."""
        if self.oplog.is_seal_due:
            try:
                await self.store.write(self.oplog.seal_script())
            except MeshError as error:
                _log.warning("op log not sealed, left to the next command: %s", error.line)


def _command_identity(settings: Settings) -> Identity:
    if settings.backend is Backend.MEMORY:
        return temporary_identity(settings.node_id or LOCAL)
    return command_identity(slot_folder(settings.home_dir, settings.node_id), settings.node_id)
