"""Holding: keep a lock while a body runs, and cancel the body when the lock is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from vox_mesh.errors import LockLost, StaleFence
from vox_mesh.model.locks.records import Lock
from vox_mesh.nodes.leases import LeaseRenewer
from vox_mesh.observability.log_context import lock_scope
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

Renew = Callable[[Lock], Awaitable[object]]
Release = Callable[[Lock], Awaitable[bool]]


class HeldLock:
    """A lock that is held for a running body."""

    __slots__ = ("_body", "is_lost", "lock", "renew")

    def __init__(self, lock: Lock, renew: Renew | None, body: asyncio.Task[object]) -> None:
        self.lock = lock
        self.renew = renew
        self._body = body
        self.is_lost = False

    @property
    def ttl(self) -> float:
        """The TTL of the lock."""
        return self.lock.ttl

    @property
    def deadline(self) -> float:
        """When the lock ends, by our own clock."""
        return self.lock.deadline

    def lose(self) -> None:
        """Mark the lock as lost and stop the body."""
        self.is_lost = True
        self._body.cancel()


class HeldLocks:
    """The locks that this process holds for running bodies.

    `release` must release a lock even if it is cancelled, and return whether it was held until then.
    """

    def __init__(self, store: Store, release: Release, monotonic: Callable[[], float]) -> None:
        self._release = release
        self._monotonic = monotonic
        self._renewer: LeaseRenewer[HeldLock] = LeaseRenewer(
            self._renew_each, HeldLock.lose, monotonic, store.faults, task_name="vox-mesh-lock-renewal"
        )

    @asynccontextmanager
    async def hold(self, lock: Lock, renew: Renew | None) -> AsyncIterator[Lock]:
        """Hold the lock while the body runs; cancel the body with `LockLost` if the lock is lost.

        A body that never awaited gets `LockLost` at its end. Without `renew`, the lock is not renewed.
        """
        body = asyncio.current_task()
        assert body is not None
        cancelling = body.cancelling()
        held = HeldLock(lock, renew, body)
        with lock_scope(lock):
            self._renewer.hold(held, is_renewed=renew is not None)
            try:
                yield lock
            except asyncio.CancelledError:
                if held.is_lost and body.uncancel() <= cancelling:
                    raise _lock_lost(lock) from None
                raise
            except BaseException:
                if held.is_lost:
                    body.uncancel()
                raise
            else:
                if held.is_lost:
                    body.uncancel()
                if held.is_lost or self._is_expired(lock):
                    raise _lock_lost(lock)
            finally:
                self._renewer.release(held)
                was_held = not held.is_lost and await self._release(lock)
            if not was_held:
                raise _lock_lost(lock)

    async def renew_all(self) -> None:
        """Renew all locks now, and stop the bodies of the lost ones."""
        await self._renewer.renew_all()

    def close(self) -> Sequence[Lock]:
        """Stop all bodies with `LockLost`. Return their locks, which are to be released."""
        held = tuple(self._renewer.leases)
        self._renewer.close()
        for each in held:
            each.lose()
        return [each.lock for each in held]

    def _is_expired(self, lock: Lock) -> bool:
        """Return whether the lock has expired by our own clock, even if no timer has fired since."""
        return lock.deadline <= self._monotonic()

    async def _renew_each(self, held: Sequence[HeldLock]) -> Sequence[HeldLock]:
        are_lost = await asyncio.gather(*(self._is_lost_after_renewal(each) for each in held))
        return [each for each, is_lost in zip(held, are_lost, strict=True) if is_lost]

    async def _is_lost_after_renewal(self, held: HeldLock) -> bool:
        lock, fence_token = held.lock, held.lock.fence_token
        if held.renew is None or self._is_expired(lock):
            return self._is_expired(lock)
        try:
            async with asyncio.timeout(lock.deadline - self._monotonic()):
                await held.renew(lock)
        except TimeoutError:
            return True
        except StaleFence:
            return lock.fence_token == fence_token  # otherwise it was upgraded or downgraded meanwhile
        except Exception as error:  # the renewal must go on after any failure
            _log.warning("lock not renewed: keys=%s error=%s", ", ".join(lock.keys), error)
        return False


def _lock_lost(lock: Lock) -> LockLost:
    return LockLost(
        f"the lock on {', '.join(lock.keys)} was lost: token {lock.fence_token} is over",
        hint="acquire it again; what it protects may have been changed by others",
    )
