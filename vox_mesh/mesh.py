"""The mesh as a program opens it: as a node, or beside one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import MeshError, ScriptFailed
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.model.base.homes import Home
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import Identity, command_identity, passing_identity
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.rhythm.files import RhythmFiles
from vox_mesh.runtime.open_store import Role, open_store_of, tenant_of
from vox_mesh.runtime.services import MeshServices
from vox_mesh.settings import Settings, load_settings
from vox_mesh.store.slots import slot_folder

if TYPE_CHECKING:
    from vox_mesh.node import MeshNode

_log = logging.getLogger(__name__)

ARTIFACTS: Final = "artifacts"
"""The folder of them, in the home of a node."""

LOCAL: Final = "local"
"""A node that nobody else can see needs no better name."""


class Mesh(MeshServices):
    """A node of the mesh, or a command beside one: `async with Mesh.open(settings) as mesh`."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings | None = None, dependencies: Dependencies | None = None
    ) -> AsyncIterator[MeshNode]:
        """Join the mesh that the settings choose, as a node that ticks until the end."""
        from vox_mesh.node import open_node  # most commands need nothing of it

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
        """Look at the mesh, or write to it, beside its nodes and without becoming one."""
        tenant = tenant_of(settings, None)
        dependencies = Dependencies() if dependencies is None else dependencies
        clock = MeshClock(dependencies)
        author = OpLogWriter(lambda: _command_identity(settings), tenant, clock)
        store = await open_store_of(settings, Role.COMMAND, None, tenant, author, dependencies)
        # Who we are is of no matter to those who only look, and nobody makes a key for that.
        artifacts = Artifacts(store, settings.home_dir / ARTIFACTS, lambda: "")
        files = RhythmFiles(settings.tempo_policy, settings.rates)
        mesh = cls(store, author, clock, dependencies, settings.agent_id, artifacts, files)
        try:
            await mesh.nodes.now_ms()  # before any time is merged, or made, by a clock of our own
            try:
                yield mesh
            except ScriptFailed:
                await mesh._seal()  # it is in the log too, as refused
                raise
            await mesh._seal()
        finally:
            await mesh.locks.close()
            await mesh.bus.close()
            await mesh.store.close()

    async def _seal(self) -> None:
        """Vouch for what a command did; that is done, also if this fails."""
        if self.oplog.is_seal_due:
            try:
                await self.store.write(self.oplog.seal_script())
            except MeshError as error:
                _log.warning("could not seal the log, the next command will: %s", error.line)


def _command_identity(settings: Settings) -> Identity:
    if settings.home is Home.MEMORY:
        return passing_identity(settings.node_id or LOCAL)
    return command_identity(slot_folder(settings.home_dir, settings.node_id), settings.node_id)
