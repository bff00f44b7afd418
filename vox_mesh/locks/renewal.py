"""Leases: renew a lock in the background, and cancel the work under it when the lock is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from vox_mesh.errors import LockLost, StaleFence
from vox_mesh.model.locks.records import Lock
from vox_mesh.observability.log_context import lock_scope

_log = logging.getLogger(__name__)

_RETRY_DELAY_S: Final = 0.5

Renew = Callable[[Lock], Awaitable[object]]
Release = Callable[[Lock], Awaitable[bool]]


class Lease:
    """Renew a lock at a third of its TTL, and retry after failures until it expires."""

    def __init__(
        self, lock: Lock, renew: Renew, on_lost: Callable[[], object], monotonic: Callable[[], float]
    ) -> None:
        self.lock = lock
        self._renew = renew
        self._on_lost = on_lost
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._renewing: asyncio.Task[None] | None = None
        self._is_over = False
        self.is_lost = False
        # The first renewal is only a timer: most locks are released before it fires.
        self._timer = self._loop.call_later(max(0.0, self._left_s - 2 * lock.ttl / 3), self._start)

    def _start(self) -> None:
        self._renewing = self._loop.create_task(
            self._renew_until_lost(), name=f"vox-mesh-lease-{self.lock.fence_token}"
        )

    async def _renew_until_lost(self) -> None:
        pause = await self.run_once()
        while pause is not None:
            await asyncio.sleep(min(pause, max(0.0, self._left_s)))
            pause = await self.run_once()

    async def run_once(self) -> float | None:
        """Renew the lock. Return the seconds until the next renewal, or `None` if the lock is lost."""
        token = self.lock.fence_token
        pause: float | None = None
        try:
            if not self.is_expired:
                async with asyncio.timeout(self._left_s):
                    await self._renew(self.lock)
                pause = self.lock.ttl / 3
        except TimeoutError:
            pass
        except StaleFence:
            if self.lock.fence_token != token:
                pause = 0.0  # upgraded or downgraded meanwhile
        except Exception as error:  # the renewal must go on after any failure
            _log.warning("lock not renewed: keys=%s error=%s", ", ".join(self.lock.keys), error)
            pause = min(_RETRY_DELAY_S, self.lock.ttl / 10)
        if pause is None:
            self.lose()
        return pause

    def lose(self) -> None:
        """Mark the lock as lost and stop the work under it."""
        if not (self._is_over or self.is_lost):
            self.is_lost = True
            self._on_lost()

    @property
    def is_expired(self) -> bool:
        """Return whether the lease has expired by our own clock, even if no timer has fired since."""
        return self._left_s <= 0

    @property
    def _left_s(self) -> float:
        return self.lock.deadline - self._monotonic()

    def stop(self) -> None:
        """Stop losing: the work is done and must not be cancelled any more."""
        self._is_over = True
        self._timer.cancel()

    async def end(self) -> None:
        """Renew no more."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)


@asynccontextmanager
async def hold_lease(
    lock: Lock, renew: Renew, release: Release, monotonic: Callable[[], float], leases: set[Lease]
) -> AsyncIterator[Lock]:
    """Hold the lock while the body runs; cancel the body with `LockLost` if the lock is lost.

    A body that never awaited gets `LockLost` at its end. `release` must release the lock even if it is
    cancelled, and return whether it was held until then. The lease is in `leases` meanwhile.
    """
    body = asyncio.current_task()
    assert body is not None
    before = body.cancelling()
    with lock_scope(lock):
        lease = Lease(lock, renew, body.cancel, monotonic)
        leases.add(lease)
        try:
            yield lock
        except asyncio.CancelledError:
            if lease.is_lost and body.uncancel() <= before:
                raise _lock_lost(lock) from None
            raise
        except BaseException:
            if lease.is_lost:
                body.uncancel()
            raise
        else:
            if lease.is_lost:
                body.uncancel()
            if lease.is_lost or lease.is_expired:
                raise _lock_lost(lock)
        finally:
            leases.discard(lease)
            lease.stop()
            await lease.end()
            was_held = not lease.is_lost and await release(lock)
        if not was_held:
            raise _lock_lost(lock)


def _lock_lost(lock: Lock) -> LockLost:
    return LockLost(
        f"the lock on {', '.join(lock.keys)} was lost: token {lock.fence_token} is over",
        hint="acquire it again; what it protects may have been changed by others",
    )
