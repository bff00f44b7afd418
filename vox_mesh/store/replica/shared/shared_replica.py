"""A replica that the processes of a home share: one of them follows the primary, whichever is the first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vox_mesh.errors import ReplicaOff
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.engine import Ask
from vox_mesh.store.replica.delegating import DelegatingReplica
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.overtaken import OvertakenCopies
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import Progress, Replica
from vox_mesh.store.replica.shared.shared_follower import DRIVER, SharedFiles, SharedFollower
from vox_mesh.store.replica.shared.shared_reader import SharedReader
from vox_mesh.store.watch.changes import Changes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedPrimary:
    """The primary: its address, a client of its log, and a way to query it."""

    endpoint: str
    open_log: Callable[[], PrimaryLog]
    ask: Ask


class SharedReplica(DelegatingReplica):
    """Follows the primary if no other process of this home does, and reads its copy otherwise.

    The process that follows owns the mark of the copy, by a lock that ends with the process. Another one
    then takes over, from the same file and position. None stops following otherwise, until it is closed.
    """

    def __init__(
        self,
        path: Path,
        host: str,
        primary: SharedPrimary,
        watermark: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        faults: BackgroundFaults,
    ) -> None:
        self._path = path
        self._host = host
        self._primary = primary
        self._watermark = watermark
        self._changes = changes
        self._max_stale_s = max_stale_s
        self._faults = faults
        self._switching: asyncio.Task[None] | None = None
        self._is_closed = False
        mark = self._take_mark()
        self._chosen: Replica = self._read() if mark is None else self._follow(mark)

    def _take_mark(self) -> Mark | None:
        return Mark.take_if_free(self._path, DRIVER, self._primary.endpoint)

    def _follow(self, mark: Mark) -> Replica:
        try:
            overtaken = OvertakenCopies(self._path, self._primary.ask)
            files = SharedFiles.open(self._path, mark, overtaken, self._host)
        except OSError:
            mark.release()
            raise
        return SharedFollower(
            files,
            mark,
            self._primary.open_log(),
            self._watermark,
            self._changes,
            max_stale_s=self._max_stale_s,
            refused=lambda refusal: None,
            faults=self._faults,
        )

    def _read(self) -> Replica:
        return SharedReader(
            self._path,
            self._host,
            self._primary.open_log(),
            self._watermark,
            self._changes,
            max_stale_s=self._max_stale_s,
            take_over=self._take_over,
            faults=self._faults,
        )

    def _take_over(self) -> bool:
        """Follow the primary from now on, unless another process does. Return whether this one does."""
        if self._is_closed or (mark := self._take_mark()) is None:
            return False
        reader = self._chosen
        self._chosen = self._follow(mark)
        _log.info("this process follows the server now, for all of its home: path=%s", self._path)
        self._switching = asyncio.create_task(reader.close(), name="vox-mesh-replica-switch")
        self._changes.bump()
        return True

    async def wait_until_caught_up(self, progress: Progress, patience_s: float) -> None:
        """Wait until the copy has all commits made before this call."""
        first = self._chosen
        try:
            await first.wait_until_caught_up(progress, patience_s)
        except ReplicaOff:
            if self._chosen is first:
                raise
            await self._chosen.wait_until_caught_up(progress, patience_s)

    async def close(self) -> None:
        """Stop following or reading; another process takes over at once."""
        self._is_closed = True
        if self._switching is not None:
            await asyncio.wait([self._switching])
        await self._chosen.close()
