"""Session locks: locks that last as long as a process, or as long as their agent sends heartbeats.

A session names the request of a lock and a process. A node of the process's host renews the lock while one of
its processes runs, and releases it when all of them have ended. `acquire_or_renew` on that host also releases
such a lock if it is in the way. A process of another host can't be judged: if no node there renews its lock,
the lock ends with its lease.

A session may also stand for the heartbeats of the agents of a node. Each heartbeat renews the locks of its
agent. If they stop, the lock ends with its lease: a silent agent may only be cut off.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from vox_mesh.errors import BadSettings, BadValue, NotGranted, Overloaded, Refused, StaleFence
from vox_mesh.locks.agent_locks import LockOwner, by_request
from vox_mesh.locks.holders import LockHolders, lock_of
from vox_mesh.locks.scripts import held_guard, json
from vox_mesh.model.locks.records import Holder, Lock
from vox_mesh.nodes.processes import ProcessId, host_id, is_gone, process_of
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

SESSION_TTL_S: Final = 60.0
"""The default lease of a session lock: how long it lasts if its machine is lost."""

_SQL: Final = named("lock_sessions")
_MAX_SESSIONS: Final = 1_000
"""The maximum number of sessions on one host, of sessions by heartbeats on one node, and of nodes."""

_TOO_MANY: Final = "too_many_sessions"
_RENEWED_BELOW: Final = 2 / 3  # of the TTL

Renew = Callable[[Lock, float], Awaitable[Lock]]
LastsFor = ProcessId | Literal["heartbeats"]
"""What a session lock lasts for: a process, or the heartbeats of its agent."""


def checked_session(session: object) -> LastsFor:
    """Return what a session lock lasts for; raise `BadValue` for anything else."""
    if isinstance(session, ProcessId):
        return session
    if session != "heartbeats":
        raise BadValue(
            f"session must be 'heartbeats' or a ProcessId, got {session!r}",
            hint="pass session='heartbeats', or no session for a plain lease",
        )
    return "heartbeats"


def _heartbeats_of(node: str) -> ProcessId:
    """Return what stands for the heartbeats of the agents of a node. No process has its number."""
    return ProcessId(f"heartbeats:{node}", 0, 0)


class Session(NamedTuple):
    """A process that a lock lasts for; without a request, a node that renews the locks of its host."""

    request_id: str
    process: ProcessId
    ttl: float


class LockSessions:
    """The sessions of locks: begin one, and end or renew those of this host."""

    def __init__(
        self,
        store: Store,
        holders: LockHolders,
        renew: Renew,
        monotonic: Callable[[], float],
        *,
        has_ended: Callable[[ProcessId], bool] = is_gone,
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._holders = holders
        self._renew = renew
        self._monotonic = monotonic
        self._has_ended = has_ended

    # --- beginning -------------------------------------------------------------------------------

    async def refuse_if_not_renewed(self) -> None:
        """Raise `BadSettings` unless a node of this host would renew a session lock."""
        nodes = [each for each in await self._of_host(host_id(), fresh=True) if not each.request_id]
        if all(self._has_ended(node.process) for node in nodes):
            raise BadSettings(
                "no node of this mesh runs on this machine to renew a session lock",
                hint="start one with `vox-mesh up`, or pass --ttl instead of --session",
            )

    async def begin(self, lock: Lock, session: LastsFor, ttl: float) -> None:
        """Make a held lock last as long as a process or heartbeats, renewed for `ttl` seconds at a time.

        It also lasts for the other sessions that it has.
        """
        process = _heartbeats_of(lock.holder_node) if session == "heartbeats" else session
        values = (*self._mesh, lock.request_id, *process, round(ttl * 1_000))
        bound = Statement(
            _SQL["refuse_if_too_many"], (*self._mesh, process.host, _MAX_SESSIONS), refusal=_TOO_MANY
        )
        try:
            await self._store.write(
                Script(
                    held_guard(self._mesh, lock),
                    self.prune_statement(),
                    bound,
                    Statement(_SQL["begin"], values),
                    repeatable=True,
                )
            )
        except Refused as refused:
            if refused.reason != _TOO_MANY:
                raise
            raise Overloaded(
                f"session not begun: this machine has {_MAX_SESSIONS} session locks",
                hint="release some, or acquire it for a time",
            ) from None

    # --- ending ----------------------------------------------------------------------------------

    async def release_ended(self, holders: Iterable[Holder]) -> bool:
        """Release the locks among these whose processes have all ended. Return whether there were any."""
        wanted = {each.request_id for each in holders}
        if not wanted or host_id() is None:
            return False
        rows = await self._store.read(_SQL["of_requests"], (*self._mesh, json(sorted(wanted))), fresh=True)
        ended = self._ended(_sessions_in(rows))
        for each in ended:
            await self._release(each)
        return bool(ended)

    def _ended(self, sessions: Iterable[Session]) -> list[Sequence[Session]]:
        groups: dict[str, list[Session]] = {}
        for each in sessions:
            groups.setdefault(each.request_id, []).append(each)
        return [group for group in groups.values() if all(self._has_ended(each.process) for each in group)]

    async def _release(self, ended: Sequence[Session]) -> None:
        """End these sessions of one lock, and release it if it has no other."""
        names = json([f"{each.process.pid} {each.process.started}" for each in ended])
        request = (*self._mesh, ended[0].request_id)
        end = Statement(_SQL["end"], (*request, host_id(), names))
        release = [Statement(_SQL[name], request) for name in ("release_exclusive", "release_shared")]
        await self._store.write(Script(end, *release, self.prune_statement(), repeatable=True))
        _log.info("lock session ended: request_id=%s pid=%d", ended[0].request_id, ended[0].process.pid)

    def prune_statement(self) -> Statement:
        """Return the statement that deletes the sessions of locks that are over."""
        return Statement(_SQL["prune"], self._mesh)

    # --- renewing --------------------------------------------------------------------------------

    async def heartbeat(self, owner: LockOwner) -> list[Lock]:
        """Renew the locks of an agent that last as long as its heartbeats. Return those still held."""
        host = _heartbeats_of(owner.node).host
        ttls = {each.request_id: each.ttl for each in await self._of_host(host, fresh=True)}
        if not ttls:
            return []
        owned = by_request(
            each for each in await self._holders.all() if each.request_id in ttls and owner.owns(each)
        )
        renewed = await asyncio.gather(
            *(self._renew_if_due(rows, ttls[rows[0].request_id]) for rows in owned), return_exceptions=True
        )
        for each in renewed:
            if isinstance(each, BaseException):
                raise each
        return [each for each in renewed if isinstance(each, Lock)]

    async def run_once(self) -> None:
        """Announce this node, renew the locks of running processes, and release those of ended ones."""
        host = host_id()
        if host is None:
            return
        sessions = await self._of_host(host, fresh=False)
        await self._announce([each for each in sessions if not each.request_id])
        ttls = {each.request_id: each.ttl for each in sessions if each.request_id}
        if not ttls:
            return
        for ended in self._ended(each for each in sessions if each.request_id):
            await self._release(ended)
            del ttls[ended[0].request_id]
        held = by_request(each for each in await self._holders.all() if each.request_id in ttls)
        for rows in held:
            await self._renew_if_due(rows, ttls[rows[0].request_id])
        if len(held) < len(ttls):
            await self._store.write(Script(self.prune_statement(), repeatable=True))

    async def _renew_if_due(self, rows: Sequence[Holder], ttl: float) -> Lock | None:
        """Renew a lock that has not just been renewed. Return it, or `None` if it has ended."""
        lock = lock_of(rows, self._monotonic())
        if rows[0].left_s > _RENEWED_BELOW * ttl:
            return lock
        try:
            return await self._renew(lock, ttl)
        except StaleFence:
            _log.debug("session lock has ended: key=%s", rows[0].lock_key)
            return None
        except NotGranted:
            _log.info(
                "session lock ends with its lease, its agent has no grant for it: key=%s agent=%s",
                rows[0].lock_key,
                rows[0].holder_agent,
            )
            return None

    async def _announce(self, nodes: Sequence[Session]) -> None:
        own = process_of(os.getpid())
        ended = [each.process for each in nodes if self._has_ended(each.process)]
        statements = [Statement(_SQL["forget"], (*self._mesh, *each)) for each in ended]
        if own not in [each.process for each in nodes]:
            statements.append(Statement(_SQL["forget_if_too_many"], (*self._mesh, own.host, _MAX_SESSIONS)))
            statements.append(Statement(_SQL["begin"], (*self._mesh, "", *own, 0)))
        if statements:
            await self._store.write(Script(*statements, repeatable=True))

    async def _of_host(self, host: str | None, *, fresh: bool) -> list[Session]:
        values = (*self._mesh, host or "", 2 * _MAX_SESSIONS)
        return _sessions_in(await self._store.read(_SQL["of_host"], values, fresh=fresh))


def _sessions_in(rows: Iterable[Sequence[object]]) -> list[Session]:
    """Return the sessions in rows; a row that no node wrote is skipped, and its lock ends with its lease."""
    return [
        Session(request_id, ProcessId(host, pid, started), ttl_ms / 1_000)
        for request_id, host, pid, started, ttl_ms in rows
        if isinstance(request_id, str) and isinstance(host, str)
        if type(pid) is int and type(started) is int and type(ttl_ms) is int
        if not request_id or 100 <= ttl_ms <= 86_400_000
    ]
