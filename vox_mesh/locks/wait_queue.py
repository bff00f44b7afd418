"""The lock queue: the waiters of this process, and the task that wakes them.

The database keeps the queue, first come, first served. One task here watches it for all waiters: after every
commit, and when a blocking lease expires, it retries the waiters that nothing blocks any more. It also
reports regularly that they are still waiting: a silent waiter is skipped, and gets its place back when it
returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vox_mesh.errors import MeshError, StaleIncarnation, StoreClosed
from vox_mesh.locks.scripts import WAITER_LEASE, LockRequest, json
from vox_mesh.model.locks.records import Lock, milliseconds_at
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability.log_context import detached_context
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("locks")
_CLOSED_TEXT: Final = "lock not acquired: the mesh was closed during the wait"
_KEEP_ALIVE_INTERVAL_S: Final = 0.5
_DEBOUNCE_S: Final = 0.001
_HAND_OFF_PAUSE_S: Final = 0.02
_RETRY_DELAY_S: Final = 0.25


@dataclass(eq=False, slots=True)
class Waiter:
    """One waiting request, its place in the queue, and the future that gets its lock."""

    request: LockRequest
    ticket: int
    served: asyncio.Future[Lock]

    def serve(self, lock: Lock) -> None:
        """Give the waiter its lock."""
        if not self.served.done():
            self.served.set_result(lock)

    def fail(self, error: MeshError) -> None:
        """Fail the waiter's request."""
        if not self.served.done():
            self.served.set_exception(error)


Serve = Callable[[Waiter], Awaitable[None]]
"""Give a waiter its lock if it is its turn."""


class LockQueue:
    """Wake the waiters of this process."""

    def __init__(self, store: Store, clock: MeshClock, serve: Serve) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock
        self._serve = serve
        self._waiters: dict[str, Waiter] = {}
        self._by_key: dict[str, dict[str, Waiter]] = {}
        self._watch_task: asyncio.Task[None] | None = None
        self._changes = store.changes(debounce_s=_DEBOUNCE_S)  # a busy mesh commits all the time
        self._is_closed = False
        self.has_handed_off = False
        """Whether a lock was just handed off within this process."""

    def first_for(self, keys: Sequence[str]) -> Waiter | None:
        """Return the waiter of this process that came first for one of these keys."""
        if not self._waiters:
            return None
        waiting = [w for key in keys for w in self._by_key.get(key, {}).values() if not w.served.done()]
        return min(waiting, key=lambda waiter: waiter.ticket, default=None)

    async def wait(self, request: LockRequest, ticket: int) -> Lock:
        """Wait until the request is served. A caller that gives up must withdraw the request."""
        if self._is_closed:
            raise StoreClosed(_CLOSED_TEXT)
        waiter = Waiter(request, ticket, asyncio.get_running_loop().create_future())
        self._waiters[request.request_id] = waiter
        for key in request.keys:
            self._by_key.setdefault(key, {})[request.request_id] = waiter
        self._changes.wake()  # its blocking lease may end sooner than the others'
        if self._watch_task is None:
            self._changes = self._store.but_heartbeats.changes(debounce_s=_DEBOUNCE_S)
            self._watch_task = asyncio.create_task(
                self._watch(), name="vox-mesh-lock-queue", context=detached_context()
            )
        try:
            return await waiter.served
        finally:
            del self._waiters[request.request_id]
            for key in request.keys:
                del self._by_key[key][request.request_id]
                if not self._by_key[key]:
                    del self._by_key[key]

    async def _watch(self) -> None:
        """Watch the queue while there are waiters."""
        loop = asyncio.get_running_loop()
        keep_alive_at = loop.time() + _KEEP_ALIVE_INTERVAL_S
        try:
            async for turn in self._changes:
                if not self._waiters:
                    return
                try:
                    if loop.time() >= keep_alive_at:
                        keep_alive_at = loop.time() + _KEEP_ALIVE_INTERVAL_S
                        await self._keep_alive()
                    ends_in = await self._retry_unblocked()
                except (StaleIncarnation, StoreClosed):
                    raise
                except MeshError as error:
                    _log.warning("lock queue not served: %s", error.line)
                    await turn.pause(_RETRY_DELAY_S)
                except Exception as error:  # the waiters still need this task
                    self._store.faults.note("lock-queue", error)
                    await turn.pause(_RETRY_DELAY_S)
                else:
                    turn.wait_at_most(min(ends_in, keep_alive_at - loop.time()))
                    if self.has_handed_off:  # hand-offs serve our waiters: look less often
                        self.has_handed_off = False
                        await turn.pause(_HAND_OFF_PAUSE_S)
        except (StaleIncarnation, StoreClosed) as error:
            for waiter in self._waiters.values():
                waiter.fail(error)
        finally:
            self._watch_task = None

    async def _keep_alive(self) -> None:
        """Report that the waiters are still waiting, and requeue any that were taken for dead."""
        waiting = dict(self._waiters)
        answer = Answer(
            _SQL["keep_waiters_alive"], (*self._mesh, json(list(waiting)), WAITER_LEASE), ("request_id",)
        )
        rows = (await self._store.write(Script(answer=answer, repeatable=True))).rows
        there = {row["request_id"] for row in rows}
        await self._retry([waiter for request_id, waiter in waiting.items() if request_id not in there])

    async def _retry_unblocked(self) -> float:
        """Retry every unblocked waiter. Return the seconds until the next blocking lease expires."""
        waiting = {request_id: w for request_id, w in self._waiters.items() if not w.served.done()}
        rows = await self._store.read(_SQL["blocked_requests"], (*self._mesh, json(list(waiting))))
        ends = {row["request_id"]: milliseconds_at(row["blocks_until"]) for row in rows}
        now_ms = self._clock.now_ms
        await self._retry([w for request_id, w in waiting.items() if ends.get(request_id, 0) <= now_ms])
        return min((end - now_ms for end in ends.values() if end > now_ms), default=1_000) / 1_000

    async def _retry(self, waiters: Sequence[Waiter]) -> None:
        attempts = [self._serve(waiter) for waiter in waiters if not waiter.served.done()]
        for result in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Stop watching; present and later waiters fail with `StoreClosed`."""
        self._is_closed = True
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        for waiter in self._waiters.values():
            waiter.fail(StoreClosed(_CLOSED_TEXT))
        while self._waiters:  # noqa: ASYNC110 - each leaves as soon as it runs, and withdraws its request
            await asyncio.sleep(0)
