"""Elect one leader node per role, by a fenced lock of the mesh."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from vox_mesh.errors import LockHeld, MeshError, StaleFence
from vox_mesh.locks.locks import Locks
from vox_mesh.locks.scripts import MESH_PREFIX
from vox_mesh.model.locks.records import Lock, iso_of
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("leadership")


class Leader(NamedTuple):
    """Describe the current leader: its node, its fencing token, and when its lease ends."""

    node_id: str
    fence_token: int
    expires_at: str


class Leadership:
    """Hold, or compete for, one leader role of the mesh. The role is lost with its lock."""

    def __init__(
        self,
        role: str,
        store: Store,
        locks: Locks,
        clock: MeshClock,
        monotonic: Callable[[], float],
        *,
        log_level: int = logging.INFO,
    ) -> None:
        """`log_level` is that of taking the role, which for short duties happens often."""
        self._role = role
        self._store = store
        self._locks = locks
        self._clock = clock
        self._monotonic = monotonic
        self._log_level = log_level
        self._lock: Lock | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether this node leads, by its own clock, which gives up before the database does."""
        return self._lock is not None and self._monotonic() < self._lock.deadline

    @property
    def fence_token(self) -> int | None:
        """Return the fencing token under which this node leads, or `None`."""
        return None if self._lock is None else self._lock.fence_token

    def guard(self) -> Statement:
        """Return a guard that lets a script run only while this node leads.

        Raises `StaleFence` if it does not.
        """
        if self._lock is None:
            raise StaleFence
        return self._locks.guard(self._lock)

    async def leader(self) -> Leader | None:
        """Return the current leader, as far as the local copy of the database shows."""
        now = iso_of(self._clock.now_ms)
        rows = await self._store.read(_SQL["leader"], (*self._store.mesh_id, MESH_PREFIX + self._role, now))
        return Leader._make(rows[0]) if rows else None

    async def keep(self, ttl: float) -> bool:
        """Renew the leadership for `ttl` seconds, or take it if it is free. Return whether we lead.

        Nothing is sent while more than half of the lease is left.
        """
        if self._lock is not None and self._lock.deadline - self._monotonic() < ttl / 2:
            with suppress(StaleFence):
                await self.renew(ttl)
        if self._lock is None and self._clock.step is None and await self.leader() is None:
            with suppress(LockHeld):
                self._lock = await self._locks.acquire_own(self._role, ttl)
                _log.log(
                    self._log_level,
                    "leadership acquired: role=%s fence_token=%d",
                    self._role,
                    self._lock.fence_token,
                )
        return self.is_ours

    async def renew(self, ttl: float) -> None:
        """Renew the leadership at the database. Raises `StaleFence` if it is lost."""
        if self._lock is None:
            raise StaleFence
        try:
            await self._locks.renew(self._lock, ttl=ttl)
        except StaleFence:
            _log.warning("leadership lost: role=%s", self._role)
            self._lock = None
            raise

    async def resign(self) -> None:
        """Release the leadership. If the database can't be reached, the lease expires by itself."""
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                await self._locks.release(lock)
            except MeshError as error:
                _log.info("leadership not released: role=%s error=%s", self._role, error.line)
