"""The mesh, opened as a node or for a command next to the nodes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Unpack

from vox_mesh.errors import LockHeld, MeshError, ScriptFailed
from vox_mesh.model.base.backends import Backend
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import Identity, command_identity, local_identities, temporary_identity
from vox_mesh.nodes.sightings import COMMAND_INTERVAL_S
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.runtime.open_store import Role, open_store_of, writer_id_of
from vox_mesh.runtime.services import MeshServices
from vox_mesh.settings.discovery import no_mesh
from vox_mesh.store.slots import slot_folder

if TYPE_CHECKING:
    from vox_mesh.jobs.typed.job_decorator import JobDecorator
    from vox_mesh.jobs.typed.job_options import JobOptions
    from vox_mesh.jobs.worker.handlers import HandlerSet
    from vox_mesh.model.jobs.policy_roots import PolicyRoots
    from vox_mesh.node import MeshNode
    from vox_mesh.oplog.step_memory import StepMemory
    from vox_mesh.oplog.witness import RememberedStore
    from vox_mesh.settings import Settings
    from vox_mesh.store.targets.target import FileTarget

_log = logging.getLogger(__name__)

ARTIFACTS: Final = "artifacts"
"""The folder of artifacts in the home directory."""

_SIGHTINGS_TIMEOUT_S: Final = 1.0

LOCAL: Final = "local"
"""The name of a node that no other process can see."""


class Mesh(MeshServices):
    """A node of the mesh, or a command next to the nodes: `async with Mesh.open(settings) as mesh`."""

    _handlers: HandlerSet | None = None
    """The handlers of its worker; a command has none."""

    def job(
        self,
        kind: str,
        *,
        concurrency: int | None = None,
        max_running: int | None = None,
        **options: Unpack[JobOptions],
    ) -> JobDecorator:
        """Make a typed job of a function: `@mesh.job("report.build", retries=5)`.

        `concurrency` limits the running jobs of this worker, `max_running` those of the whole mesh.
        """
        from vox_mesh.jobs.typed.job_decorator import JobDecorator  # imported late: few commands have one

        limits = {"concurrency": concurrency, "max_running": max_running}
        return JobDecorator(kind, options, lambda: self.jobs, self._handlers, **limits)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings | None = None, dependencies: Dependencies | None = None
    ) -> AsyncIterator[MeshNode]:
        """Join the mesh that the settings choose as a node, and leave it at the end of the block.

        Raises `BadSettings` without `settings` where there is no mesh, unless VOX_MESH_ENABLED is 0.
        """
        from vox_mesh.node import open_node  # imported late: most commands do without

        settings = _found_settings() if settings is None else settings
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
        writer = OpLogWriter(lambda: _command_identity(settings), writer_id, clock, agent=settings.agent_id)
        store = await open_store_of(settings, Role.COMMAND, None, writer_id, writer, dependencies)
        mesh = cls(
            store,
            writer,
            clock,
            dependencies,
            settings.agent_id,
            settings.home_dir / ARTIFACTS,
            policy_file=settings.tempo_policy,
            rates_file=settings.rates,
            shared_token=lambda: _shared_token(settings),
            owner_key=settings.owner_key,
            remembered=lambda: _remembered(settings),
            step_memory=lambda: _step_memory(settings),
            policy_roots=_policy_roots(settings),
            local_nodes=lambda: _local_nodes(settings),
            must_be_strict=settings.strict,
            message_retention_s=settings.message_retention,
            scopes=() if settings.directory is None else settings.directory.names,
        )
        mesh.find_archive = lambda: _find_archive(settings)
        try:
            await mesh.nodes.now_ms()  # before the local clock is used
            try:
                yield mesh
            except (ScriptFailed, LockHeld):
                await mesh._seal()  # the op log has the refused op too
                await mesh._write_sightings()
                raise
            await mesh._seal()
            await mesh._write_sightings()
        finally:
            await mesh._close_command()

    async def _seal(self) -> None:
        """Seal the ops of a command. They are committed even if this fails."""
        if self._writer.is_seal_due:
            try:
                await self.store.write(self.oplog.seal_script())
            except MeshError as error:
                _log.warning("op log not sealed, left to the next command: %s", error.line)

    async def _write_sightings(self) -> None:
        """Record the agents that the command acted for, unless they were seen just before."""
        script = self.sightings.script(min_age_s=COMMAND_INTERVAL_S)
        if script is not None:
            with suppress(MeshError):
                await self.store.write(script, timeout=_SIGHTINGS_TIMEOUT_S)

    async def _close_command(self) -> None:
        """Close the services that the command has used."""
        used = vars(self)
        if "work" in used:
            await self.work.close()
        if "locks" in used:
            await self.locks.close()
        if "messages" in used:
            await self.messages.close()
        await self.store.close()


def _found_settings() -> Settings:
    from vox_mesh.settings import load_settings  # imported late: most commands do without

    settings = load_settings()
    # A memory backend that nothing has asked for would share no locks with other processes.
    if settings.backend is Backend.MEMORY and "enabled" not in settings.model_fields_set:
        raise no_mesh("Mesh.open()")
    return settings


def _shared_token(settings: Settings) -> str | None:
    from vox_mesh.runtime.shared_token import shared_token  # imported late: few commands need a key

    return shared_token(settings)


def _remembered(settings: Settings) -> Sequence[RememberedStore]:
    from vox_mesh.runtime.store_memories import remembered_stores  # imported late: only verification asks

    return remembered_stores(settings)


def _step_memory(settings: Settings) -> StepMemory | None:
    from vox_mesh.runtime.store_memories import step_memory  # imported late: few commands ask for the owner

    return step_memory(settings)


def _find_archive(settings: Settings) -> FileTarget | None:
    from vox_mesh.runtime.archive_target import find_archive  # imported late: few commands read the archive

    return find_archive(settings)


def _local_nodes(settings: Settings) -> Sequence[Identity]:
    return () if settings.backend is Backend.MEMORY else local_identities(settings.home_dir)


def _policy_roots(settings: Settings) -> PolicyRoots | None:
    if settings.worker_policy_roots is None:
        return None
    from vox_mesh.model.jobs.policy_roots import parse_policy_roots  # imported late: few meshes use them

    return parse_policy_roots(settings.worker_policy_roots)


def _command_identity(settings: Settings) -> Identity:
    if settings.backend is Backend.MEMORY:
        return temporary_identity(settings.node_id or LOCAL)
    return command_identity(slot_folder(settings.home_dir, settings.node_id), settings.node_id)
