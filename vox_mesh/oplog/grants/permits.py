"""Permits: by which grant an agent acts, and the guards that check it in the transaction of the write.

What a grant allows never changes, so it is decided here, by the signed ops of the log. Whether the grant is
in force may change at any time, so the database decides it when the write is committed.

A service writes an op by `Permits.write_op`: `model.grants.needs` knows the acts of each op. If the script
depends on the permit, it writes by `Permits.write`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

from vox_mesh.errors import (
    ApprovalNeeded,
    DatabaseUnavailable,
    LimitReached,
    MeshError,
    NotGranted,
    NotStrict,
)
from vox_mesh.model.base.reserved import MESH_AGENT, refuse_mesh_agent
from vox_mesh.model.oplog.verification import OWNER_ONLY
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Script, Statement, guard, new_key
from vox_mesh.store.store import Store

if TYPE_CHECKING:  # most meshes have no grants
    from vox_mesh.model.grants.capability import Act
    from vox_mesh.model.grants.grant import Grant
    from vox_mesh.model.grants.history import GrantHistory
    from vox_mesh.oplog.grants.grant_log import GrantLog
    from vox_mesh.oplog.grants.usage import GrantLimits

_SQL: Final = named("grants")
_MAX_KNOWN: Final = 10_000
_RECENT_MS: Final = 1_000
"""How old the known history of grants may be for a first attempt. The guard of a write refuses what is no
longer granted, and then it is read again."""

_AWAY_MS: Final = 1_000
"""For how long the database is not asked whether grants are in use after it did not answer."""


Acted = TypeVar("Acted")
Send = Callable[[Script], Awaitable[Outcome]]
FindActs = Callable[[], "Sequence[Act]"]
"""Works out what an agent does. It is called only if grants are in use."""


Ask = Callable[[Op, ApprovalNeeded], Awaitable[MeshError]]
"""Records what an agent asks for, and returns the error that says so."""


_approved: Final = ContextVar[Permit | None]("vox_mesh_approved", default=None)


@contextmanager
def applying(permit: Permit) -> Iterator[None]:
    """Act by the permit of an approval within the block."""
    token = _approved.set(permit)
    try:
        yield
    finally:
        _approved.reset(token)


class _OperationAsked(Exception):
    """An op that is not written: its agent asks for it."""

    def __init__(self, op: Op) -> None:
        super().__init__(op.kind)
        self.op = op


class _Asking:
    """Catch the op that an agent wants to write."""

    key = None
    guards = (guard("0", refusal=ApprovalNeeded.code),)

    def bind(self, op: Op) -> Op:
        raise _OperationAsked(op)


class Permits:
    """Find the grants by which the agents of one process act."""

    def __init__(
        self,
        store: Store,
        log: Callable[[], GrantLog],
        clock: MeshClock,
        writer: OpLogWriter,
        *,
        must_be_strict: bool = False,
    ) -> None:
        """`must_be_strict`: refuse everything to agents unless the owner has made the mesh strict."""
        self._store = store
        self._log = log
        self._clock = clock
        self._writer = writer
        self._need_grants: set[str] = set()
        self._are_in_use: bool | None = None
        self._unanswered_ms: int | None = None
        self._last_read: tuple[int, GrantHistory] | None = None
        self._must_be_strict = must_be_strict
        self._was_strict = False
        self.ask: Ask | None = None
        """How an agent asks for what its grant allows after an approval only."""

    @property
    def are_in_use(self) -> bool:
        """Return whether agents needed grants when this process last looked; nothing is read."""
        return self._are_in_use is True or bool(self._need_grants)

    def expect_grants(self, agent: str) -> None:
        """Look for a grant of an agent from now on: without one it was refused."""
        self._are_in_use = True
        if len(self._need_grants) < _MAX_KNOWN:
            self._need_grants.add(agent)

    def new_key(self) -> str:
        """Return the id of the next op of an agent: that of the approval which is applied, or a new one."""
        approved = _approved.get()
        return (None if approved is None else approved.key) or new_key()

    def known(self, agent: str) -> Permit | None:
        """Return the permit of an agent that needs no grant, as far as is known, for what is not logged.

        The guard of the write decides. If it refuses the agent, or there is none, use `attempt`.
        """
        if self._must_be_strict or agent == MESH_AGENT or _approved.get() is not None:
            return None
        return self._known_permit(agent, is_logged=False)

    async def write_op(
        self,
        op: Op,
        *statements: Statement,
        key: str | None = None,
        agent: str | None = None,
        send: Send | None = None,
    ) -> Outcome:
        """Write an op and its effects by the permit of an agent, by default the acting one, as `write` does.

        `send` writes the script in place of the store.
        """
        write = send or self._store.write

        def acts() -> Sequence[Act]:
            from vox_mesh.model.grants.needs import acts_of_op  # imported late: few agents need grants

            return acts_of_op(op.kind, op.payload)

        return await self.attempt(
            acts,
            lambda permit: write(permit.script(*statements, op=op, key=key)),
            agent=agent,
            in_any_mode=op.kind in OWNER_ONLY,  # the owner has to make the mesh strict first
        )

    async def write(self, acts: FindActs, make: Callable[[Permit], Script]) -> Outcome:
        """Write, by the permit of the acting agent, the script that `make` returns.

        If the permit was out of date, another one is looked for, and `make` is called again.

        Raises:
            NotGranted: The agent needs a grant, and has none that allows these acts.
            ApprovalPending: It has one that allows them after an approval, for which it has asked now.
        """
        return await self.attempt(acts, lambda permit: self._store.write(make(permit)))

    async def attempt(
        self,
        acts: FindActs,
        act: Callable[[Permit], Awaitable[Acted]],
        *,
        agent: str | None = None,
        is_logged: bool = True,
        in_any_mode: bool = False,
    ) -> Acted:
        """Act by the permit of an agent, by default the acting one, as `write` does.

        `is_logged`: it is an op, and refused attempts are in the log. Others are tried without looking for a
        grant first, and can't be asked for. `in_any_mode`: also in a mesh that must be strict, and is not.
        """
        if (approved := _approved.get()) is not None:
            return await act(approved)
        if agent is not None:
            refuse_mesh_agent(agent)
        if self._must_be_strict and not in_any_mode:
            await self.refuse_unless_strict()
        try:
            return await self._attempt(acts, act, agent or self._writer.acting_agent, is_logged=is_logged)
        except ApprovalNeeded as needed:
            if self.ask is None or not is_logged:
                raise
            permit = self.by(needed.agent, needed.grant_id)._replace(approval=_Asking())
            try:
                await act(permit)
            except _OperationAsked as asked:
                raise await self.ask(asked.op, needed) from None
            raise

    async def _attempt(
        self, acts: FindActs, act: Callable[[Permit], Awaitable[Acted]], agent: str, *, is_logged: bool
    ) -> Acted:
        permit = self._known_permit(agent, is_logged=is_logged)
        if permit is None:
            permit = await self._first_permit(agent, acts)
        try:
            return await (act(permit) if permit.limits is None else self.act_by(permit, act))
        except NotGranted:
            self.expect_grants(agent)
            newer = await self._find(agent, acts)
            if newer.grant_id == permit.grant_id:
                raise
        return await self.act_by(newer, act)

    async def act_by(self, permit: Permit, act: Callable[[Permit], Awaitable[Acted]]) -> Acted:
        """Act by a permit; if a limit of its grant is reached, the error says when it is possible again."""
        try:
            return await act(permit)
        except LimitReached as error:
            if permit.limits is not None:
                with suppress(DatabaseUnavailable):
                    await permit.limits.explain(self._store, error)
            raise

    async def refuse_unless_strict(self) -> None:
        """Raise `NotStrict` if this process requires a strict mesh, and the owner has not made it so.

        While the database is unreachable, the last answer counts.
        """
        if not self._must_be_strict:
            return
        try:
            self._was_strict = (await self._log().history()).is_strict()
        except DatabaseUnavailable:
            if not self._was_strict:
                raise
        if not self._was_strict:
            raise NotStrict

    def _known_permit(self, agent: str, *, is_logged: bool) -> Permit | None:
        """Return the permit of an agent that needs no grant, if that is known without a read."""
        if agent in self._need_grants or (is_logged and self._are_in_use is not False):
            return None
        return self.by(agent, None)

    async def _first_permit(self, agent: str, acts: FindActs) -> Permit:
        if self._last_read is not None and self._clock.now_ms - self._last_read[0] < _RECENT_MS:
            with suppress(NotGranted):  # there may be a grant by now
                return self._permit_in(self._last_read[1], agent, acts())
        return await self._find(agent, acts)

    async def permit(self, agent: str, acts: FindActs) -> Permit:
        """Return the permit of an agent for acts; they are worked out only if grants are in use.

        While the database is unreachable, none is looked for: the guard decides when it is back.
        """
        await self.refuse_unless_strict()
        return await self._find(agent, acts)

    async def _find(self, agent: str, acts: FindActs) -> Permit:
        if not (agent in self._need_grants or await self._is_in_use()):
            return self.by(agent, None)
        read_ms, history = self._clock.now_ms, await self._log().history()
        self._last_read = read_ms, history
        return self._permit_in(history, agent, acts())

    def _permit_in(self, history: GrantHistory, agent: str, acts: Sequence[Act]) -> Permit:
        grant = self._grant_for(agent, acts, history)
        permit = self.by(agent, None if grant is None else grant.grant_id)
        return permit if grant is None else permit._replace(limits=self.limits_of(grant, acts, history))

    def without_grant(self, agent: str) -> Permit:
        """Return the permit of an agent for what it may do without a grant, whether it is admitted or not."""
        return self.by(agent, None)._replace(mesh=None)

    def by(self, agent: str, grant_id: str | None) -> Permit:
        """Return the permit of an agent that acts by a grant, or without one."""
        return Permit(agent, self._writer.identity.node_id, grant_id, self._store.mesh_id)

    def limits_of(self, grant: Grant, acts: Sequence[Act], history: GrantHistory) -> GrantLimits | None:
        """Return the rates, limits and budgets of a grant that concern acts, if there are any."""
        chain = history.chain(grant.grant_id)
        if not any(each.terms.are_limited for each in chain):
            return None
        from vox_mesh.oplog.grants.usage import GrantLimits

        limits = GrantLimits(self._store.mesh_id, chain, acts)
        return limits if limits.uses or limits.budgets else None

    def _grant_for(self, agent: str, acts: Sequence[Act], history: GrantHistory) -> Grant | None:
        """Return the grant by which an agent may do all of these acts, or `None` if it needs none.

        Raises `NotGranted` as `write` does.
        """
        if not history.needs_grant(agent, self._writer.identity.chain):
            self._need_grants.discard(agent)
            return None
        self.expect_grants(agent)
        now_ms = self._clock.now_ms
        found = history.grant_for(agent, acts, now_ms)
        if found is not None:
            return found
        asking = history.asking_grant_for(agent, acts, now_ms)
        if asking is not None:
            raise ApprovalNeeded(agent, acts, asking.grant_id)
        raise _not_granted(agent, acts)

    async def granted(
        self, agent: str, resources: Sequence[str], act: Callable[[str], Act]
    ) -> list[str] | None:
        """Return on which of these an agent may act by its grants, or `None` if it needs none."""
        history, now_ms = await self._log().history(), self._clock.now_ms
        if not history.needs_grant(agent, self._writer.identity.chain):
            return None
        return [each for each in resources if history.grant_for(agent, [act(each)], now_ms) is not None]

    async def refuse_without_any(self, agent: str, acts: FindActs) -> None:
        """Raise `NotGranted` if an agent needs a grant, and has none for any part of these acts."""
        if not await self._is_in_use():
            return
        history, now_ms = await self._log().history(), self._clock.now_ms
        wanted = acts()
        if history.needs_grant(agent, self._writer.identity.chain) and not any(
            history.allows_part_of(agent, each, now_ms) for each in wanted
        ):
            raise _not_granted(agent, wanted)

    async def _is_in_use(self) -> bool:
        """Return whether agents were admitted, or the mesh is strict; asked until one is refused."""
        if self._are_in_use is None:
            if self._unanswered_ms is not None and self._clock.now_ms - self._unanswered_ms < _AWAY_MS:
                return False  # else each write would wait as long as a read may take before it is spooled
            try:
                rows = await self._store.read(_SQL["is_in_use"], self._store.mesh_id)
            except DatabaseUnavailable:
                self._unanswered_ms = self._clock.now_ms
                return False
            self._are_in_use = bool(rows.value)
        return self._are_in_use


def _not_granted(agent: str, acts: Sequence[Act]) -> NotGranted:
    wanted = ", ".join(f"`{act}`" for act in acts[:3])
    error = NotGranted(NotGranted.code, statement=0)
    error.hint = f"ask the owner for a grant for {agent} that allows {wanted}"
    return error
