"""Holders: who holds which lock, read once or watched."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from vox_mesh.errors import StaleFence
from vox_mesh.locks.scripts import default_ttl, json, normal_keys
from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import FILE, normalise
from vox_mesh.model.locks.records import Holder, Lock, LockWaiter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("locks")
_POLL_INTERVAL_S: Final = 1.0
_DEBOUNCE_S: Final = 0.02


class LockHolders:
    """Read the holders of locks, always from the database itself."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._monotonic = monotonic

    async def all(self, keys: str | Sequence[str] | None = None) -> list[Holder]:
        """Return the current holders of these keys, or of all."""
        return await self._read("holders", None if keys is None else json(normal_keys(keys)))

    async def near(self, paths: Sequence[str]) -> list[Holder]:
        """Return the current holders of these paths, and of all patterns; how many wait is not counted.

        With many locks this reads few of them: every pattern in use is registered.
        """
        return await self._read("holders_near", json([FILE + path for path in paths]))

    async def _read(self, name: str, wanted: str | None) -> list[Holder]:
        rows = await self._store.read(_SQL[name], (*self._mesh, wanted), fresh=True)
        return [Holder._make(row)._replace(is_shared=bool(row["is_shared"])) for row in rows]

    async def waiters(self, limit: int) -> list[LockWaiter]:
        """Return the waiters for all keys, in the order of each key's queue."""
        rows = await self._store.read(_SQL["waiters"], (*self._mesh, limit), fresh=True)
        return [LockWaiter._make(row)._replace(is_shared=bool(row["is_shared"])) for row in rows]

    async def in_the_way(self, keys: str | Sequence[str]) -> list[Holder]:
        """Return the current holders of anything that overlaps one of these keys."""
        wanted = PatternIndex(normal_keys(keys))
        return [holder for holder in await self.all() if wanted.overlapping(holder.lock_key)]

    async def find(self, key: str, fence_token: int) -> Lock:
        """Return the lock on this key under this token; raise `StaleFence` if there is none."""
        key, holders = normalise(key), await self.all()
        first = next((h for h in holders if (h.lock_key, h.fence_token) == (key, fence_token)), None)
        if first is None:
            raise StaleFence
        return lock_of([each for each in holders if each.request_id == first.request_id], self._monotonic())

    async def watch(self) -> AsyncGenerator[list[Holder], None]:
        """Yield all holders now, and again when a lock or its number of waiters changes.

        Renewals are not reported.
        """
        last: list[tuple[str, int, int]] | None = None
        async for turn in self._store.changes(debounce_s=_DEBOUNCE_S):
            with turn.retry_if_unavailable():
                holders = await self.all()
                now = [(each.lock_key, each.fence_token, each.waiting) for each in holders]
                if now != last:
                    last = now
                    yield holders
                if holders:  # a lease or a waiter can time out without a commit
                    turn.wait_at_most(
                        min(_POLL_INTERVAL_S if each.waiting else each.left_s for each in holders)
                    )


def lock_of(rows: Sequence[Holder], now: float) -> Lock:
    """Return the lock with these rows, one for each of its keys; `now` is by our monotonic clock.

    Its original TTL is not known any more: it gets the default TTL of its keys.
    """
    first, keys = rows[0], tuple(each.lock_key for each in rows)
    return Lock(
        keys=keys,
        fence_token=first.fence_token,
        holder_node=first.holder_node,
        holder_agent=first.holder_agent,
        is_shared=first.is_shared,
        ttl=default_ttl(keys),
        expires_at=first.expires_at,
        deadline=now + first.left_s,
        request_id=first.request_id,
    )
