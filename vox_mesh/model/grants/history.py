"""The history of grants: which agents were admitted, what they were granted, and when it was revoked.

It is read from the log in the order of commits. Only what the owner signed counts, and delegations that the
agents signed whose grants they narrow. The same history decides what an agent may do now, and whether an
entry of the log was done without a grant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.keys import checked_public_key
from vox_mesh.model.base.reserved import PERSON
from vox_mesh.model.grants.capability import Act
from vox_mesh.model.grants.grant import Grant, SignedGrant, chain_fault
from vox_mesh.model.messages.records import checked_agent
from vox_mesh.model.oplog.chain import LogEntry, node_of
from vox_mesh.model.oplog.verification import ADMIT, DELEGATE, GRANT, READ_ERRORS, REVOKE, STRICT

Signer = Callable[[LogEntry], str | None]
"""Returns the key of the owner that signed an entry, or `None`."""

_NEVER: Final = 2**63 - 1


class AdmittedAgent(NamedTuple):
    """An agent that the owner has admitted: from then on it acts by its grants only."""

    agent: str
    public_key: str | None

    @property
    def payload(self) -> str:
        """Return the payload of the op."""
        return canonical({"agent": self.agent, "key": self.public_key})

    @classmethod
    def read(cls, payload: str) -> AdmittedAgent:
        """Return the admission that an op records. Raises one of `READ_ERRORS`."""
        read: Any = parse(payload)
        key = read["key"]
        return cls(checked_agent(read["agent"]), None if key is None else checked_public_key(key))


class GrantRecord(NamedTuple):
    """A grant in the log: the entry that recorded it, and the one that revoked it or a grant before it."""

    grant: Grant
    entry_id: int
    hlc: str
    revoked_at: int = _NEVER

    @property
    def is_revoked(self) -> bool:
        """Return whether it was revoked, or one that it was delegated from."""
        return self.revoked_at != _NEVER

    def was_in_force_at(self, entry_id: int, time_ms: int) -> bool:
        """Return whether it was in force for what was committed as this entry, with this time."""
        is_recorded = self.entry_id < entry_id < self.revoked_at
        return is_recorded and self.grant.terms.is_valid_at(time_ms)


class GrantHistory:
    """Take in the ops about grants, in the order of their commits."""

    def __init__(self, signer: Signer, scope_id: str, owner_node: str | None = None) -> None:
        """`owner_node`: the owner's node, which needs no grant for what it does in its own name."""
        self._signer = signer
        self._scope_id = scope_id
        self._owner_node = owner_node
        self._admitted: dict[str, list[tuple[int, AdmittedAgent]]] = defaultdict(list)
        self._modes: list[tuple[int, bool]] = []
        self._records: dict[str, GrantRecord] = {}
        self._unended: dict[str, dict[str, None]] = defaultdict(dict)
        self._ends: list[tuple[int, str]] = []
        self._ended_ms = 0
        self._children: dict[str, list[str]] = defaultdict(list)
        self.last_id = 0
        """The id of the last entry that was taken in."""

    # --- reading the log -------------------------------------------------------------------------

    def hear(self, entry: LogEntry) -> bool:
        """Take in the next op about grants; return whether it counts."""
        self.last_id = max(self.last_id, entry.id)
        if entry.accepted != 1:
            return False
        try:
            if entry.kind == DELEGATE:
                return self._hear_delegation(entry)
            owner_key = self._signer(entry)
            return owner_key is not None and self._hear_owner(entry, owner_key)
        except READ_ERRORS:
            return False

    def _hear_owner(self, entry: LogEntry, owner_key: str) -> bool:
        if entry.kind == GRANT:
            grant = SignedGrant.from_payload(entry.payload).verified(self._scope_id)
            return chain_fault([grant], owner_key) is None and self._record(entry, grant)
        read: Any = parse(entry.payload)
        if entry.kind == ADMIT:
            admission = AdmittedAgent.read(entry.payload)
            self._admitted[admission.agent].append((entry.id, admission))
        elif entry.kind == STRICT:
            self._modes.append((entry.id, read["strict"] is True))
        elif entry.kind == REVOKE:
            return self._revoke(str(read["grant"]), entry.id)
        return True

    def _hear_delegation(self, entry: LogEntry) -> bool:
        grant = SignedGrant.from_payload(entry.payload).verified(self._scope_id)
        chain = [*self.chain(grant.parent_id or ""), grant]
        if len(chain) < 2 or chain_fault(chain, chain[0].issuer_key) is not None:
            return False
        if not self.may_delegate(chain[-2]):
            return False
        parent = self._records[chain[-2].grant_id]
        return parent.revoked_at > entry.id and self._record(entry, grant)

    def _record(self, entry: LogEntry, grant: Grant) -> bool:
        if grant.grant_id in self._records or grant.grant_id != entry.op_id:
            return False
        self._records[grant.grant_id] = GrantRecord(grant, entry.id, entry.hlc)
        self._children[grant.parent_id or ""].append(grant.grant_id)
        self._unended[grant.agent][grant.grant_id] = None
        if (until_ms := grant.terms.until_ms) is not None:
            heappush(self._ends, (until_ms, grant.grant_id))
        return True

    def _revoke(self, grant_id: str, entry_id: int) -> bool:
        found = [each for each in self._with_delegations(grant_id) if not self._records[each].is_revoked]
        for each in found:
            self._records[each] = self._records[each]._replace(revoked_at=entry_id)
            self._unended[self._records[each].grant.agent].pop(each, None)
        return bool(found)

    def _with_delegations(self, grant_id: str) -> Iterator[str]:
        if grant_id in self._records:
            yield grant_id
            for child in self._children.get(grant_id, ()):
                yield from self._with_delegations(child)

    # --- what it says ----------------------------------------------------------------------------

    @property
    def is_in_use(self) -> bool:
        """Return whether any agent was ever admitted, or the mode was ever strict."""
        return bool(self._admitted or self._modes)

    @property
    def records(self) -> list[GrantRecord]:
        """Return all grants, in the order of their commits."""
        return list(self._records.values())

    def in_force(self, time_ms: int, agent: str | None = None) -> Iterator[GrantRecord]:
        """Yield the grants in force at this time, of one agent or of all, in the order of their commits."""
        for record in self._unended_at(time_ms, agent):
            grant = record.grant
            if agent in (None, grant.agent) and not record.is_revoked and grant.terms.is_valid_at(time_ms):
                yield record

    def _unended_at(self, time_ms: int, agent: str | None) -> list[GrantRecord]:
        """Return all grants of an agent, or of all, that are not revoked and have not ended, in order.

        Ended grants cost nothing, except for times before the latest of their ends: for these, all
        grants are returned.
        """
        while self._ends and self._ends[0][0] <= time_ms:
            self._ended_ms, grant_id = heappop(self._ends)
            self._unended[self._records[grant_id].grant.agent].pop(grant_id, None)
        if time_ms < self._ended_ms:
            return self.records
        agents = list(self._unended) if agent is None else [agent]
        found = [self._records[grant_id] for each in agents for grant_id in self._unended.get(each, ())]
        return sorted(found, key=lambda each: each.entry_id) if agent is None else found

    def find(self, grant_id: str) -> GrantRecord | None:
        """Return a grant by its id."""
        return self._records.get(grant_id)

    def chain(self, grant_id: str) -> list[Grant]:
        """Return a grant with the ones it was delegated from, the owner's first; empty if unknown."""
        found: list[Grant] = []
        record = self._records.get(grant_id)
        while record is not None:
            found.insert(0, record.grant)
            record = self._records.get(record.grant.parent_id or "")
        return found

    def admission(self, agent: str) -> AdmittedAgent | None:
        """Return the latest admission of an agent."""
        found = self._admitted.get(agent)
        return found[-1][1] if found else None

    @property
    def admitted(self) -> list[AdmittedAgent]:
        """Return all admitted agents."""
        return [each[-1][1] for each in self._admitted.values()]

    def may_delegate(self, grant: Grant) -> bool:
        """Return whether the agent of a grant still has its key: one that was replaced may be stolen."""
        admitted = self.admission(grant.agent)
        return admitted is not None and admitted.public_key == grant.agent_key

    def is_strict(self, entry_id: int = _NEVER) -> bool:
        """Return whether nothing was allowed without a grant when an entry was committed, or now."""
        modes = [is_strict for at, is_strict in self._modes if at < entry_id]
        return bool(modes) and modes[-1]

    def needs_grant(self, agent: str, chain: str, entry_id: int = _NEVER) -> bool:
        """Return whether an agent, acting through a chain, needed a grant at an entry, or needs one now."""
        if node_of(chain) == self._owner_node and self.acts_as_node(agent, chain, entry_id):
            return False
        is_admitted = any(at < entry_id for at, _ in self._admitted.get(agent, ()))
        return is_admitted or self.is_strict(entry_id)

    def acts_as_node(self, agent: str, chain: str, entry_id: int = _NEVER) -> bool:
        """Return whether an agent acts through a chain with the rights of its node.

        The node does in its own name, and people do. A name that the owner has admitted is an agent's.
        """
        is_admitted = any(at < entry_id for at, _ in self._admitted.get(agent, ()))
        return agent == node_of(chain) or (agent.startswith(PERSON) and not is_admitted)

    def grant_for(self, agent: str, acts: Iterable[Act], time_ms: int) -> Grant | None:
        """Return a grant of an agent in force that covers all of these acts, or `None`."""
        return next(self.grants_for(agent, acts, time_ms), None)

    def asking_grant_for(self, agent: str, acts: Iterable[Act], time_ms: int) -> Grant | None:
        """Return a grant of an agent in force that covers all of these acts, some after an approval."""
        return next(self.grants_for(agent, acts, time_ms, may_ask=True), None)

    def grants_for(
        self, agent: str, acts: Iterable[Act], time_ms: int, *, may_ask: bool = False
    ) -> Iterator[Grant]:
        """Yield the grants of an agent in force that cover all of these acts, with `may_ask` by approval."""
        wanted = list(acts)
        for record in self.in_force(time_ms, agent):
            found = [record.grant.terms.find(act) for act in wanted]
            if all(each is not None and each.asks <= may_ask for each in found):
                yield record.grant

    def allows_part_of(self, agent: str, act: Act, time_ms: int) -> bool:
        """Return whether a grant of an agent in force covers an act without approval, or a part of it."""
        return any(
            not each.asks and (each.act.covers(act) or act.covers(each.act))
            for record in self.in_force(time_ms, agent)
            for each in record.grant.terms.capabilities
        )

    def fault_of(
        self, entry: LogEntry, acts: Sequence[Act], time_ms: int, *, may_ask: bool = False
    ) -> str | None:
        """Return why an entry, which did these acts, was not allowed; or `None`.

        `may_ask`: a grant that allows them after an approval will do.
        """
        agent = entry.actor
        if entry.grant is None:
            needs = self.needs_grant(agent, entry.node_id, entry.id)
            return f"{agent} had no grant for it" if needs else None
        record = self._records.get(entry.grant)
        if record is None or record.grant.agent != agent:
            return f"its grant {entry.grant} is none of {agent}"
        if not record.was_in_force_at(entry.id, time_ms):
            return f"its grant {entry.grant} was not in force"
        for act in acts:
            found = record.grant.terms.find(act)
            if found is None or found.asks > may_ask:
                return f"its grant {entry.grant} does not allow `{act}`"
        return None
