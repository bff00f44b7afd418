"""Open a replica: the pushed one or, if the primary does not support it, the native one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vox_mesh.contrib.native import NativeReplica, ReplicaSource, require_package
from vox_mesh.errors import DriverMissing, ReplicaOff, SyncRefused
from vox_mesh.model.base.backends import ReplicaChoice
from vox_mesh.model.base.histogram import Counts
from vox_mesh.settings.ownership import ownership_fault
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.engine import Ask
from vox_mesh.store.files import make_private
from vox_mesh.store.replica.copy import Copy
from vox_mesh.store.replica.delegating import DelegatingReplica
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.overtaken import OvertakenCopies
from vox_mesh.store.replica.pushed import PushedReplica
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import Progress, Replica
from vox_mesh.store.replica.shared.shared_replica import SharedPrimary, SharedReplica
from vox_mesh.store.watch.changes import Changes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """The primary of a replica, the path of its file, and the watermark it must not fall behind."""

    path: Path
    endpoint: str
    token: str | None
    timeout: float
    watermark: ReadWatermark
    changes: Changes
    max_stale_s: float
    requests: Counts
    faults: BackgroundFaults
    ask: Ask
    """Queries the primary, to detect that it has lost data that the replica has."""

    host: str = ""
    """Identifies the monotonic clock that processes share."""


def open_replica(choice: ReplicaChoice, origin: Origin) -> Replica:
    """Open the chosen replica. Raises `ReplicaOff` or `DriverMissing` if it is not available."""
    try:
        match choice:
            case ReplicaChoice.OFF:
                raise ReplicaOff("VOX_DB_REPLICA is off", hint="for example VOX_DB_REPLICA=auto")
            case ReplicaChoice.NATIVE:
                return _native(origin)
            case ReplicaChoice.PUSHED:
                return _pushed(origin, lambda refusal: None)
            case ReplicaChoice.SHARED:
                return _shared(origin)
            case ReplicaChoice.AUTO:
                return AutoReplica(lambda refused: _pushed(origin, refused), lambda: _native(origin))
    except OSError as error:
        raise ReplicaOff(
            f"{origin.path} can't be opened: {error.strerror}",
            hint="check VOX_DB_PATH and the folder's permissions",
        ) from None


def _pushed(origin: Origin, refused: Callable[[SyncRefused], None]) -> Replica:
    mark = Mark.take(origin.path, PushedReplica.driver, origin.endpoint)
    try:
        copy = Copy(origin.path, mark, OvertakenCopies(origin.path, origin.ask))
    except OSError:
        mark.release()
        raise
    return PushedReplica(
        copy,
        mark,
        PrimaryLog(origin.endpoint, origin.token, origin.timeout, origin.requests),
        origin.watermark,
        origin.changes,
        max_stale_s=origin.max_stale_s,
        refused=refused,
        faults=origin.faults,
    )


def _shared(origin: Origin) -> Replica:
    make_private(origin.path.parent)
    if fault := ownership_fault(origin.path.parent, origin.path.parent.stat()):
        raise ReplicaOff(fault, hint="a shared replica needs a folder that only you can write to")
    primary = SharedPrimary(
        origin.endpoint,
        lambda: PrimaryLog(origin.endpoint, origin.token, origin.timeout, origin.requests),
        origin.ask,
    )
    return SharedReplica(
        origin.path,
        origin.host,
        primary,
        origin.watermark,
        origin.changes,
        max_stale_s=origin.max_stale_s,
        faults=origin.faults,
    )


def _native(origin: Origin) -> Replica:
    require_package()
    return NativeReplica(
        ReplicaSource(origin.path, origin.endpoint, origin.token, origin.timeout),
        Mark.take(origin.path, NativeReplica.driver, origin.endpoint),
        origin.watermark,
        origin.changes,
        max_stale_s=origin.max_stale_s,
        refused=lambda refusal: None,
        faults=origin.faults,
        requests=origin.requests,
    )


class AutoReplica(DelegatingReplica):
    """Uses the pushed replica, and switches to the native one if the primary does not push."""

    def __init__(
        self, pushed: Callable[[Callable[[SyncRefused], None]], Replica], native: Callable[[], Replica]
    ) -> None:
        self._native = native
        self._switching: asyncio.Task[None] | None = None
        self._chosen = pushed(self._start_switch)

    def _start_switch(self, _: SyncRefused) -> None:
        self._switching = asyncio.create_task(self._switch())

    async def _switch(self) -> None:
        try:
            await self._chosen.close()  # both use the same file
            self._chosen = self._native()
        except (DriverMissing, ReplicaOff) as error:
            _log.warning("no other replica available: %s", error.line)
        except Exception as error:
            _log.warning("no other replica available: %s", error)

    async def wait_until_caught_up(self, progress: Progress, patience_s: float) -> None:
        """Wait until the replica has all commits made before this call."""
        first = self._chosen
        try:
            await first.wait_until_caught_up(progress, patience_s)
        except ReplicaOff:
            if self._switching is not None:
                await asyncio.wait([self._switching])
            if self._chosen is first:
                raise
            await self._chosen.wait_until_caught_up(progress, patience_s)

    async def close(self) -> None:
        """Close the replica."""
        if self._switching is not None:
            await asyncio.wait([self._switching])
        await self._chosen.close()
