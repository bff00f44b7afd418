"""Acquiring: how a request for keys becomes a lock. There are three ways.

1. *Fast*: one exclusive key that no other request contends for is taken by a single statement, which many
   requests share.
2. *Queued*: every other request joins the queue in the database, and takes its keys when nothing blocks them:
   at once, or when its turn comes. Its turn is noticed by the watcher of the queue (`wait_queue`), or by the
   release of the lock that it waits for, which hands the lock off.
3. *Upgrade*: a holder turns its lock from shared to exclusive, or back, ahead of the queue.

A request that fails is withdrawn: it may have been granted without our knowing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from vox_mesh.errors import (
    BadStatement,
    DatabaseFault,
    LockHeld,
    MeshError,
    NotGranted,
    Overloaded,
    Refused,
    StaleFence,
)
from vox_mesh.locks.holders import LockHolders
from vox_mesh.locks.pattern_registry import PATTERNS_CHANGED, PatternRegistry
from vox_mesh.locks.scripts import (
    LockRequest,
    QueueResult,
    fast_release_script,
    held_guard,
    held_values,
    moved_usage,
    release_script,
    sql_for_mode,
)
from vox_mesh.locks.wait_queue import LockQueue, Waiter
from vox_mesh.model.locks.records import Lock
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.background import BackgroundTasks
from vox_mesh.store.rows import Row
from vox_mesh.store.script import Outcome, Script, Statement, Verdict
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_OVERFLOW: Final = "integer overflow"

_MAX_COMPARISONS: Final = 64


class LockAcquirer:
    """Acquire, upgrade and release locks, and hand each one off to the next waiter of this process."""

    def __init__(
        self, store: Store, clock: MeshClock, holders: LockHolders, monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._holders = holders
        self._monotonic = monotonic
        self._patterns = PatternRegistry(store, monotonic)
        self._queue = LockQueue(store, clock, self._serve)
        self._background = BackgroundTasks("lock-leaving", store.faults)

    async def acquire(self, request: LockRequest, *, wait: float) -> Lock:
        """Acquire the keys of a request, or raise `LockHeld`, after up to `wait` seconds."""
        try:
            lock = await self._acquire_fast(request, wait=wait)
            return await self._acquire_queued(request, wait=wait) if lock is None else lock
        except BaseException as error:
            if wait > 0 or not isinstance(error, LockHeld):
                self._withdraw(request)
            if isinstance(error, BadStatement):
                _raise_if_overflow(error)
            raise

    # --- fast ------------------------------------------------------------------------------------

    async def _acquire_fast(self, request: LockRequest, *, wait: float) -> Lock | None:
        """Take one key that no other request contends for. Return `None` if the request has to queue."""
        compared_up_to = None if request.usage else self._compared_up_to(request)
        if compared_up_to is None or (wait > 0 and self._queue.first_for(request.keys) is not None):
            return None
        sent_at = self._monotonic()
        rows = (await self._store.write(request.fast_script(compared_up_to=compared_up_to))).rows
        if rows:
            fence_token, expires_at = rows[0]
            return request.to_lock(fence_token=fence_token, expires_at=expires_at, sent_at=sent_at)
        if wait <= 0:
            await self._refuse_if_held(request)
        return None

    async def _refuse_if_held(self, request: LockRequest) -> None:
        holders = await self._holders.all(request.keys)
        # One may be ours: granted, but the answer got lost, and then a pattern was announced.
        if holders and all(holder.request_id != request.request_id for holder in holders):
            raise request.refusal(holders)

    def _compared_up_to(self, request: LockRequest) -> int | None:
        """Return the newest pattern that the key of a simple request was compared with; else `None`."""
        return self._patterns.compared_up_to(request.keys[0]) if request.is_simple else None

    # --- queued ----------------------------------------------------------------------------------

    async def _acquire_queued(self, request: LockRequest, *, wait: float) -> Lock:
        """Join the queue, and wait there until the keys are ours."""
        ticket = await self._join_behind(request) if wait > 0 else None
        if ticket is None:
            lock, ticket = await self._take_turn(request, can_wait=wait > 0)
            if lock is not None:
                return lock
        if ticket is None:
            raise request.refusal(await self._holders.in_the_way(request.keys))
        try:
            async with asyncio.timeout(wait):
                return await self._queue.wait(request, ticket)
        except TimeoutError:
            holders = await self._holders.in_the_way(request.keys)
            raise request.refusal(holders, waited_s=wait) from None

    async def _join_behind(self, request: LockRequest) -> int | None:
        """Join the queue behind other waiters of this process, if there are any. Return the ticket."""
        compared_up_to = None if request.usage else self._compared_up_to(request)
        if compared_up_to is None or self._queue.first_for(request.keys) is None:
            return None
        await asyncio.sleep(0)  # the waiter just served goes first; this one joins the next batch
        rows = (await self._store.write(request.join_script(self._mesh, compared_up_to=compared_up_to))).rows
        return rows[0]["ticket"] if rows else None

    async def _serve(self, waiter: Waiter) -> None:
        """Give a waiter its lock if it is its turn."""
        try:
            lock, _ = await self._take_turn(waiter.request, waiter, can_wait=True)
        except NotGranted as error:  # its grant was revoked while it waited
            waiter.fail(error)
            return
        except BadStatement as error:
            _raise_if_overflow(error)
            raise
        if lock is not None:
            waiter.serve(lock)

    async def _take_turn(
        self, request: LockRequest, waiter: Waiter | None = None, *, can_wait: bool
    ) -> QueueResult:
        """Take the keys if nothing blocks them. Otherwise a request that can wait stays in the queue."""
        if not self._patterns.is_known(request.keys):
            await self._patterns.learn(request.keys)
        ticket = None if waiter is None else waiter.ticket
        for _ in range(_MAX_COMPARISONS):
            if waiter is not None and waiter.served.done():
                return QueueResult(None, None)  # the waiter gave up
            script = self._queued_script(request, ticket=ticket, can_wait=can_wait)
            sent_at = self._monotonic()
            try:
                outcome = await self._store.write(script)
            except Refused as refused:
                if refused.reason == LockHeld.code:
                    return QueueResult(None, None)
                if refused.reason != PATTERNS_CHANGED:
                    raise
                await self._patterns.learn(request.keys)
            else:
                return request.result(outcome.rows[0], sent_at=sent_at)
        raise Overloaded(
            f"lock not acquired: new patterns were locked during each of {_MAX_COMPARISONS} attempts",
            hint="try again, or lock fewer patterns",
        )

    def _queued_script(self, request: LockRequest, *, ticket: int | None, can_wait: bool) -> Script:
        return request.queued_script(
            self._mesh,
            self._patterns.preface(request.keys),
            compared_up_to=self._compared_up_to(request),
            ticket=ticket,
            can_wait=can_wait,
            must_be_granted=bool(request.usage) and not can_wait,  # what fails is not counted
        )

    # --- upgrade ---------------------------------------------------------------------------------

    async def convert(self, lock: Lock, *, is_shared: bool, grant: str | None) -> Lock:
        """Turn a lock into a shared or an exclusive one with a new token, without releasing it in between.

        Raises `LockHeld` if others share it, and `StaleFence` if it is no longer held.
        """
        if lock.is_shared is is_shared:
            return lock
        request = LockRequest(
            keys=lock.keys,
            holder_node=lock.holder_node,
            holder_agent=lock.holder_agent,
            is_shared=is_shared,
            ttl=lock.ttl,
            grant=grant,
        )
        sent_at = self._monotonic()
        try:
            row = await self._write_conversion(lock, request)
        except Refused as refused:
            if refused.reason != LockHeld.code:
                raise
            in_the_way = await self._holders.in_the_way(lock.keys)
            own = {(key, lock.fence_token) for key in lock.keys}
            others = [each for each in in_the_way if (each.lock_key, each.fence_token) not in own]
            raise request.refusal(others) from None
        except BaseException as error:
            self._withdraw(request)
            if isinstance(error, BadStatement):
                _raise_if_overflow(error)
            raise
        lock.is_shared, lock.fence_token, lock.expires_at = is_shared, row["fence_token"], row["expires_at"]
        lock.request_id = request.request_id
        lock.deadline = sent_at + lock.ttl
        return lock

    async def _write_conversion(self, lock: Lock, request: LockRequest) -> Row:
        """Release the lock and grant the request in one script. Return the row of the converted lock."""
        release = Statement(sql_for_mode("release", is_shared=lock.is_shared), held_values(self._mesh, lock))
        take = request.queued_script(
            self._mesh,
            (held_guard(self._mesh, lock), release, moved_usage(self._mesh, lock, request)),
            compared_up_to=None,
            ticket=0,  # before all waiters: a holder need not go to the end of the queue
            can_wait=False,
            must_be_granted=True,
        )
        try:
            row: Row = (await self._store.write(take)).rows[0]
        except StaleFence:
            # The answer may have been lost, and the old lock is gone because we have the new one.
            result = request.result_query(self._mesh)
            row = (await self._store.read(result.sql, result.params, fresh=True))[0]
            if row["fence_token"] is None:
                raise
        return row

    # --- releasing -------------------------------------------------------------------------------

    async def release(self, lock: Lock) -> bool:
        """Release a lock, and hand it off to the next waiter here. Return whether it was still held.

        If an answer was lost, our own clock decides: the lock was ours until its deadline, unless it was
        broken.
        """
        waiter = self._queue.first_for(lock.keys)
        if waiter is not None:
            return await self._hand_off(lock, waiter)
        is_repeated = False
        fast = fast_release_script(lock)
        if fast is not None:
            outcome = await self._store.write(fast)
            if outcome.rows:
                return True
            is_repeated = outcome.repeated
        return await self._release_contended(lock, is_repeated=is_repeated)

    async def _hand_off(self, lock: Lock, waiter: Waiter) -> bool:
        """Release a lock and serve the next waiter in one request, without waking a task first."""
        request = waiter.request
        compared_up_to = self._compared_up_to(request)
        is_repeated = False
        if compared_up_to is not None and request.keys == lock.keys and not lock.is_shared:
            scripts = request.hand_off_scripts(self._mesh, lock, compared_up_to=compared_up_to)
            sent_at = self._monotonic()
            handed_off, _ = await self._store.write_all(scripts)
            if _serve_if_granted(waiter, handed_off, sent_at=sent_at):
                self._queue.has_handed_off = True
                return True
            is_repeated = isinstance(handed_off, Outcome) and handed_off.repeated
        if waiter.served.done():  # the waiter gave up meanwhile
            return await self._release_contended(lock, is_repeated=is_repeated)
        take_turn = self._queued_script(request, ticket=waiter.ticket, can_wait=True)
        sent_at = self._monotonic()
        released, taken = await self._store.write_all([release_script(self._mesh, lock), take_turn])
        _serve_if_granted(waiter, taken, sent_at=sent_at)
        return self._was_held(lock, released, is_repeated=is_repeated)

    async def _release_contended(self, lock: Lock, *, is_repeated: bool) -> bool:
        """Release a lock that has waiters elsewhere, or several keys, or is shared."""
        released = await self._store.write(release_script(self._mesh, lock))
        return self._was_held(lock, released, is_repeated=is_repeated)

    def _was_held(self, lock: Lock, released: Verdict, *, is_repeated: bool) -> bool:
        """Return whether it was still held; `is_repeated`: an earlier request may have released it."""
        if isinstance(released, MeshError):
            raise released
        is_over = self._monotonic() >= lock.deadline
        return len(released.rows) == len(lock.keys) or ((is_repeated or released.repeated) and not is_over)

    # --- withdrawing -----------------------------------------------------------------------------

    def _withdraw(self, request: LockRequest) -> None:
        """Withdraw a request in the background; it may still be under way."""
        self.run_in_background(self._write_withdrawal(request))

    async def _write_withdrawal(self, request: LockRequest) -> None:
        try:
            await self._store.write(request.withdraw_script(self._mesh))
        except MeshError as error:
            _log.info("withdrawn lock left to expire: keys=%s error=%s", ", ".join(request.keys), error.line)

    def run_in_background(self, leaving: Coroutine[None, None, object]) -> None:
        """Release or withdraw something in a task of its own; `close` waits for it."""
        self._background.start(leaving)

    async def stop_waiting(self) -> None:
        """Fail all waiters, which withdraw their requests."""
        await self._queue.close()

    async def close(self) -> None:
        """Wait for all that was released or withdrawn in the background."""
        while self._background.running:
            await self._background.wait()


def _raise_if_overflow(error: BadStatement) -> None:
    """Raise `DatabaseFault` if no token can be issued, because the database holds a planted one."""
    if _OVERFLOW in str(error):
        raise DatabaseFault(
            "no fencing token can be issued: the database holds one that is no integer below 2^53",
            hint="no node has issued that: restore the database from a backup",
        ) from None


def _serve_if_granted(waiter: Waiter, verdict: Verdict, *, sent_at: float) -> bool:
    """Give a waiter its lock if its request was granted. Return whether it was."""
    if isinstance(verdict, MeshError) or not verdict.rows:
        return False
    lock, _ = waiter.request.result(verdict.rows[0], sent_at=sent_at)
    if lock is not None:
        waiter.serve(lock)
    return lock is not None
