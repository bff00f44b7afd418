"""Locks: leases on keys that expire by the database's clock, each with a rising fencing token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Final

from vox_mesh.errors import LockHeld, MeshError, NotKnown, Refused, StaleFence
from vox_mesh.locks.acquirer import LockAcquirer
from vox_mesh.locks.agent_locks import AgentLocks, LockOwner
from vox_mesh.locks.holders import LockHolders
from vox_mesh.locks.holding import HeldLocks, Renew
from vox_mesh.locks.lock_uses import holding_acts, lock_uses
from vox_mesh.locks.scripts import (
    MAX_TTL_S,
    MESH_PREFIX,
    LockRequest,
    checked_agent,
    checked_ttl,
    held_guard,
    json,
    normal_keys,
    refuse_mesh_keys,
    renew_script,
)
from vox_mesh.locks.sessions import SESSION_TTL_S, LastsFor, LockSessions, checked_session
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.base.histogram import QUICK_S, Histogram
from vox_mesh.model.locks.patterns import normalise
from vox_mesh.model.locks.records import Holder, Lock, LockWaiter
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.permit import MESH_GRANT, MESH_PERMIT, Permit
from vox_mesh.oplog.grants.permits import Acted, Permits
from vox_mesh.store.acting import refuse_unless_own
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Op, Script, Statement, new_key
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("locks")
_MESH_PERMIT: Final = MESH_PERMIT._replace(grant_id=MESH_GRANT)
_NO_LONGER_HELD: Final = "no_longer_held"
_MAX_REACQUISITIONS: Final = 3
_LIST_HINT: Final = "run `vox-mesh lock list` to see the locks that are held"


class Locks:
    """Acquire, renew, release and list locks, for the agents of one process.

    A holder is a node and an agent; the fencing token proves that a lock is held. `acquire` and `hold` are
    not re-entrant: a holder that asks for its key again waits, or is refused, like any other.
    """

    def __init__(
        self,
        store: Store,
        clock: MeshClock,
        node: Callable[[], str],
        agent: str | None,
        monotonic: Callable[[], float],
        permits: Permits,
        *,
        on_granted: Callable[[int], None],
        on_agent: Callable[[str, str], None],
    ) -> None:
        """`on_granted` is called with the fencing token of each lock that an agent acquires.

        `on_agent` is called with each agent that asks for a lock or sends a heartbeat, and its action.
        """
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock
        self._node = node
        self._agent = agent
        self._monotonic = monotonic
        self._permits = permits
        self._holders = LockHolders(store, monotonic)
        self._acquirer = LockAcquirer(store, clock, self._holders, monotonic)
        self._held = HeldLocks(store, self._release_after_hold, monotonic)
        self._of_agents = AgentLocks(
            self._holders, lambda lock, ttl: self.renew(lock, ttl=ttl), self.release, monotonic
        )
        self.sessions = LockSessions(
            store, self._holders, lambda lock, ttl: self.renew(lock, ttl=ttl), monotonic
        )
        """The processes and heartbeats that session locks last for."""
        self._on_granted = on_granted
        self._on_agent = on_agent
        self.waited = Histogram(QUICK_S)
        """How long granted requests waited, in seconds."""

    # --- acquiring and releasing -----------------------------------------------------------------

    async def acquire(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        shared: bool = False,
        session: LastsFor | None = None,
    ) -> Lock:
        """Acquire all of the keys, or none and raise `LockHeld`, after up to `wait` seconds.

        `ttl`: the seconds it is held unless renewed; by default 30 for files, 300 for all other keys, and 60
        with a session.

        `session`: what the lock lasts for. With 'heartbeats', each `heartbeat` of its agent renews it. With a
        process of this machine, a node there renews it until the process ends; raises `BadSettings` if there
        is no such node.
        """
        if session is not None:
            return await self._acquire_with_session(
                lambda ttl_s: self.acquire(keys, agent=agent, ttl=ttl_s, wait=wait, shared=shared),
                ttl,
                session,
            )
        request = self._request(keys, agent=agent, ttl=ttl, is_shared=shared)
        wait_s = checked_seconds(
            "wait", wait, 0.0, MAX_TTL_S, hint="pass wait=0 to fail at once if it is held"
        )
        refuse_mesh_keys(request.keys)
        self._clock.refuse_if_off()
        self._on_agent(request.holder_agent, "lock")
        asked_at = self._monotonic()
        lock = await self._acquire_as_granted(request, wait_s)
        self.waited.observe(self._monotonic() - asked_at)
        self._on_granted(lock.fence_token)
        return lock

    async def _acquire_as_granted(self, request: LockRequest, wait: float) -> Lock:
        """Acquire a lock without a grant or, if that is refused, by a grant of its agent."""

        def acquire(permit: Permit) -> Awaitable[Lock]:
            by_permit = request
            if permit.grant_id is not None:  # the other request, if it was made, is withdrawn
                by_permit = replace(request, request_id=new_key(), grant=permit.grant_id)
                by_permit.usage = permit.using(lambda: lock_uses(by_permit)).usage
            return self._acquirer.acquire(by_permit, wait=wait)

        return await self._by_permit(request.keys, request.holder_agent, acquire)

    async def _by_permit(
        self, keys: Sequence[str], agent: str, act: Callable[[Permit], Awaitable[Acted]]
    ) -> Acted:
        """Acquire keys, or go on holding them, by a grant of the agent; the mesh itself needs none."""
        if keys[0].startswith(MESH_PREFIX):
            return await act(_MESH_PERMIT)
        return await self._permits.attempt(lambda: holding_acts(keys), act, agent=agent, is_logged=False)

    async def acquire_or_renew(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        shared: bool = False,
        session: LastsFor | None = None,
    ) -> Lock:
        """Acquire the keys; if this agent already holds all of them in this mode, renew its lock instead.

        A renewed lock keeps its token and all of its keys, and has `is_renewed`. Only for agents that do one
        thing at a time: all tasks and processes that use one agent's name on this node hold the same lock,
        and the first release ends it for all of them. A lock whose process has ended is in no one's way.

        `session`: as for `acquire`. A lock lasts for all of its sessions.
        """
        wait_s = checked_seconds(
            "wait", wait, 0.0, MAX_TTL_S, hint="pass wait=0 to fail at once if it is held"
        )
        if session is not None:
            return await self._acquire_with_session(
                lambda ttl_s: self._acquire_or_renew(
                    keys, agent=agent, ttl=ttl_s, wait=wait_s, shared=shared
                ),
                ttl,
                session,
            )
        ttl_s = None if ttl is None else checked_ttl(ttl)
        return await self._acquire_or_renew(keys, agent=agent, ttl=ttl_s, wait=wait_s, shared=shared)

    async def _acquire_with_session(
        self, acquire: Callable[[float], Awaitable[Lock]], ttl: Duration | None, session: LastsFor
    ) -> Lock:
        session = checked_session(session)
        if session != "heartbeats":
            await self.sessions.refuse_if_not_renewed()
        ttl_s = SESSION_TTL_S if ttl is None else checked_ttl(ttl)
        lock = await acquire(ttl_s)
        try:
            await self.sessions.begin(lock, session, ttl_s)
        except BaseException:
            if not lock.is_renewed:
                self._acquirer.run_in_background(self._release_after_hold(lock))
            raise
        return lock

    async def _acquire_or_renew(
        self, keys: str | Sequence[str], *, agent: str | None, ttl: float | None, wait: float, shared: bool
    ) -> Lock:
        request = self._request(keys, agent=agent, ttl=ttl, is_shared=shared)
        refuse_mesh_keys(request.keys)
        for _ in range(_MAX_REACQUISITIONS):
            if shared:
                await self.sessions.release_ended(await self._holders.all(request.keys))
            # A second shared lock would be granted, not refused.
            if shared and (lock := await self._of_agents.renew_if_held(request)) is not None:
                return lock
            try:
                return await self.acquire(request.keys, agent=agent, ttl=ttl, shared=shared)
            except LockHeld as refused:
                if await self.sessions.release_ended(refused.holders):
                    continue
                if not any(map(LockOwner.of(request).owns, refused.holders)):
                    if wait <= 0:
                        raise
                    break
            if (lock := await self._of_agents.renew_if_held(request)) is not None:
                return lock
        return await self.acquire(request.keys, agent=agent, ttl=ttl, wait=wait, shared=shared)

    async def acquire_own(self, name: str, ttl: float) -> Lock:
        """Acquire a lock of the mesh itself, which no agent can have, without waiting."""
        request = self._request(MESH_PREFIX + name, agent=None, ttl=ttl, is_shared=False)
        request.grant = MESH_GRANT
        return await self._acquirer.acquire(request, wait=0.0)

    def _request(
        self, keys: str | Sequence[str], *, agent: str | None, ttl: Duration | None, is_shared: bool
    ) -> LockRequest:
        node = self._node()
        return LockRequest.checked(
            keys,
            holder_node=node,
            holder_agent=agent or self._agent or node,
            is_shared=is_shared,
            ttl=ttl,
        )

    async def renew(self, lock: Lock, *, ttl: Duration | None = None) -> Lock:
        """Renew the lock for its TTL from now on; raise `StaleFence` if it is no longer held.

        Raises `NotGranted` if its agent has no grant for it any more: then it ends with its lease.
        """
        ttl = lock.ttl if ttl is None else checked_ttl(ttl)
        sent_at = self._monotonic()
        outcome = await self._by_permit(
            lock.keys,
            lock.holder_agent,
            lambda permit: self._store.write(renew_script(self._mesh, lock, ttl=ttl, grant=permit.grant_id)),
        )
        lock.ttl, lock.deadline, lock.expires_at = ttl, sent_at + ttl, outcome.rows[0]["expires_at"]
        return lock

    async def heartbeat(self, *, agent: str | None = None) -> list[Lock]:
        """Report that an agent of this node is alive, and renew its locks with the session 'heartbeats'.

        Returns those locks; one that has ended since the last heartbeat is missing.
        """
        node = self._node()
        owner = LockOwner(node, checked_agent(agent or self._agent or node))
        self._on_agent(owner.agent, "heartbeat")
        return await self.sessions.heartbeat(owner)

    async def release(self, lock: Lock) -> bool:
        """Release the lock, and hand it off to the next waiter here. Return whether it was still held.

        If an answer was lost, our own clock decides: the lock was ours until its deadline, unless it was
        broken.
        """
        return await self._acquirer.release(lock)

    async def upgrade(self, lock: Lock) -> Lock:
        """Turn a shared lock into an exclusive one with a new token; raise `LockHeld` if others share it."""
        return await self._convert(lock, is_shared=False)

    async def downgrade(self, lock: Lock) -> Lock:
        """Turn an exclusive lock into a shared one with a new token, without releasing it in between."""
        return await self._convert(lock, is_shared=True)

    async def _convert(self, lock: Lock, *, is_shared: bool) -> Lock:
        return await self._by_permit(
            lock.keys,
            lock.holder_agent,
            lambda permit: self._acquirer.convert(lock, is_shared=is_shared, grant=permit.grant_id),
        )

    def guard(self, lock: Lock) -> Statement:
        """Return a guard that raises `StaleFence` unless the lock is held.

        Make it the first statement of every script written under the lock.
        """
        return held_guard(self._mesh, lock)

    # --- holding ---------------------------------------------------------------------------------

    def hold(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        shared: bool = False,
    ) -> AbstractAsyncContextManager[Lock]:
        """Hold the keys while the body runs: renewed in the background, released at its end.

        If the lock is lost, the body is cancelled and `LockLost` raised, at its end at the latest.
        """
        return self._hold(keys, agent=agent, ttl=ttl, wait=wait, shared=shared)

    @asynccontextmanager
    async def _hold(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None,
        ttl: Duration | None,
        wait: Duration,
        shared: bool,
    ) -> AsyncIterator[Lock]:
        lock = await self.acquire(keys, agent=agent, ttl=ttl, wait=wait, shared=shared)
        async with self.keep(lock, self.renew):
            yield lock

    def keep(self, lock: Lock, renew: Renew | None) -> AbstractAsyncContextManager[Lock]:
        """Hold an acquired lock while the body runs, as `hold` does, and call `renew` in time, if given."""
        return self._held.hold(lock, renew)

    async def _release_after_hold(self, lock: Lock) -> bool:
        """Release at the end of a hold. Return `False` if the lock was lost before it expired.

        If the database can't be reached, the lock is left to expire: the body had ended in time.
        """
        try:
            return await self.release(lock) or self._monotonic() >= lock.deadline
        except asyncio.CancelledError:  # the request may have been cut off
            self._acquirer.run_in_background(self._release_after_hold(lock))
            raise
        except MeshError as error:
            _log.warning("lock left to expire: keys=%s error=%s", ", ".join(lock.keys), error.line)
            return True

    async def catch_up(self) -> None:
        """Renew every lock held for a running body, or mark it as lost."""
        await self._held.renew_all()

    async def close(self) -> None:
        """Stop waiting, release all held locks, and finish withdrawing abandoned requests."""
        await self._acquirer.stop_waiting()
        for lock in self._held.close():
            self._acquirer.run_in_background(self._release_after_hold(lock))
        await self._acquirer.close()

    # --- listing ---------------------------------------------------------------------------------

    async def holders(self, keys: str | Sequence[str] | None = None) -> list[Holder]:
        """Return the current holders of these keys, or of all."""
        return await self._holders.all(keys)

    async def holders_near(self, paths: Sequence[str]) -> list[Holder]:
        """Return the current holders of these paths of files, and of all patterns."""
        return await self._holders.near(paths)

    async def waiters(self, limit: int = 200) -> list[LockWaiter]:
        """Return the waiters for all keys, in the order of each key's queue."""
        return await self._holders.waiters(limit)

    async def in_the_way(self, keys: str | Sequence[str]) -> list[Holder]:
        """Return the current holders of anything that overlaps one of these keys."""
        return await self._holders.in_the_way(keys)

    async def find(self, key: str, token: int) -> Lock:
        """Return the lock on this key under this token; raise `StaleFence` if there is none.

        Its original TTL is not known any more: a renewal uses the default TTL of its keys.
        """
        return await self._holders.find(key, token)

    async def renew_by_token(self, key: str, fence_token: int, *, ttl: Duration | None = None) -> Lock:
        """Renew the lock that is held on a key under this token; raise `NotKnown` if there is none."""
        return await self.renew(await self._find_held(key, fence_token), ttl=ttl)

    async def release_by_token(self, key: str, fence_token: int) -> Lock:
        """Release the lock that is held on a key under this token; raise `NotKnown` if there is none."""
        lock = await self._find_held(key, fence_token)
        if not await self.release(lock):
            raise _not_held(key, fence_token)
        return lock

    async def release_held(self, keys: str | Sequence[str] | None = None, *, agent: str) -> list[Lock]:
        """Release the locks that an agent of this node holds on these keys, or all of its locks.

        Raises `NotKnown` if it holds none of the keys. Returns the released locks, each with all of its keys.
        """
        wanted = None if keys is None else normal_keys(keys)
        refuse_mesh_keys(wanted or ())
        return await self._of_agents.release(LockOwner(self._node(), agent), wanted)

    async def _find_held(self, key: str, fence_token: int) -> Lock:
        refuse_mesh_keys(normal_keys(key))
        try:
            lock = await self.find(key, fence_token)
        except StaleFence:
            raise _not_held(key, fence_token) from None
        refuse_unless_own(f"lock on {key}", lock.holder_agent)
        return lock

    def watch(self) -> AsyncGenerator[list[Holder], None]:
        """Yield all holders now, and again whenever they change."""
        return self._holders.watch()

    # --- sweeping and breaking -------------------------------------------------------------------

    async def sweep_expired_distributed_locks(self) -> int:
        """Delete expired locks. Return how many. Expired locks have no effect, deleted or not."""
        mesh = self._mesh
        rest = [Statement(_SQL[name], mesh) for name in ("sweep_patterns", "sweep_overlaps")]
        rest.append(self.sessions.prune_statement())
        verdicts = await self._store.write_all(
            [
                Script(
                    Statement(_SQL["sweep_waiters"], mesh),
                    answer=Answer(_SQL["sweep_shares"], mesh, ("request_id",)),
                    repeatable=True,
                ),
                Script(
                    Statement(_SQL["clear_contended_everywhere"], mesh),
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
        refuse_mesh_keys([key])
        holders = await self.holders([key])
        if not holders:
            raise NotKnown(f"lock on {key} not found: no agent holds it", hint=_LIST_HINT)
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
            Statement(_SQL[name], (*self._mesh, requests)) for name in ("break_exclusive", "break_shared")
        ]
        from vox_mesh.model.oplog.op_names import (
            BREAK,  # imported late: no other command on locks writes an op
        )

        broken_locks = [[h.holder_node, h.holder_agent, h.fence_token] for h in holders]
        payload = canonical({"key": key, "holders": broken_locks, "reason": reason})
        try:
            broken = await self._permits.write_op(Op(BREAK, payload), *statements)
        except Refused as refused:
            if refused.reason != _NO_LONGER_HELD:
                raise
            raise NotKnown(f"lock on {key} not broken: it has just changed hands", hint=_LIST_HINT) from None
        return broken.key, holders


def _not_held(key: str, fence_token: int) -> NotKnown:
    return NotKnown(f"{key} is not held under token {fence_token}", hint=_LIST_HINT)
