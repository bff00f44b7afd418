"""Leadership: one node of the mesh at a time does something, under a fenced lock of the mesh itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from vox_mesh.errors import LockHeld, MeshError, StaleFence
from vox_mesh.locks.locks import Locks
from vox_mesh.locks.scripts import OWN
from vox_mesh.model.locks.records import Lock, iso_of
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("leadership")


class Leader(NamedTuple):
    """Who leads, under which token, and until when unless it goes on."""

    node_id: str
    fence_token: int
    expires_at: str


class Leadership:
    """One office of the mesh, as this node may hold it. It is lost with its lock."""

    def __init__(
        self, office: str, store: Store, locks: Locks, clock: MeshClock, monotonic: Callable[[], float]
    ) -> None:
        self._office = office
        self._store = store
        self._locks = locks
        self._clock = clock
        self._monotonic = monotonic
        self._lock: Lock | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this node leads, by its own clock: it stops believing so before the database does."""
        return self._lock is not None and self._monotonic() < self._lock.deadline

    @property
    def fence_token(self) -> int | None:
        """The token under which this node leads."""
        return None if self._lock is None else self._lock.fence_token

    def guard(self) -> Statement:
        """Lets a script go on only while this node leads; else `StaleFence`."""
        if self._lock is None:
            raise StaleFence
        return self._locks.guard(self._lock)

    async def leader(self) -> Leader | None:
        """Who leads now, as far as our copy of the database shows."""
        now = iso_of(self._clock.now_ms)
        rows = await self._store.read(_SQL["leader"], (*self._store.tenant[:2], OWN + self._office, now))
        return Leader._make(rows[0]) if rows else None

    async def keep(self, ttl_s: float) -> bool:
        """Go on to lead for so long, or begin to if nobody does; whether this node leads.

        As long as half of that is left, nothing is said.
        """
        if self._lock is not None and self._lock.deadline - self._monotonic() < ttl_s / 2:
            try:
                await self._locks.renew(self._lock, ttl=ttl_s)
            except StaleFence:
                _log.warning("this node does not lead the %s any more", self._office)
                self._lock = None
        if self._lock is None and self._clock.step is None and await self.leader() is None:
            with suppress(LockHeld):
                self._lock = await self._locks.acquire_own(self._office, ttl_s)
                _log.info("this node leads the %s, under token %d", self._office, self._lock.fence_token)
        return self.is_ours

    async def resign(self) -> None:
        """Let another one lead; if that can't be said, it may when the time is over."""
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                await self._locks.release(lock)
            except MeshError as error:
                _log.info("could not resign from the %s: %s", self._office, error.line)
