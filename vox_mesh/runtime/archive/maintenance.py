"""Archive maintenance: a node's turns at verifying, archiving and deleting, for the whole mesh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from vox_mesh.errors import (
    ArchiveFailed,
    DatabaseUnavailable,
    MeshError,
    StaleFence,
    StaleIncarnation,
    StoreClosed,
)
from vox_mesh.model.oplog.segment import Segment
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.oplog.archive.false_segments import missing_error
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.runtime.archive.deletion import LogDeletion, may_delete
from vox_mesh.runtime.archive.leading import LEASE_S, archive_leadership
from vox_mesh.runtime.archive_target import archive_target
from vox_mesh.runtime.checkpoint_file import CheckpointFile
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.targets.target import FileTarget

if TYPE_CHECKING:
    from vox_mesh.runtime.services import MeshServices
    from vox_mesh.settings import Settings

_log = logging.getLogger(__name__)

SEGMENTS: Final = "archive-segments"
BYTES: Final = "archive-bytes"
"""The subjects under which the archived segments and their bytes are counted."""

MISSING: Final = "archive-missing"
"""The subject under which the number of the first segment is kept that the archive does not have; or 0."""

_SQL: Final = named("archive")
_TURNS: Final = 24
"""How many turns there are in an interval: after a failure, the next one is soon."""


class ArchiveMaintenance:
    """Makes a pass when the last one is long enough ago. Every node with an archive runs it."""

    name: ClassVar = "archive"

    def __init__(
        self,
        mesh: MeshServices,
        settings: Settings,
        chance: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._mesh = mesh
        self._settings = settings
        self._chance = chance
        self._interval_ms = round(settings.archive_interval * 1_000)
        self._checkpoint = CheckpointFile(settings)
        self._leadership = archive_leadership(mesh, monotonic)
        self.fault = ""
        """Why the last pass of this node failed, or which file the archive lacks."""

    async def run(self) -> None:
        """Take turns until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1_000 / _TURNS * (0.5 + self._chance()))
            try:
                await self.run_once()
            except (StaleIncarnation, StoreClosed):
                raise  # retrying is useless
            except StaleFence:
                _log.info("archiving ended: another node leads")
            except DatabaseUnavailable:
                continue
            except MeshError as error:
                self.fault = error.line
                _log.warning("log not archived: %s", error.line)

    async def run_once(self) -> list[Segment]:
        """Make a pass if one is due by our copy of the database. Return the new segments.

        Raises:
            ArchiveFailed: The archive can't be written, or the log is broken.
        """
        if not self._mesh.clock.can_author or not await self._is_due():
            return []
        if not await self._leadership.keep(LEASE_S):
            return []
        try:
            return await self._pass()
        finally:
            await self._leadership.resign()

    async def _is_due(self) -> bool:
        rows = await self._mesh.store.read(_SQL["last_pass"], self._mesh.store.mesh_id)
        if not rows:
            return True
        attempted_ms, completed_ms = rows[0]
        wait_ms = self._interval_ms if completed_ms >= attempted_ms else self._interval_ms / _TURNS
        return bool(self._mesh.clock.now_ms - attempted_ms >= wait_ms)

    async def _pass(self) -> list[Segment]:
        mesh = self._mesh
        await self._write(Statement(_SQL["begin_pass"], mesh.store.mesh_id))
        parts = (mesh.store, mesh.identity, mesh.clock, mesh.trusted_keys)
        archive = LogArchive(*parts, self._verified, archive_target(self._settings))
        missing = await archive.false_segments.first_missing()
        number = 0 if missing is None else missing.segment.number
        await self._write(Statement(_SQL["replace"], (*mesh.store.mesh_id, MISSING, number)))
        await archive.false_segments.checked()
        await self._verify()
        done = await archive.run_once(round(self._settings.archive_after * 1_000))
        if missing is None:
            await self._delete(archive.target)
        await self._write(
            *(self._count(SEGMENTS, len(done)), self._count(BYTES, sum(each.bytes for each in done))),
            Statement(_SQL["end_pass"], mesh.store.mesh_id),
        )
        self.fault = "" if missing is None else missing_error(missing).line
        if missing is not None:
            _log.warning("segment missing in the archive: %s", self.fault)
        return done

    async def _delete(self, target: FileTarget) -> None:
        """Delete what is archived and old, if the settings say so; only the owner's node does."""
        if self._settings.archive_keep is not None and await may_delete(self._mesh):
            deletion = LogDeletion(self._mesh, target, self._guard)
            await deletion.run_once(round(self._settings.archive_keep * 1_000))

    async def _guard(self) -> Statement:
        if not await self._leadership.keep(LEASE_S):
            raise StaleFence
        return self._leadership.guard()

    async def _verify(self) -> None:
        """Verify the log from the last verified seals on, also if nothing is to be archived."""
        oplog = self._mesh.oplog
        reports = await oplog.verify(since=await self._checkpoint.load())
        await self._checkpoint.keep(oplog.checkpoint)
        broken = [each for each in reports if each.problem is not None]
        if broken:
            raise ArchiveFailed(
                f"the log is broken: {broken[0].node_id} {broken[0].problem}",
                hint="run `vox-mesh oplog verify`",
            )

    async def _verified(self) -> Sequence[ChainReport]:
        return ()  # `_verify` has just done so

    def _count(self, subject: str, more: int) -> Statement:
        return Statement(_SQL["count"], (*self._mesh.store.mesh_id, subject, more))

    async def _write(self, *statements: Statement) -> None:
        await self._mesh.store.write(Script(await self._guard(), *statements))
