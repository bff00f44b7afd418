"""A lease: renews a lock in the background, and stops the work under it when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from vox_mesh.errors import LockLost, StaleFence
from vox_mesh.model.locks.records import Lock
from vox_mesh.observability.log_context import of_lock

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.5

Renew = Callable[[Lock], Awaitable[object]]
LetGo = Callable[[Lock], Awaitable[bool]]


class Lease:
    """Renews at a third of the time that a lock has; tries again after a fault, until the lock is over."""

    def __init__(
        self, lock: Lock, renew: Renew, lost: Callable[[], object], monotonic: Callable[[], float]
    ) -> None:
        self.lock = lock
        self._renew = renew
        self._lost = lost
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._renewing: asyncio.Task[None] | None = None
        self._is_over = False
        self.is_lost = False
        # The first renewal is a timer only: most locks are let go of before it rings.
        self._timer = self._loop.call_later(max(0.0, self._left_s - 2 * lock.ttl / 3), self._start)

    def _start(self) -> None:
        self._renewing = self._loop.create_task(self._keep(), name=f"vox-mesh-lease-{self.lock.fence_token}")

    async def _keep(self) -> None:
        pause = await self.run_once()
        while pause is not None:
            await asyncio.sleep(min(pause, max(0.0, self._left_s)))
            pause = await self.run_once()

    async def run_once(self) -> float | None:
        """Renew; in how many seconds it is to be done again. `None`: the lock is over, and lost."""
        token = self.lock.fence_token
        pause: float | None = None
        try:
            if not self.is_past:
                async with asyncio.timeout(self._left_s):
                    await self._renew(self.lock)
                pause = self.lock.ttl / 3
        except TimeoutError:
            pass
        except StaleFence:
            if self.lock.fence_token != token:
                pause = 0.0  # it was upgraded or downgraded meanwhile
        except Exception as error:  # whatever it was, it must not end in silence
            _log.warning("the lock on %s was not renewed: %s", ", ".join(self.lock.keys), error)
            pause = min(_AGAIN_S, self.lock.ttl / 10)
        if pause is None:
            self.lose()
        return pause

    def lose(self) -> None:
        """The work under it has to stop."""
        if not (self._is_over or self.is_lost):
            self.is_lost = True
            self._lost()

    @property
    def is_past(self) -> bool:
        """Whether its time is over by our own clock, whether or not a timer has had its turn since."""
        return self._left_s <= 0

    @property
    def _left_s(self) -> float:
        return self.lock.deadline - self._monotonic()

    def stop(self) -> None:
        """The work is done: from now on nothing can be lost, and nobody is cancelled."""
        self._is_over = True
        self._timer.cancel()

    async def end(self) -> None:
        """Renew no more."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)


@asynccontextmanager
async def leased(
    lock: Lock, renew: Renew, let_go: LetGo, monotonic: Callable[[], float], leases: set[Lease]
) -> AsyncIterator[Lock]:
    """Hold the lock for as long as the body runs; the body is cancelled, with `LockLost`, if it is lost.

    A body that could not be, as it never waited, is told so at its end. `let_go` must release it even if that
    is cancelled, and answers whether it was held until then. It is among the `leases` for as long.
    """
    body = asyncio.current_task()
    assert body is not None
    before = body.cancelling()
    with of_lock(lock):
        lease = Lease(lock, renew, body.cancel, monotonic)
        leases.add(lease)
        try:
            yield lock
        except asyncio.CancelledError:
            if lease.is_lost and body.uncancel() <= before:
                raise _lost(lock) from None
            raise
        except BaseException:
            if lease.is_lost:
                body.uncancel()
            raise
        else:
            if lease.is_lost:
                body.uncancel()
            if lease.is_lost or lease.is_past:
                raise _lost(lock)
        finally:
            leases.discard(lease)
            lease.stop()
            await lease.end()
            was_held = not lease.is_lost and await let_go(lock)
        if not was_held:
            raise _lost(lock)


def _lost(lock: Lock) -> LockLost:
    return LockLost(
        f"the lock on {', '.join(lock.keys)} was lost: token {lock.fence_token} is over",
        hint="acquire it again; what it protects may have been changed by others",
    )
