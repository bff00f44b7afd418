"""The queue: those in this process who wait for a lock, and what wakes them.

Places are kept in the database, first come, first served. Here one task watches for all of them: whenever
something was committed, or a hold that is in the way ends by itself, it looks who may be free to go on, and
has it try. It also says every now and then that they are still there: whoever is silent is passed over, and
finds its place again when it comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import MeshError, StaleIncarnation, StoreClosed
from vox_mesh.locks.scripts import ALIVE, LockRequest, json
from vox_mesh.model.locks.records import Lock, milliseconds_at
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability.log_context import apart
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("locks")
_LEFT: Final = "the mesh was left while this waited for a lock"
_STAY_S: Final = 0.5
_CALM_S: Final = 0.001
_FLOWING_S: Final = 0.02
_AGAIN_S: Final = 0.25


@dataclass(eq=False, slots=True)
class Waiter:
    """One that waits, its place in the queue, and what it will be told."""

    request: LockRequest
    ticket: int
    served: asyncio.Future[Lock]

    def serve(self, lock: Lock) -> None:
        """It has the lock."""
        if not self.served.done():
            self.served.set_result(lock)

    def fail(self, error: MeshError) -> None:
        """It can't have it any more."""
        if not self.served.done():
            self.served.set_exception(error)


Attempt = Callable[[Waiter], Awaitable[None]]
"""Asks the database once more, and serves the waiter if it can have its lock."""


class LockQueue:
    """Wakes those who wait."""

    def __init__(self, store: Store, clock: MeshClock, attempt: Attempt) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._clock = clock
        self._attempt = attempt
        self._waiters: dict[str, Waiter] = {}
        self._by_key: dict[str, dict[str, Waiter]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._pause: asyncio.Timeout | None = None
        self._is_closed = False
        self.is_flowing = False
        """Whether a lock was just passed on within this process."""

    def first_for(self, keys: Sequence[str]) -> Waiter | None:
        """Who of us came first for one of these keys."""
        waiting = [w for key in keys for w in self._by_key.get(key, {}).values() if not w.served.done()]
        return min(waiting, key=lambda waiter: waiter.ticket, default=None)

    async def wait(self, request: LockRequest, ticket: int) -> Lock:
        """Wait until the request is served; whoever gives up must take it back."""
        if self._is_closed:
            raise StoreClosed(_LEFT)
        waiter = Waiter(request, ticket, asyncio.get_running_loop().create_future())
        self._waiters[request.id] = waiter
        for key in request.keys:
            self._by_key.setdefault(key, {})[request.id] = waiter
        if self._pause is not None and not self._pause.expired():
            self._pause.reschedule(0.0)  # what blocks this one may end sooner than what the others wait for
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="vox-mesh-lock-queue", context=apart())
        try:
            return await waiter.served
        finally:
            del self._waiters[request.id]
            for key in request.keys:
                del self._by_key[key][request.id]
                if not self._by_key[key]:
                    del self._by_key[key]

    async def _watch(self) -> None:
        """Watch as long as somebody waits."""
        loop = asyncio.get_running_loop()
        stay_at = loop.time() + _STAY_S
        try:
            while self._waiters:
                seen = self._store.change_count
                try:
                    if loop.time() >= stay_at:
                        stay_at = loop.time() + _STAY_S
                        await self._stay()
                    ends_in = await self._look()
                    await self._rest(seen, min(loop.time() + ends_in, stay_at))
                except (StaleIncarnation, StoreClosed) as error:
                    for waiter in self._waiters.values():
                        waiter.fail(error)
                    return
                except MeshError as error:
                    _log.warning("lock queue not served: %s", error.line)
                    await asyncio.sleep(_AGAIN_S)
                except Exception as error:  # waiters must not be left alone, whatever it was
                    self._store.faults.note("lock-queue", error)
                    await asyncio.sleep(_AGAIN_S)
        finally:
            self._watching = None

    async def _rest(self, seen: int, until: float) -> None:
        """Wait until there may be something to see, and a little longer: a busy mesh commits all the time."""
        if self.is_flowing:  # we pass locks on ourselves: others need not be looked for as often
            self.is_flowing = False
            await asyncio.sleep(_FLOWING_S)
        else:
            await self._next(seen, until)
            await asyncio.sleep(_CALM_S)

    async def _next(self, seen: int, until: float) -> None:
        """Wait for a commit, for another who waits, or for the end of a time."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until) as self._pause:
                    await self._store.changed(seen)
        finally:
            self._pause = None

    async def _stay(self) -> None:
        """Say that those who wait are still there, and bring back those who were taken for dead."""
        waiting = dict(self._waiters)
        answer = Answer(_SQL["stay_in_queue"], (*self._mesh, json(list(waiting)), ALIVE), ("request_id",))
        rows = (await self._store.write(Script(answer=answer, repeatable=True))).rows
        there = {row["request_id"] for row in rows}
        await self._try([waiter for request_id, waiter in waiting.items() if request_id not in there])

    async def _look(self) -> float:
        """Have those try whom nothing blocks any more; in how many seconds the next may be free by itself."""
        waiting = {request_id: w for request_id, w in self._waiters.items() if not w.served.done()}
        rows = await self._store.read(_SQL["blocked"], (*self._mesh, json(list(waiting))))
        ends = {row["request_id"]: milliseconds_at(row["blocks_until"]) for row in rows}
        now_ms = self._clock.now_ms
        await self._try([w for request_id, w in waiting.items() if ends.get(request_id, 0) <= now_ms])
        return min((end - now_ms for end in ends.values() if end > now_ms), default=1_000) / 1_000

    async def _try(self, waiters: Sequence[Waiter]) -> None:
        trying = [self._attempt(waiter) for waiter in waiters if not waiter.served.done()]
        for ended in await asyncio.gather(*trying, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    async def close(self) -> None:
        """Stop watching; whoever still waits, or comes to wait now, is told."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for waiter in self._waiters.values():
            waiter.fail(StoreClosed(_LEFT))
        while self._waiters:  # noqa: ASYNC110 - each leaves as soon as it runs, and takes its request back
            await asyncio.sleep(0)
