"""Locks: leases on keys that expire by the database's clock, each with a rising fencing token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from vox_mesh.errors import BadValue, LockHeld, MeshError, NotKnown, Overloaded, Refused, StaleFence
from vox_mesh.locks.pattern_registry import PATTERNS_CHANGED, Patterns
from vox_mesh.locks.renewal import Lease, Renew, hold_lease
from vox_mesh.locks.scripts import (
    MAX_TTL_S,
    MESH_PREFIX,
    LockRequest,
    checked_ttl,
    default_ttl,
    held_guard,
    held_values,
    json,
    long_release,
    normal_keys,
    renew_script,
    short_release,
    sql_for_mode,
)
from vox_mesh.locks.wait_queue import LockQueue, Waiter
from vox_mesh.locks.watch import watch_holders
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import checked_seconds
from vox_mesh.model.base.histogram import QUICK_S, Histogram
from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import normalise
from vox_mesh.model.locks.records import Holder, Lock
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.op_kinds import BREAK
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Op, Outcome, Script, Statement
from vox_mesh.store.store import Store
from vox_mesh.store.write.request import Verdict

_log = logging.getLogger(__name__)

_SQL: Final = named("locks")
_MAX_COMPARISONS: Final = 64
_NO_LONGER_HELD: Final = "no_longer_held"


class Locks:
    """Acquire, renew, release and list locks, for the agents of one process.

    A holder is a node and an agent; the fencing token proves that a lock is held. Locks are not re-entrant: a
    holder that asks for its key again waits, or is refused, like any other.
    """

    def __init__(
        self,
        store: Store,
        clock: MeshClock,
        node: Callable[[], str],
        agent: str | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._clock = clock
        self._node = node
        self._agent = agent
        self._monotonic = monotonic
        self._patterns = Patterns(store, monotonic)
        self._queue = LockQueue(store, clock, self._attempt)
        self._leases: set[Lease] = set()
        self.highest_token = 0
        """The highest fencing token granted in this process."""
        self.waited = Histogram(QUICK_S)
        """How long granted requests waited, in seconds."""
        self._leaving_tasks: set[asyncio.Task[object]] = set()

    # --- acquiring -------------------------------------------------------------------------------

    async def acquire(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        shared: bool = False,
    ) -> Lock:
        """Acquire all of the keys, or none and raise `LockHeld`, after up to `wait` seconds.

        `ttl`: the seconds it is held unless renewed; by default 30 for files, 300 for all other keys.
        """
        request = self._request(keys, agent, ttl, shared)
        checked_seconds("wait", wait, 0.0, MAX_TTL_S, hint="pass wait=0 to fail at once if it is held")
        if any(key.startswith(MESH_PREFIX) for key in request.keys):
            raise BadValue(
                f"keys that begin with {MESH_PREFIX!r} belong to the mesh itself", hint="choose another"
            )
        self._clock.refuse_if_off()
        asked = self._monotonic()
        lock = await self._acquire(request, wait)
        self.waited.observe(self._monotonic() - asked)
        self.highest_token = max(self.highest_token, lock.fence_token)
        return lock

    async def acquire_own(self, name: str, ttl: float) -> Lock:
        """Acquire a lock of the mesh itself, which no agent can have, without waiting."""
        return await self._acquire(self._request(MESH_PREFIX + name, None, ttl, False), 0.0)

    def hold(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        shared: bool = False,
    ) -> AbstractAsyncContextManager[Lock]:
        """Hold the keys while the body runs: renewed in the background, released at its end.

        If the lock is lost, the body is cancelled and `LockLost` raised, at its end at the latest.
        """
        return self._hold(keys, agent=agent, ttl=ttl, wait=wait, shared=shared)

    @asynccontextmanager
    async def _hold(
        self, keys: str | Sequence[str], *, agent: str | None, ttl: float | None, wait: float, shared: bool
    ) -> AsyncIterator[Lock]:
        lock = await self.acquire(keys, agent=agent, ttl=ttl, wait=wait, shared=shared)
        async with self.keep(lock, self.renew):
            yield lock

    def keep(self, lock: Lock, renew: Renew) -> AbstractAsyncContextManager[Lock]:
        """Hold an acquired lock while the body runs, as `hold` does; `renew` is called in time."""
        return hold_lease(lock, renew, self._release_after_hold, self._monotonic, self._leases)

    async def _release_after_hold(self, lock: Lock) -> bool:
        """Release at the end of a hold. Return `False` if the lock was lost before it expired.

        If the database can't be reached, the lock is left to expire: the body had ended in time.
        """
        try:
            return await self.release(lock) or self._monotonic() >= lock.deadline
        except asyncio.CancelledError:
            self._start_background(self._release_after_hold(lock))  # the request may have been cut off
            raise
        except MeshError as error:
            _log.warning("lock left to expire: keys=%s error=%s", ", ".join(lock.keys), error.line)
            return True

    def _request(
        self, keys: str | Sequence[str], agent: str | None, ttl: float | None, shared: bool
    ) -> LockRequest:
        node = self._node()
        return LockRequest.checked(keys, node, agent or self._agent or node, shared=shared, ttl=ttl)

    async def _acquire(self, request: LockRequest, wait: float) -> Lock:
        try:
            ticket = await self._queue_behind(request) if wait > 0 else None
            if ticket is None:
                lock = await self._try_short(request, wait)
                if lock is not None:
                    return lock
                lock, ticket = await self._try_long(request, waits=wait > 0)
                if lock is not None:
                    return lock
            if ticket is None:
                raise await self._refusal(request)
            try:
                async with asyncio.timeout(wait):
                    return await self._queue.wait(request, ticket)
            except TimeoutError:
                raise await self._refusal(request, waited=wait) from None
        except BaseException as error:
            if wait > 0 or not isinstance(error, LockHeld):
                self._abandon(request)  # it may have been granted without our knowing
            raise

    async def _queue_behind(self, request: LockRequest) -> int | None:
        """Wait in the queue behind other waiters of this process, if there are any. Return the ticket."""
        known = self._newest_pattern(request)
        if known is None or self._queue.first_for(request.keys) is None:
            return None
        await asyncio.sleep(0)  # the waiter just served goes first; this one joins the next batch
        rows = (await self._store.write(request.behind_script(self._mesh, known))).rows
        return rows[0]["ticket"] if rows else None

    async def _try_short(self, request: LockRequest, wait: float) -> Lock | None:
        """Acquire one uncontended key by the short path; return `None` if the long one is needed."""
        known = self._newest_pattern(request)
        if known is None or (wait > 0 and self._queue.first_for(request.keys) is not None):
            return None
        sent = self._monotonic()
        rows = (await self._store.write(request.short_script(known))).rows
        if rows:
            token, expires_at = rows[0]
            return request.to_lock(token, expires_at, sent)
        if wait <= 0:
            holders = await self.holders(request.keys)
            # One may be ours: granted, but the answer got lost, and then a pattern was announced.
            if holders and all(holder.request_id != request.id for holder in holders):
                raise request.refusal(holders)
        return None

    async def _try_long(
        self, request: LockRequest, waiter: Waiter | None = None, *, waits: bool
    ) -> tuple[Lock | None, int | None]:
        """Acquire the keys by the long path if nothing blocks them. Return the lock, or the ticket."""
        if not self._patterns.is_known(request.keys):
            await self._patterns.learn(request.keys)
        ticket = None if waiter is None else waiter.ticket
        for _ in range(_MAX_COMPARISONS):
            if waiter is not None and waiter.served.done():
                return None, None  # the waiter gave up
            sent = self._monotonic()
            try:
                outcome = await self._store.write(self._long_script(request, ticket, waits=waits))
            except Refused as refused:
                if refused.reason != PATTERNS_CHANGED:
                    raise
                await self._patterns.learn(request.keys)
            else:
                return request.result(outcome, sent)
        raise Overloaded(
            "new patterns were locked each time this was tried", hint="try again, or lock fewer patterns"
        )

    def _newest_pattern(self, request: LockRequest) -> int | None:
        """Return the newest pattern a simple request was compared with; `None`: use the long path."""
        return self._patterns.newest_for(request.keys[0]) if request.is_simple else None

    def _long_script(self, request: LockRequest, ticket: int | None, *, waits: bool) -> Script:
        preface = self._patterns.preface(request.keys)
        known = self._newest_pattern(request)
        return request.long_script(self._mesh, preface, known=known, ticket=ticket, waits=waits)

    async def _attempt(self, waiter: Waiter) -> None:
        lock, _ = await self._try_long(waiter.request, waiter, waits=True)
        if lock is not None:
            waiter.serve(lock)

    async def _refusal(self, request: LockRequest, *, waited: float = 0.0) -> LockHeld:
        return request.refusal(await self.in_the_way(request.keys), waited)

    def _abandon(self, request: LockRequest) -> None:
        """Withdraw a request in the background; it may still be under way."""
        self._start_background(self._leave(request))

    def _start_background(self, leaving: Coroutine[None, None, object]) -> None:
        leaving_safely = self._store.faults.absorb("lock-leaving", leaving)
        task = asyncio.create_task(leaving_safely, name="vox-mesh-lock-leaving")
        self._leaving_tasks.add(task)
        task.add_done_callback(self._leaving_tasks.discard)

    async def _leave(self, request: LockRequest) -> None:
        try:
            await self._store.write(request.leave_script(self._mesh))
        except MeshError as error:
            _log.info("abandoned lock left to expire: %s", error.line)

    # --- holding ---------------------------------------------------------------------------------

    async def renew(self, lock: Lock, *, ttl: float | None = None) -> Lock:
        """Renew the lock for its TTL from now on; raise `StaleFence` if it is no longer held."""
        seconds = lock.ttl if ttl is None else checked_ttl(ttl)
        sent = self._monotonic()
        outcome = await self._store.write(renew_script(self._mesh, lock, seconds))
        lock.ttl, lock.deadline, lock.expires_at = seconds, sent + seconds, outcome.rows[0]["expires_at"]
        return lock

    async def release(self, lock: Lock) -> bool:
        """Release the lock, and hand it off to the next waiter here. Return whether it was still held.

        If an answer was lost, our own clock decides: the lock was ours until its deadline, unless it was
        broken.
        """
        waiter = self._queue.first_for(lock.keys)
        if waiter is not None:
            return await self._hand_off(lock, waiter)
        may_be_done = False
        short = short_release(lock)
        if short is not None:
            outcome = await self._store.write(short)
            if outcome.rows:
                return True
            may_be_done = outcome.repeated
        return await self._long_release(lock, may_be_done)

    async def _long_release(self, lock: Lock, may_be_done: bool) -> bool:
        """Release a lock that has waiters, or several keys."""
        return self._was_held(lock, await self._store.write(long_release(self._mesh, lock)), may_be_done)

    def _was_held(self, lock: Lock, released: Verdict, may_be_done: bool) -> bool:
        """Return whether it was still held; `may_be_done`: maybe released by an earlier request."""
        if isinstance(released, MeshError):
            raise released
        is_over = self._monotonic() >= lock.deadline
        return len(released.rows) == len(lock.keys) or ((may_be_done or released.repeated) and not is_over)

    async def _hand_off(self, lock: Lock, waiter: Waiter) -> bool:
        """Release the lock and retry the next waiter in one request, without waking a task first."""
        request = waiter.request
        known = self._newest_pattern(request)
        may_be_done = False
        if known is not None and request.keys == lock.keys and not lock.is_shared:
            sent = self._monotonic()
            handed_off, _ = await self._store.write_all(request.pass_scripts(self._mesh, lock, known))
            if _serve(waiter, handed_off, sent):
                self._queue.has_handed_off = True
                return True
            may_be_done = isinstance(handed_off, Outcome) and handed_off.repeated
        if waiter.served.done():  # the waiter gave up meanwhile
            return await self._long_release(lock, may_be_done)
        attempt = self._long_script(request, waiter.ticket, waits=True)
        sent = self._monotonic()
        released, tried = await self._store.write_all([long_release(self._mesh, lock), attempt])
        _serve(waiter, tried, sent)
        return self._was_held(lock, released, may_be_done)

    def guard(self, lock: Lock) -> Statement:
        """Return a guard that raises `StaleFence` unless the lock is held.

        Make it the first statement of every script written under the lock.
        """
        return held_guard(self._mesh, lock)

    async def upgrade(self, lock: Lock) -> Lock:
        """Turn a shared lock into an exclusive one with a new token; raise `LockHeld` if others share it."""
        return await self._convert(lock, shared=False)

    async def downgrade(self, lock: Lock) -> Lock:
        """Turn an exclusive lock into a shared one with a new token, without releasing it in between."""
        return await self._convert(lock, shared=True)

    async def _convert(self, lock: Lock, *, shared: bool) -> Lock:
        if lock.is_shared is shared:
            return lock
        request = LockRequest(lock.keys, lock.holder_node, lock.holder_agent, shared, lock.ttl)
        release = Statement(sql_for_mode("release", shared=lock.is_shared), held_values(self._mesh, lock))
        # Before all waiters: a holder need not go to the end of the queue.
        take = request.long_script(self._mesh, (self.guard(lock), release), known=None, ticket=0, waits=False)
        result = take.answer
        assert result is not None
        served = request.served_guard(self._mesh)
        sent = self._monotonic()
        try:
            row = await self._run_conversion(Script(*take.statements, served, answer=result, repeatable=True))
        except Refused as refused:
            if refused.reason != LockHeld.code:
                raise
            in_the_way = await self.in_the_way(lock.keys)
            own = {(key, lock.fence_token) for key in lock.keys}
            others = [h for h in in_the_way if (h.lock_key, h.fence_token) not in own]
            raise request.refusal(others) from None
        except BaseException:
            self._abandon(request)  # it may have been granted without our knowing
            raise
        lock.is_shared, lock.fence_token, lock.expires_at = shared, row["fence_token"], row["expires_at"]
        lock.request_id = request.id
        lock.deadline = sent + lock.ttl
        return lock

    async def _run_conversion(self, script: Script) -> Row:
        """Write a conversion, and return the row of the converted lock."""
        result = script.answer
        assert result is not None
        try:
            row: Row = (await self._store.write(script)).rows[0]
        except StaleFence:
            # The answer may have been lost, and the old lock is gone because we have the new one.
            row = (await self._store.read(result.sql, result.params, fresh=True))[0]
            if row["fence_token"] is None:
                raise
        return row

    # --- listing and sweeping --------------------------------------------------------------------

    async def holders(self, keys: str | Sequence[str] | None = None) -> list[Holder]:
        """Return the current holders of these keys, or of all."""
        wanted = None if keys is None else json(normal_keys(keys))
        rows = await self._store.read(_SQL["holders"], (*self._mesh, wanted), fresh=True)
        return [Holder._make(row)._replace(is_shared=bool(row["is_shared"])) for row in rows]

    async def in_the_way(self, keys: str | Sequence[str]) -> list[Holder]:
        """Return the current holders of anything that overlaps one of these keys."""
        wanted = PatternIndex(normal_keys(keys))
        return [holder for holder in await self.holders() if wanted.overlapping(holder.lock_key)]

    async def find(self, key: str, token: int) -> Lock:
        """Return the lock on this key under this token; raise `StaleFence` if there is none.

        Its original TTL is not known any more: a renewal uses the default TTL of its keys.
        """
        key, holders = normalise(key), await self.holders()
        first = next((h for h in holders if (h.lock_key, h.fence_token) == (key, token)), None)
        if first is None:
            raise StaleFence
        own = [holder for holder in holders if holder.request_id == first.request_id]
        keys = tuple(holder.lock_key for holder in own)
        return Lock(
            *(keys, token, first.holder_node, first.holder_agent, first.is_shared),
            *(default_ttl(keys), first.expires_at, self._monotonic() + first.left_s, first.request_id),
        )

    def watch(self) -> AsyncGenerator[list[Holder], None]:
        """Yield all holders now, and again whenever they change."""
        return watch_holders(self._store, self.holders)

    async def sweep_expired_distributed_locks(self) -> int:
        """Delete expired locks. Return how many. Expired locks have no effect, deleted or not."""
        mesh = self._mesh
        rest = [Statement(_SQL[name], mesh) for name in ("sweep_patterns", "sweep_overlaps")]
        verdicts = await self._store.write_all(
            [
                Script(
                    Statement(_SQL["sweep_waiters"], mesh),
                    answer=Answer(_SQL["sweep_shares"], mesh, ("request_id",)),
                    repeatable=True,
                ),
                Script(
                    Statement(_SQL["open_fast_paths"], mesh),
                    answer=Answer(_SQL["sweep_holds"], mesh, ("request_id",)),
                    repeatable=True,
                ),
                Script(*rest, repeatable=True),
            ]
        )
        swept = 0
        for verdict in verdicts:
            if isinstance(verdict, MeshError):
                raise verdict
            swept += sum(1 for row in verdict.rows if row["request_id"])  # the others were released
        return swept

    async def sweep_once(self, every_s: float) -> int | None:
        """Sweep, unless there is nothing to sweep or a node did so in the last `every_s` seconds."""
        if not (await self._store.read(_SQL["sweepable"], self._mesh, fresh=True)).value:
            return None
        try:
            await self.acquire_own("sweep", every_s)
        except LockHeld:
            return None
        return await self.sweep_expired_distributed_locks()

    async def break_lock(self, key: str, reason: str) -> tuple[str, list[Holder]]:
        """Break the locks on a key, with all of their keys. Return the id of the op, and the holders."""
        key = normalise(key)
        holders = await self.holders([key])
        if not holders:
            raise NotKnown(f"nobody holds {key}", hint="see `vox-mesh lock list`")
        statements = [
            Statement(
                _SQL["refuse_unless_held"],
                (*self._mesh, json([key]), holder.fence_token, holder.request_id),
                refusal=_NO_LONGER_HELD,
            )
            for holder in holders
        ]
        requests = json([holder.request_id for holder in holders])
        statements += [
            Statement(_SQL[name], (*self._mesh, requests)) for name in ("break_hold", "break_shares")
        ]
        broken_locks = [[h.holder_node, h.holder_agent, h.fence_token] for h in holders]
        payload = canonical({"key": key, "holders": broken_locks, "reason": reason})
        try:
            broken = await self._store.write(Script(*statements, op=Op(BREAK, payload)))
        except Refused as refused:
            if refused.reason != _NO_LONGER_HELD:
                raise
            raise NotKnown(f"{key} has just changed hands", hint="look again: `vox-mesh lock list`") from None
        return broken.key, holders

    async def catch_up(self) -> None:
        """Renew every lock held for a running body, or mark it as lost."""
        for lease in tuple(self._leases):
            await lease.run_once()

    async def close(self) -> None:
        """Stop waiting, release all held locks, and finish withdrawing abandoned requests."""
        await self._queue.close()
        for lease in self._leases:
            lease.lose()  # the body is stopped with `LockLost`
            self._start_background(self._release_after_hold(lease.lock))
        while self._leaving_tasks:
            await asyncio.gather(*self._leaving_tasks, return_exceptions=True)


def _serve(waiter: Waiter, verdict: Verdict, sent: float) -> bool:
    """Give a waiter its lock if its request was granted. Return whether it was."""
    if isinstance(verdict, MeshError) or not verdict.rows:
        return False
    lock, _ = waiter.request.result(verdict, sent)
    if lock is not None:
        waiter.serve(lock)
    return lock is not None
