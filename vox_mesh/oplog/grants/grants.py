"""Grants: admit agents, issue, delegate and revoke their grants, and say what an agent may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.base.keys import SigningKey, checked_public_key
from vox_mesh.model.base.reserved import refuse_person_agent
from vox_mesh.model.grants.capability import Act, Capability
from vox_mesh.model.grants.grant import Grant, SignedGrant, Terms, delegation_fault
from vox_mesh.model.grants.history import AdmittedAgent, GrantHistory, GrantRecord
from vox_mesh.model.grants.templates import capabilities_of
from vox_mesh.model.messages.records import checked_agent
from vox_mesh.model.oplog.admissions import AdmittedNode, NodeAdmissions
from vox_mesh.model.oplog.verification import ADMIT, DELEGATE, GRANT, REVOKE
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.grants.op_writer import GrantOpWriter
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.grants.strict_mode import StrictMode
from vox_mesh.oplog.grants.usage import end_usage
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Statement, new_key
from vox_mesh.store.store import Store

MAX_AGENTS: Final = 10_000
"""The maximum number of admitted agents. Their identities are kept as long as the mesh."""

MAX_DELEGATIONS: Final = 64
"""The maximum number of delegations of one grant that are in force."""

MAX_DELEGATIONS_OF_AGENT: Final = 256
"""The maximum number of delegations by one agent that are in force, or have ended within a day: the log keeps
each of them, so this bounds what an agent can add to the history of grants."""

MIN_DELEGATION_S: Final = 10
"""The least time that a delegation must last when it is recorded."""

_SQL: Final = named("grants")
_PRUNED_AT_ONCE: Final = 100
_KEPT_MS: Final = 86_400_000
"""How long the row of a grant is kept after its end."""

_MAX_VALIDITY_S: Final = 10 * 366 * 86_400.0
_SKEW_MS: Final = 60_000
"""A grant begins this long before it is issued: it counts from its entry in the log on, and a node whose
clock is behind must not refuse it until then."""

_NOT_IN_FORCE: Final = "grant_not_in_force"
_NOT_DELEGABLE: Final = "grant_not_delegable"
_NOT_ADMITTED: Final = "agent_not_admitted"
_TOO_MANY: Final = "too_many_agents"
_TOO_SHORT: Final = "delegation_too_short"
_TOO_MANY_DELEGATIONS: Final = "too_many_delegations"
_HINTS: Final = {
    _NOT_IN_FORCE: "run `vox-mesh grant list` to see the grants in force",
    _NOT_DELEGABLE: f"run `vox-mesh grant list`: it must be in force, with fewer than {MAX_DELEGATIONS}"
    " delegations in force",
    _TOO_SHORT: f"a delegation must last at least {MIN_DELEGATION_S} s when it is recorded",
    _TOO_MANY_DELEGATIONS: f"an agent can make {MAX_DELEGATIONS_OF_AGENT} delegations, and each counts"
    " until a day after its end: delegate for longer, or ask the owner for a grant",
    _NOT_ADMITTED: "run `vox-mesh agents admit NAME` first",
    _TOO_MANY: f"at most {MAX_AGENTS:,} agents can be admitted; use one of these for several tasks",
}


class GrantDecision(NamedTuple):
    """Whether an agent may do something, by which grant, or why not."""

    is_allowed: bool
    grant_id: str | None
    reason: str


class Grants:
    """Read and write the grants of a mesh."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        roles: Roles,
        log: GrantLog,
        trusted_keys: TrustedKeys,
        local_nodes: Callable[[], Sequence[Identity]],
        permits: Permits,
        refuse_unaskable: Callable[[Sequence[Capability]], None],
    ) -> None:
        """`local_nodes` returns the nodes that the user of this process has started here.

        `refuse_unaskable` raises `BadValue` for capabilities that ask for what no agent can ask for.
        """
        self._refuse_unaskable = refuse_unaskable
        self._store = store
        self._mesh = store.mesh_id
        self._writer = writer
        self._clock = clock
        self._log = log
        self._ops = GrantOpWriter(clock, roles, permits, _HINTS)
        self._mode = StrictMode(store, clock, trusted_keys, roles, permits, local_nodes)

    # --- deciding --------------------------------------------------------------------------------

    async def admit(self, agent: str, public_key: str | None = None) -> Outcome:
        """Admit an agent: from now on it acts by its grants only; only the owner may.

        With its public key, the agent can delegate its grants.
        """
        if public_key is not None:
            checked_public_key(public_key, hint="copy it from `vox-mesh agents init`")
        refuse_person_agent(agent)
        op_id, admitted = new_key(), AdmittedAgent(checked_agent(agent), public_key)
        limit = Statement(_SQL["refuse_if_many_agents"], (*self._mesh, agent, MAX_AGENTS), refusal=_TOO_MANY)
        admit = Statement(_SQL["admit"], (*self._mesh, agent, public_key, op_id))
        return await self._ops.write(op_id, ADMIT, admitted.payload, limit, admit)

    async def set_strict(self, *, strict: bool) -> Outcome:
        """Allow nothing without a grant, or trust agents that are not admitted; only the owner may.

        In a strict mesh only admitted nodes count. Those of this home are admitted first.
        """
        return await self._mode.switch(strict=strict)

    async def admit_node(self, node_id: str, public_key: str | None = None) -> AdmittedNode:
        """Admit a node with this key, or with the one that it presented; only the owner may."""
        return await self._mode.admit_node(node_id, public_key)

    async def issue(
        self,
        agent: str,
        capabilities: Sequence[str],
        *,
        lasts: Duration | None = None,
        budget: int | None = None,
        delegations: int = 0,
    ) -> Grant:
        """Grant an admitted agent what these lines, or templates, describe; only the owner may.

        `lasts`: how long it is valid from now on. `delegations`: how many may follow, one of the other.
        """
        admitted = _admission(await self._log.history(), agent)
        author = self._writer.identity.key
        terms = self._terms(capabilities, lasts, budget, delegations)
        grant = Grant(new_key(), author.public, agent, admitted.public_key, None, terms)
        is_admitted = (*self._mesh, agent, admitted.public_key)
        guard = Statement(_SQL["refuse_unless_admitted"], is_admitted, refusal=_NOT_ADMITTED)
        await self._record(GRANT, grant, grant.sign(author, self._store.writer_id.scope_id), guard)
        return grant

    async def delegate(
        self,
        parent_id: str,
        agent: str,
        capabilities: Sequence[str],
        *,
        key: SigningKey,
        lasts: Duration | None = None,
        budget: int | None = None,
        delegations: int = 0,
    ) -> Grant:
        """Pass a part of a grant on to another admitted agent. `key`: that of the agent who has the grant."""
        history = await self._log.history()
        parent = _required(history, parent_id).grant
        admitted = _admission(history, agent)
        own = self._terms(capabilities, lasts, budget, delegations)
        limits = parent.terms
        terms = own._replace(
            from_ms=max(own.from_ms, limits.from_ms),
            until_ms=limits.until_ms if lasts is None else own.until_ms,
            budget=limits.budget if budget is None else budget,
        )
        grant = Grant(new_key(), key.public, agent, admitted.public_key, parent_id, terms)
        return await self.record_delegation(grant.sign(key, self._store.writer_id.scope_id))

    async def record_delegation(self, signed: SignedGrant) -> Grant:
        """Record a delegation that the agent who has the parent has signed."""
        grant = signed.verified(self._store.writer_id.scope_id)
        self._refuse_unaskable(grant.terms.capabilities)
        history = await self._log.history()
        parent = _required(history, grant.parent_id or "").grant
        admitted = history.admission(grant.agent)
        if admitted is None or admitted.public_key != grant.agent_key:
            raise NotKnown(
                f"agent {grant.agent!r} is not admitted with the key of this grant",
                hint=_HINTS[_NOT_ADMITTED],
            )
        fault = delegation_fault(parent, grant)
        if fault is None and not history.may_delegate(parent):
            fault = f"{parent.agent} was admitted with another key since"
        if fault is not None:
            raise BadValue(
                f"grant {parent.grant_id} can't be delegated like this: {fault}",
                hint=f"run `vox-mesh grant show {parent.grant_id}` to see what it allows",
            )
        await self._record(DELEGATE, grant, signed, *self._delegation_guards(parent, grant))
        return grant

    def _delegation_guards(self, parent: Grant, grant: Grant) -> Iterator[Statement]:
        """Yield the guards of a delegation: agents make them, and each stays in the log."""
        # Both agents still have the keys that the grants name: one that was replaced may be stolen.
        for each in (parent, grant):
            is_admitted = (*self._mesh, each.agent, each.agent_key)
            yield Statement(_SQL["refuse_unless_admitted"], is_admitted, refusal=_NOT_ADMITTED)
        of_parent = (*self._mesh, parent.grant_id)
        in_force = (*of_parent, MAX_DELEGATIONS)
        yield Statement(_SQL["refuse_unless_delegable"], in_force, refusal=_NOT_DELEGABLE)
        least = (*self._mesh, grant.terms.until_ms, MIN_DELEGATION_S * 1_000)
        yield Statement(_SQL["refuse_if_short"], least, refusal=_TOO_SHORT)
        by_agent = (*of_parent, MAX_DELEGATIONS_OF_AGENT)
        yield Statement(_SQL["refuse_if_many_delegations"], by_agent, refusal=_TOO_MANY_DELEGATIONS)

    async def revoke(self, grant_id: str) -> Outcome:
        """Revoke a grant and all that was delegated from it; only the owner may."""
        values = (*self._mesh, grant_id)
        return await self._ops.write(
            new_key(),
            REVOKE,
            canonical({"grant": grant_id}),
            Statement(_SQL["refuse_unless_granted"], values, refusal=_NOT_IN_FORCE),
            Statement(_SQL["revoke"], values),
            *end_usage(self._mesh),
        )

    def _terms(
        self, lines: Sequence[str], lasts: Duration | None, budget: int | None, delegations: int
    ) -> Terms:
        # What asks for approval comes last, as in the document.
        found = sorted(capabilities_of(lines), key=lambda each: each.asks)
        self._refuse_unaskable(found)
        now_ms, until_ms = self._clock.now_ms, None
        if lasts is not None:
            seconds = checked_seconds("lasts", lasts, 0.001, _MAX_VALIDITY_S, hint="for example 8h")
            until_ms = now_ms + round(seconds * 1_000)
        return Terms(tuple(found), now_ms - _SKEW_MS, until_ms, budget, delegations)

    async def _record(self, kind: str, grant: Grant, signed: SignedGrant, *guards: Statement) -> None:
        terms = grant.terms
        row = (grant.grant_id, grant.agent, grant.parent_id, terms.from_ms, terms.until_ms)
        await self._ops.write(
            grant.grant_id,
            kind,
            signed.payload,
            *guards,
            Statement(_SQL["prune"], (*self._mesh, _PRUNED_AT_ONCE, _KEPT_MS)),
            *end_usage(self._mesh),
            Statement(_SQL["grant"], (*self._mesh, *row)),
        )

    # --- asking ----------------------------------------------------------------------------------

    async def history(self) -> GrantHistory:
        """Return the history of grants up to now."""
        return await self._log.history()

    async def admissions(self) -> NodeAdmissions:
        """Return which nodes are admitted, and whether only these count, as the owner has signed it."""
        return await self._mode.admissions()

    async def in_force(self, agent: str | None = None) -> list[GrantRecord]:
        """Return the grants in force, of one agent or of all, in the order of their issue."""
        return list((await self._log.history()).in_force(self._clock.now_ms, agent))

    async def find(self, grant_id: str) -> GrantRecord:
        """Return a grant, also one that has ended; raise `NotKnown` if there is none."""
        return _required(await self._log.history(), grant_id)

    async def check(self, agent: str, act: str | Act) -> GrantDecision:
        """Return whether an agent may do something, such as `lock.acquire on file:src/a`, and why."""
        wanted = Capability.parse(act).act if isinstance(act, str) else act
        history, now_ms = await self._log.history(), self._clock.now_ms
        if not history.needs_grant(agent, self._writer.identity.chain):
            return GrantDecision(True, None, "everything is allowed to agents that are not admitted")
        found = history.grant_for(agent, [wanted], now_ms)
        if found is not None:
            return GrantDecision(True, found.grant_id, "its grant allows it")
        return GrantDecision(False, None, f"no grant of {agent} in force allows `{wanted}` without approval")


def _admission(history: GrantHistory, agent: str) -> AdmittedAgent:
    found = history.admission(agent)
    if found is None:
        raise NotKnown(f"agent {agent!r} is not admitted", hint=_HINTS[_NOT_ADMITTED])
    return found


def _required(history: GrantHistory, grant_id: str) -> GrantRecord:
    found = history.find(grant_id)
    if found is None:
        raise NotKnown(
            f"grant {grant_id!r} not found", hint="run `vox-mesh grant list` to see the grants in force"
        )
    return found
