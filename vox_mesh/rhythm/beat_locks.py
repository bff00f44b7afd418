"""Locks whose lease ends with the current phase or bar, unless the holder renews them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, fields
from typing import Final

from vox_mesh.errors import BadValue, MeshError
from vox_mesh.locks.locks import Locks
from vox_mesh.locks.scripts import MIN_TTL_S
from vox_mesh.model.base.durations import Duration
from vox_mesh.model.locks.records import Lock, milliseconds_at
from vox_mesh.model.rhythm.phases import boundary_ms
from vox_mesh.model.rhythm.tempo import Until
from vox_mesh.rhythm.context import RhythmContext

_MIN_TTL_MS: Final = round(MIN_TTL_S * 1_000)
_MIN_LEASE_MS: Final = 1_000


@dataclass(slots=True)
class BeatLock(Lock):
    """A lock whose lease ends with a phase or a bar."""

    until: Until
    ends_ms: int
    """When the phase or bar ends, by the database's clock."""


class BeatLocks:
    """Acquires locks until a boundary of the rhythm, and renews them until the next one."""

    def __init__(self, context: RhythmContext, locks: Locks) -> None:
        self._context = context
        self._locks = locks

    def ends_ms(self, until: Until | str, now_ms: int, min_left_ms: int = _MIN_TTL_MS) -> int:
        """Return when the phase or bar that contains `now_ms` ends; at least `min_left_ms` later."""
        end_ms = self._end_of(until, now_ms)
        while end_ms - now_ms < min_left_ms:
            end_ms = self._end_of(until, end_ms)
        return end_ms

    def lease_ms(self, until: Until | str, following: bool) -> int:
        """Return the length of a lease until the boundary; with `following`, until the one after it."""
        now_ms = self._context.times.now_ms
        from_ms = self._end_of(until, now_ms) if following else now_ms
        return self.ends_ms(until, from_ms, _MIN_LEASE_MS) - now_ms

    def _end_of(self, until: Until | str, at_ms: int) -> int:
        return boundary_ms(self._context.plan, _parse_until(until), at_ms)

    async def acquire(
        self,
        keys: str | Sequence[str],
        until: Until | str = Until.PHASE,
        *,
        agent: str | None = None,
        wait: Duration = 0.0,
        shared: bool = False,
    ) -> BeatLock:
        """Acquire all of the keys until the phase or bar ends, or none and raise `LockHeld`.

        After a wait, the phase or bar in which the lock was acquired counts.
        """
        now_ms = self._context.times.now_ms
        ends_ms = self.ends_ms(until, now_ms)
        ttl = (ends_ms - now_ms) / 1_000
        plain = await self._locks.acquire(keys, agent=agent, ttl=ttl, wait=wait, shared=shared)
        held = {each.name: getattr(plain, each.name) for each in fields(plain)}
        lock = BeatLock(**held, until=_parse_until(until), ends_ms=ends_ms)
        if (
            milliseconds_at(lock.expires_at) - ends_ms >= _MIN_TTL_MS
        ):  # the wait crossed a boundary, so the lease would last too long
            await self._shorten(lock)
        return lock

    async def _shorten(self, lock: BeatLock) -> None:
        try:
            await self._extend(lock, self.ends_ms(lock.until, self._context.times.now_ms))
        except BaseException:
            with suppress(MeshError):  # if the release fails too, the lease expires by itself
                await self._locks.release(lock)
            raise

    def hold(
        self,
        keys: str | Sequence[str],
        until: Until | str = Until.PHASE,
        *,
        agent: str | None = None,
        wait: Duration = 0.0,
        shared: bool = False,
    ) -> AbstractAsyncContextManager[BeatLock]:
        """Acquire for the duration of the body, at most until the phase or bar ends.

        At that boundary the body is cancelled and `LockLost` is raised, unless `renew` was called before.
        """
        return self._hold(keys, until, agent=agent, wait=wait, shared=shared)

    @asynccontextmanager
    async def _hold(
        self,
        keys: str | Sequence[str],
        until: Until | str,
        *,
        agent: str | None,
        wait: Duration,
        shared: bool,
    ) -> AsyncIterator[BeatLock]:
        lock = await self.acquire(keys, until, agent=agent, wait=wait, shared=shared)
        async with self._locks.keep(lock, None):
            yield lock

    async def renew(self, lock: BeatLock, beats_left: float) -> BeatLock:
        """Extend the lock until the end of the next phase or bar.

        `beats_left` is the number of its own beats the holder has left, at least one. Raises `StaleFence` if
        the lock has expired.
        """
        if beats_left < 1:
            raise BadValue(
                f"beats_left must be at least 1 to renew {', '.join(lock.keys)}, got {beats_left:g}",
                hint="let the lock end with its phase or bar",
            )
        following_ms = self._end_of(lock.until, self._end_of(lock.until, self._context.times.now_ms))
        await self._extend(lock, max(lock.ends_ms, following_ms))
        return lock

    async def _extend(self, lock: BeatLock, ends_ms: int) -> None:
        await self._locks.renew(lock, ttl=(ends_ms - self._context.times.now_ms) / 1_000)
        lock.ends_ms = ends_ms


def _parse_until(until: Until | str) -> Until:
    try:
        return Until(until)
    except ValueError:
        raise BadValue(f"until must be phase or bar, got {until!r}") from None
