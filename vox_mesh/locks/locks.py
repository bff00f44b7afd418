"""Locks: leases on keys that end by the database's clock, each with a token that only ever rises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from vox_mesh.errors import BadValue, LockHeld, MeshError, NotKnown, Overloaded, Refused, StaleFence
from vox_mesh.locks.pattern_registry import PATTERNS_CHANGED, Patterns
from vox_mesh.locks.renewal import Lease, Renew, leased
from vox_mesh.locks.scripts import (
    MAX_TTL_S,
    OWN,
    LockRequest,
    checked_ttl,
    default_ttl,
    held_guard,
    held_values,
    json,
    long_release,
    normal_keys,
    of_mode,
    renew_script,
    short_release,
)
from vox_mesh.locks.wait_queue import LockQueue, Waiter
from vox_mesh.locks.watch import watched
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import checked_seconds
from vox_mesh.model.base.histogram import QUICK_S, Histogram
from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import normalised
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
_COMPARISONS: Final = 64
_NO_LONGER_HELD: Final = "no_longer_held"


class Locks:
    """Acquires, renews, releases and lists locks, for the agents of one process.

    A holder is a node and an agent; what proves a hold is its token. Locks are not re-entrant: whoever holds
    a key and asks for it again waits, or is refused, like anybody else.
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
        """The highest fencing token that was granted here."""
        self.waited = Histogram(QUICK_S)
        """How long it took those who acquired something to have it."""
        self._leaving: set[asyncio.Task[object]] = set()

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
        """Take all of the keys, or none and raise `LockHeld`; with `wait`, after so many seconds.

        `ttl`: how long it is held without being renewed; by default 30 s for files, 5 min for all else.
        """
        request = self._request(keys, agent, ttl, shared)
        checked_seconds("wait", wait, 0.0, MAX_TTL_S, hint="pass wait=0 to fail at once if it is held")
        if any(key.startswith(OWN) for key in request.keys):
            raise BadValue(f"keys that begin with {OWN!r} belong to the mesh itself", hint="choose another")
        self._clock.refuse_if_off()
        asked = self._monotonic()
        lock = await self._acquired(request, wait)
        self.waited.observe(self._monotonic() - asked)
        self.highest_token = max(self.highest_token, lock.fence_token)
        return lock

    async def acquire_own(self, name: str, ttl: float) -> Lock:
        """A lock of the mesh itself, which no agent can have; without waiting."""
        return await self._acquired(self._request(OWN + name, None, ttl, False), 0.0)

    def hold(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        shared: bool = False,
    ) -> AbstractAsyncContextManager[Lock]:
        """Acquire for as long as the body runs: renewed in the background, released at its end.

        When the lock is lost, the body is cancelled and `LockLost` raised; at the latest at its end.
        """
        return self._held(keys, agent=agent, ttl=ttl, wait=wait, shared=shared)

    @asynccontextmanager
    async def _held(
        self, keys: str | Sequence[str], *, agent: str | None, ttl: float | None, wait: float, shared: bool
    ) -> AsyncIterator[Lock]:
        lock = await self.acquire(keys, agent=agent, ttl=ttl, wait=wait, shared=shared)
        async with self.keep(lock, self.renew):
            yield lock

    def keep(self, lock: Lock, renew: Renew) -> AbstractAsyncContextManager[Lock]:
        """Hold what was acquired as `hold` does, for as long as the body runs: `renew` is called in time."""
        return leased(lock, renew, self._let_go, self._monotonic, self._leases)

    async def _let_go(self, lock: Lock) -> bool:
        """Release at the end of a hold; `False` if it was over before its time.

        What cannot be told to the database in that time changes nothing: the body had ended within it.
        """
        try:
            return await self.release(lock) or self._monotonic() >= lock.deadline
        except asyncio.CancelledError:
            self._in_background(self._let_go(lock))  # it may have been cut off on its way
            raise
        except MeshError as error:
            _log.warning("the lock on %s is left to expire: %s", ", ".join(lock.keys), error.line)
            return True

    def _request(
        self, keys: str | Sequence[str], agent: str | None, ttl: float | None, shared: bool
    ) -> LockRequest:
        node = self._node()
        return LockRequest.checked(keys, node, agent or self._agent or node, shared=shared, ttl=ttl)

    async def _acquired(self, request: LockRequest, wait: float) -> Lock:
        try:
            ticket = await self._behind(request) if wait > 0 else None
            if ticket is None:
                lock = await self._short(request, wait)
                if lock is not None:
                    return lock
                lock, ticket = await self._long(request, waits=wait > 0)
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

    async def _behind(self, request: LockRequest) -> int | None:
        """Stand in the queue behind others of this process, if it is so; the ticket."""
        known = self._known(request)
        if known is None or self._queue.first_for(request.keys) is None:
            return None
        await asyncio.sleep(0)  # whoever was just served goes first, and this one with the next request
        rows = (await self._store.write(request.behind_script(self._mesh, known))).rows
        return rows[0]["ticket"] if rows else None

    async def _short(self, request: LockRequest, wait: float) -> Lock | None:
        """Take one key that nobody else is after, in as few steps as can be."""
        known = self._known(request)
        if known is None or (wait > 0 and self._queue.first_for(request.keys) is not None):
            return None
        sent = self._monotonic()
        rows = (await self._store.write(request.short_script(known))).rows
        if rows:
            token, expires_at = rows[0]
            return request.granted(token, expires_at, sent)
        if wait <= 0:
            holders = await self.holders(request.keys)
            # One of them may be us: granted, but the answer got lost, and then a pattern was announced.
            if holders and all(holder.request_id != request.id for holder in holders):
                raise request.refusal(holders)
        return None

    async def _long(
        self, request: LockRequest, waiter: Waiter | None = None, *, waits: bool
    ) -> tuple[Lock | None, int | None]:
        """Take the keys if nothing blocks us; the lock, or else the place in the queue."""
        if not self._patterns.is_known(request.keys):
            await self._patterns.learn(request.keys)
        ticket = None if waiter is None else waiter.ticket
        for _ in range(_COMPARISONS):
            if waiter is not None and waiter.served.done():
                return None, None  # what it has given up, it must not be given any more
            sent = self._monotonic()
            try:
                outcome = await self._store.write(self._long_script(request, ticket, waits=waits))
            except Refused as refused:
                if refused.reason != PATTERNS_CHANGED:
                    raise
                await self._patterns.learn(request.keys)
            else:
                return request.standing(outcome, sent)
        raise Overloaded(
            "new patterns were locked each time this was tried", hint="try again, or lock fewer patterns"
        )

    def _known(self, request: LockRequest) -> int | None:
        """The newest pattern that a simple request was compared with; `None` if it must go the whole way."""
        return self._patterns.newest_for(request.keys[0]) if request.is_simple else None

    def _long_script(self, request: LockRequest, ticket: int | None, *, waits: bool) -> Script:
        preface = self._patterns.preface(request.keys)
        known = self._known(request)
        return request.long_script(self._mesh, preface, known=known, ticket=ticket, waits=waits)

    async def _attempt(self, waiter: Waiter) -> None:
        lock, _ = await self._long(waiter.request, waiter, waits=True)
        if lock is not None:
            waiter.serve(lock)

    async def _refusal(self, request: LockRequest, *, waited: float = 0.0) -> LockHeld:
        return request.refusal(await self.in_the_way(request.keys), waited)

    def _abandon(self, request: LockRequest) -> None:
        """Take a request back, in the background: it may still be under way."""
        self._in_background(self._leave(request))

    def _in_background(self, leaving: Coroutine[None, None, object]) -> None:
        leaving_safely = self._store.faults.absorb("lock-leaving", leaving)
        task = asyncio.create_task(leaving_safely, name="vox-mesh-lock-leaving")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, request: LockRequest) -> None:
        try:
            await self._store.write(request.leave_script(self._mesh))
        except MeshError as error:
            _log.info("a lock that nobody wants any more is left to expire: %s", error.line)

    # --- holding ---------------------------------------------------------------------------------

    async def renew(self, lock: Lock, *, ttl: float | None = None) -> Lock:
        """Hold the lock for its time again, from now on; `StaleFence` if it is over."""
        seconds = lock.ttl if ttl is None else checked_ttl(ttl)
        sent = self._monotonic()
        outcome = await self._store.write(renew_script(self._mesh, lock, seconds))
        lock.ttl, lock.deadline, lock.expires_at = seconds, sent + seconds, outcome.rows[0]["expires_at"]
        return lock

    async def release(self, lock: Lock) -> bool:
        """Let go of the lock; whether it was still held. Whoever waits next here has it at once.

        After a lost answer our own clock tells: within its time it was ours, unless somebody broke it.
        """
        waiter = self._queue.first_for(lock.keys)
        if waiter is not None:
            return await self._hand_over(lock, waiter)
        is_doubted = False
        short = short_release(lock)
        if short is not None:
            outcome = await self._store.write(short)
            if outcome.rows:
                return True
            is_doubted = outcome.repeated
        return await self._long_release(lock, is_doubted)

    async def _long_release(self, lock: Lock, is_doubted: bool) -> bool:
        """Let go of a lock that others wait for, or of several keys."""
        return self._was_held(lock, await self._store.write(long_release(self._mesh, lock)), is_doubted)

    def _was_held(self, lock: Lock, released: Verdict, is_doubted: bool) -> bool:
        """Whether it was there to be released. `is_doubted`: an earlier request may have done so."""
        if isinstance(released, MeshError):
            raise released
        is_over = self._monotonic() >= lock.deadline
        return len(released.rows) == len(lock.keys) or ((is_doubted or released.repeated) and not is_over)

    async def _hand_over(self, lock: Lock, waiter: Waiter) -> bool:
        """Release, and have the next one try, in one request: nothing of ours need be woken first."""
        request = waiter.request
        known = self._known(request)
        is_doubted = False
        if known is not None and request.keys == lock.keys and not lock.is_shared:
            sent = self._monotonic()
            passed, _ = await self._store.write_all(request.pass_scripts(self._mesh, lock, known))
            if _serve(waiter, passed, sent):
                self._queue.is_flowing = True
                return True
            is_doubted = isinstance(passed, Outcome) and passed.repeated
        if waiter.served.done():  # it gave up meanwhile, and must not be given anything any more
            return await self._long_release(lock, is_doubted)
        attempt = self._long_script(request, waiter.ticket, waits=True)
        sent = self._monotonic()
        released, tried = await self._store.write_all([long_release(self._mesh, lock), attempt])
        _serve(waiter, tried, sent)
        return self._was_held(lock, released, is_doubted)

    def guard(self, lock: Lock) -> Statement:
        """Lets a script go on only while this hold is there, with its token and unexpired; else `StaleFence`.

        Make it the first statement of whatever is written under the lock.
        """
        return held_guard(self._mesh, lock)

    async def upgrade(self, lock: Lock) -> Lock:
        """Turn a share into an exclusive hold with a new token; refused if anybody else shares it."""
        return await self._converted(lock, shared=False)

    async def downgrade(self, lock: Lock) -> Lock:
        """Turn an exclusive hold into a share with a new token, with no moment in between."""
        return await self._converted(lock, shared=True)

    async def _converted(self, lock: Lock, *, shared: bool) -> Lock:
        if lock.is_shared is shared:
            return lock
        request = LockRequest(lock.keys, lock.holder_node, lock.holder_agent, shared, lock.ttl)
        let_go = Statement(of_mode("release", shared=lock.is_shared), held_values(self._mesh, lock))
        # Before everybody who waits: whoever is inside need not go to the end of the queue.
        taken = request.long_script(self._mesh, (self.guard(lock), let_go), known=None, ticket=0, waits=False)
        standing = taken.answer
        assert standing is not None
        served = request.served_guard(self._mesh)
        sent = self._monotonic()
        try:
            row = await self._conversion(Script(*taken.statements, served, answer=standing, repeatable=True))
        except Refused as refused:
            if refused.reason != LockHeld.code:
                raise
            in_the_way = await self.in_the_way(lock.keys)
            others = [h for h in in_the_way if (h.lock_key, h.fence_token) not in _holds(lock)]
            raise request.refusal(others) from None
        except BaseException:
            self._abandon(request)  # it may have been granted without our knowing
            raise
        lock.is_shared, lock.fence_token, lock.expires_at = shared, row["fence_token"], row["expires_at"]
        lock.request_id = request.id
        lock.deadline = sent + lock.ttl
        return lock

    async def _conversion(self, script: Script) -> Row:
        """What a lock was converted to."""
        standing = script.answer
        assert standing is not None
        try:
            row: Row = (await self._store.write(script)).rows[0]
        except StaleFence:
            # The answer may have got lost, and the old hold is over because we have the new one.
            row = (await self._store.read(standing.sql, standing.params, fresh=True))[0]
            if row["fence_token"] is None:
                raise
        return row

    # --- looking, and tidying up -----------------------------------------------------------------

    async def holders(self, keys: str | Sequence[str] | None = None) -> list[Holder]:
        """Who holds these keys, or any, now."""
        wanted = None if keys is None else json(normal_keys(keys))
        rows = await self._store.read(_SQL["holders"], (*self._mesh, wanted), fresh=True)
        return [Holder._make(row)._replace(is_shared=bool(row["is_shared"])) for row in rows]

    async def in_the_way(self, keys: str | Sequence[str]) -> list[Holder]:
        """Who holds something that overlaps one of these keys, now."""
        wanted = PatternIndex(normal_keys(keys))
        return [holder for holder in await self.holders() if wanted.overlapping(holder.lock_key)]

    async def find(self, key: str, token: int) -> Lock:
        """The hold of this key under this token, with all of its keys; `StaleFence` if there is none.

        For how long it was acquired is not known any more: renewed, it is for the usual time of its keys.
        """
        key, holders = normalised(key), await self.holders()
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
        """Who holds what, now and whenever that has changed."""
        return watched(self._store, self.holders)

    async def sweep_expired_distributed_locks(self) -> int:
        """Remove what has expired; how many holds. It is tidying only: an expired hold counts for nothing."""
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
                    Statement(_SQL["open_short_ways"], mesh),
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
            swept += sum(1 for row in verdict.rows if row["request_id"])  # the others were let go of
        return swept

    async def sweep_once(self, every_s: float) -> int | None:
        """Sweep, unless there is nothing to sweep or a node has done so in the last `every_s` seconds."""
        if not (await self._store.read(_SQL["sweepable"], self._mesh, fresh=True)).value:
            return None
        try:
            await self.acquire_own("sweep", every_s)
        except LockHeld:
            return None
        return await self.sweep_expired_distributed_locks()

    async def break_lock(self, key: str, reason: str) -> tuple[str, list[Holder]]:
        """End the holds of a key, with all of their keys; the op that tells of it, and who they were."""
        key = normalised(key)
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
        told = [[h.holder_node, h.holder_agent, h.fence_token] for h in holders]
        payload = canonical({"key": key, "holders": told, "reason": reason})
        try:
            broken = await self._store.write(Script(*statements, op=Op(BREAK, payload)))
        except Refused as refused:
            if refused.reason != _NO_LONGER_HELD:
                raise
            raise NotKnown(f"{key} has just changed hands", hint="look again: `vox-mesh lock list`") from None
        return broken.key, holders

    async def catch_up(self) -> None:
        """Renew what is held for as long as a body runs, or have it be lost, as the clock says now."""
        for lease in tuple(self._leases):
            await lease.run_once()

    async def close(self) -> None:
        """Stop waiting, let go of what is still held here, and finish taking back what nobody wants."""
        await self._queue.close()
        for lease in self._leases:
            lease.lose()  # whoever works under it is stopped, with `LockLost`
            self._in_background(self._let_go(lease.lock))
        while self._leaving:
            await asyncio.gather(*self._leaving, return_exceptions=True)


def _serve(waiter: Waiter, verdict: Verdict, sent: float) -> bool:
    """Give a waiter its lock, if that is what became of its request; whether it is."""
    if isinstance(verdict, MeshError) or not verdict.rows:
        return False
    lock, _ = waiter.request.standing(verdict, sent)
    if lock is not None:
        waiter.serve(lock)
    return lock is not None


def _holds(lock: Lock) -> set[tuple[str, int]]:
    return {(key, lock.fence_token) for key in lock.keys}
