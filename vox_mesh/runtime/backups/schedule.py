"""The schedule of backups: a node's turns at making one for the whole mesh."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final

from vox_mesh.errors import MeshError, StaleFence, StaleIncarnation, StoreClosed
from vox_mesh.locks.leadership import Leadership
from vox_mesh.locks.locks import Locks
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.runtime.backups.backup_index import StoredBackup, backup_name
from vox_mesh.runtime.backups.backup_mesh import owner_at
from vox_mesh.runtime.backups.chunks import ChunkWriter
from vox_mesh.runtime.backups.stored_backups import BackupOrigin, StoredBackups
from vox_mesh.runtime.backups.term import LEASE_S, BackupTerm
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.thread import SerialThread
from vox_mesh.store.schema.copying import Copied, copy_database
from vox_mesh.store.schema.row_lines import RowLines
from vox_mesh.store.script import new_key
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget

_log = logging.getLogger(__name__)

OFFICE: Final = "backups"
"""The name of the leadership."""

_LOOKS: Final = 20
"""How many times in an interval a node looks whether a backup is due."""
_LONGEST_LOOK_S: Final = 300.0
_UNIQUE: Final = 8
_MOST_AHEAD_MS: Final = 60_000
"""By how much the time of another node may differ."""


class BackupSchedule:
    """Makes a backup when the newest one is old enough. Every node runs it; one at a time makes one."""

    name: ClassVar = "backups"

    def __init__(
        self,
        node_id: str,
        store: Store,
        clock: MeshClock,
        locks: Locks,
        target: FileTarget,
        *,
        open_database: Callable[[], Awaitable[Engine]],
        interval_s: float,
        keep: int,
        chance: Callable[[], float],
        monotonic: Callable[[], float],
        lease_s: float = LEASE_S,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._clock = clock
        self._target = target
        self._open_database = open_database
        self._keep = keep
        self._chance = chance
        self._monotonic = monotonic
        self._lease_s = lease_s
        self._began = monotonic()
        self._leadership = Leadership(OFFICE, store, locks, clock, monotonic, log_level=logging.DEBUG)
        self.interval_s = interval_s
        self.newest_ms: int | None = None
        """The time of the newest backup, as last seen; `None`: none was seen."""
        self.failures = 0
        """How often this process could not look, or make a backup."""

    @property
    def mesh_id(self) -> tuple[str, str]:
        """Return the scope and the repository."""
        return self._store.mesh_id

    @property
    def age_s(self) -> float:
        """Return the age of the newest backup; while none was seen, that of this process."""
        if self.newest_ms is None:
            return self._monotonic() - self._began
        return max(0.0, (self._clock.now_ms - self.newest_ms) / 1_000)

    async def run(self) -> None:
        """Take turns until cancelled."""
        look_s = min(self.interval_s / _LOOKS, _LONGEST_LOOK_S)
        while True:
            await asyncio.sleep(look_s * (0.5 + self._chance()))
            try:
                await self.run_once()
            except (StaleIncarnation, StoreClosed):
                raise  # retrying is useless
            except (MeshError, OSError) as error:
                self.failures += 1
                _log.warning("no backup made: %s", getattr(error, "line", error))

    async def run_once(self) -> StoredBackup | None:
        """Make a backup if one is due, and no other node makes one. Return it."""
        if not self._clock.can_author:
            return None
        owner = await owner_at(self._store.read, self.mesh_id)
        if owner is None:
            return None
        backups = StoredBackups(self._target, owner)
        if not await self._is_due(backups):
            return None
        with suppress(StaleFence):
            async with self._leading() as term:
                if term is not None and await self._is_due(backups):  # another node may just have made one
                    return await self._make(backups, term)
        return None

    async def _is_due(self, backups: StoredBackups) -> bool:
        """Return whether the newest backup is old enough. One from the future does not count."""
        latest_ms = self._clock.now_ms + _MOST_AHEAD_MS
        stored = await backups.listed()
        self.newest_ms = max((each.at_ms for each in stored if each.at_ms <= latest_ms), default=None)
        return self.newest_ms is None or self._clock.now_ms - self.newest_ms >= self.interval_s * 1_000

    async def _make(self, backups: StoredBackups, term: BackupTerm) -> StoredBackup:
        """Copy the database into chunks, of which only the changed ones are kept, and store those."""
        at_ms = self._clock.now_ms
        with tempfile.TemporaryDirectory(prefix="vox-mesh-backup-") as folder:
            chunks = await backups.begin(Path(folder), self._chance)
            copied = await self._copy(chunks)
            new_bytes = sum(chunk.size for chunk in chunks.new)
            origin = BackupOrigin(backup_name(at_ms, new_key()[-_UNIQUE:]), at_ms, self._node_id, term)
            backup = await backups.add(origin, chunks, self._keep)
        self.newest_ms = at_ms
        _log.info(
            "backup made: name=%s bytes=%d new_bytes=%d rows=%d",
            *(backup.name, backup.bytes, new_bytes, copied.rows),
        )
        return backup

    async def _copy(self, chunks: ChunkWriter) -> Copied:
        """Copy the database over a connection of its own, so that the node's own calls do not wait."""
        engine, disk = await self._open_database(), SerialThread("vox-mesh-backup")
        try:
            copied = await copy_database(engine, RowLines(chunks.write, disk))
            await disk.do(chunks.finish)
        finally:
            await disk.stop()
            await engine.close()
        return copied

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[BackupTerm | None]:
        """Lead while the body runs, if no other node leads; a backup may take longer than a lease."""
        if not await self._leadership.keep(self._lease_s):
            yield None
            return
        term = BackupTerm(self._leadership, self._lease_s)
        renewing = asyncio.create_task(_renew(term))
        try:
            yield term
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await self._leadership.resign()


async def _renew(term: BackupTerm) -> None:
    """Renew the lease until the term is over."""
    while True:
        await asyncio.sleep(term.lease_s / 4)
        try:
            await term.confirm()
        except StaleFence:
            return
        except MeshError:
            continue  # the database is away
