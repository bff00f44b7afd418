"""Approvals: what an agent asked for, who decided on it, and whether the decision counts; pure.

An agent whose grant says `ask` records what it would do as a request. The owner, or an agent that may do it
itself, approves or denies it. What is approved is done once, exactly as it was asked, by the op that the
request names.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, parse, text_id
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.grants.capability import Act
from vox_mesh.model.grants.history import GrantHistory, Signer
from vox_mesh.model.grants.needs import NEEDS, acts_of_op, stamps_of_op
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import APPROVE, DENY, READ_ERRORS, REQUEST

MAX_ASKED: Final = 64 * 1024
"""The maximum size of what is asked, in bytes: a person reads it."""

MAX_REASON: Final = 1_024


class ApprovalState(StrEnum):
    """The states of an approval."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    APPLIED = "applied"
    REFUSED = "refused"
    """It was approved, and the operation was refused."""
    EXPIRED = "expired"


class AskedOperation(NamedTuple):
    """An operation: the kind of its op, and its arguments as canonical JSON.

    `deps`: the ops that it depends on, if its agent has chosen them. Services choose those of their ops.
    """

    name: str
    arguments: str
    deps: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, payload: str, deps: Iterable[str] = ()) -> AskedOperation:
        """Return the operation of an op."""
        read: Any = parse(payload)
        stamps = stamps_of_op(kind)
        arguments = {name: value for name, value in read.items() if name not in stamps}
        chosen = () if kind in NEEDS else tuple(deps)
        return cls(kind, canonical(arguments, max_depth=None), chosen)

    @property
    def digest(self) -> str:
        """Return the digest that an approval names."""
        return text_id(canonical([self.name, self.arguments, *([list(self.deps)] if self.deps else [])]))

    def is_done_by(self, entry: LogEntry) -> bool:
        """Return whether an op is this operation. Raises one of `READ_ERRORS`."""
        done = AskedOperation.of(entry.kind, entry.payload)
        return done == self._replace(deps=()) and {*self.deps} <= {*parse(entry.causal_deps)}

    @property
    def values(self) -> dict[str, Any]:
        """Return the arguments by name."""
        values: dict[str, Any] = parse(self.arguments)
        return values


class ApprovalRequest(NamedTuple):
    """What an agent asks for, by which grant, and until when it can be approved and applied."""

    approval_id: str
    agent: str
    grant_id: str
    operation: AskedOperation
    expires_ms: int
    applied_as: str
    """The id of the op that applies it: the log has it once."""
    asked_ms: int = 0

    @property
    def payload(self) -> str:
        """Return the payload of its op, which names the agent and the grant besides."""
        payload: dict[str, Any] = {
            "operation": self.operation.name,
            "arguments": self.operation.values,
            "expires_ms": self.expires_ms,
            "applied_as": self.applied_as,
        }
        if self.operation.deps:
            payload["deps"] = list(self.operation.deps)
        return canonical(payload, max_depth=None)

    @classmethod
    def read(cls, entry: LogEntry) -> ApprovalRequest:
        """Return the request that an op records. Raises one of `READ_ERRORS`."""
        read: Any = parse(entry.payload)
        if entry.kind != REQUEST or entry.agent is None or entry.grant is None:
            raise BadValue("an agent must ask by its grant")
        if not is_ulid(read["applied_as"]):
            raise BadValue(f"applied_as must be a ULID, got {read['applied_as']!r}")
        arguments, deps = canonical(read["arguments"], max_depth=None), map(str, read.get("deps", ()))
        operation = AskedOperation.of(str(read["operation"]), arguments, deps)
        return cls(
            entry.op_id,
            entry.agent,
            entry.grant,
            operation,
            int(read["expires_ms"]),
            read["applied_as"],
            entry.time_ms,
        )

    def acts(self) -> list[Act]:
        """Return what the agent would do. Raises one of `READ_ERRORS`."""
        return acts_of_op(self.operation.name, self.operation.arguments)


class Decision(NamedTuple):
    """An approval of exactly what was asked, or its denial."""

    approval_id: str
    digest: str
    reason: str

    @property
    def payload(self) -> str:
        """Return the payload of its op."""
        return canonical({"approval": self.approval_id, "digest": self.digest, "reason": self.reason})

    @classmethod
    def read(cls, payload: str) -> Decision:
        """Return the decision that an op records. Raises one of `READ_ERRORS`."""
        read: Any = parse(payload)
        return cls(str(read["approval"]), str(read["digest"]), str(read["reason"]))


class Approval(NamedTuple):
    """What an agent asked for and what became of it, as signed ops say."""

    request: ApprovalRequest
    state: ApprovalState
    decided_by: str | None = None
    decided_ms: int | None = None
    reason: str | None = None
    """That of the decision."""
    refusal: str | None = None
    """Why the operation was refused though it was approved."""
    decision_op: str | None = None

    @property
    def is_open(self) -> bool:
        """Return whether it may still be decided or applied."""
        return self.state in (ApprovalState.PENDING, ApprovalState.APPROVED)

    @property
    def jobs(self) -> list[str]:
        """Return the jobs that the operation names."""
        found = self.request.operation.values.get("jobs")
        return [str(each["job_id"]) for each in found] if isinstance(found, list) else []


def request_fault(entry: LogEntry, request: ApprovalRequest, grants: GrantHistory) -> str | None:
    """Return why an op does not ask for anything that its agent's grant lets it ask for; or `None`."""
    return grants.fault_of(entry, request.acts(), request.asked_ms, may_ask=True)


def approving_grant(grants: GrantHistory, request: ApprovalRequest, agent: str, time_ms: int) -> str | None:
    """Return a grant by which an agent may approve a request, or `None`.

    It allows the agent to do itself what is asked, and was not delegated by the agent that asks.
    """
    if agent == request.agent:
        return None
    found = grants.grants_for(agent, request.acts(), time_ms)
    return next((each.grant_id for each in found if not _is_through(grants, each.grant_id, request)), None)


def approval_fault(
    entry: LogEntry, request: ApprovalRequest, grants: GrantHistory, owner_signed: Signer
) -> str | None:
    """Return why an op does not approve a request; or `None`. Whether its author signed it is not checked."""
    decision = Decision.read(entry.payload)
    if entry.kind != APPROVE or decision.approval_id != request.approval_id:
        return "it does not approve this"
    if decision.digest != request.operation.digest:
        return "it approves other arguments"
    time_ms = entry.time_ms
    if time_ms >= request.expires_ms:
        return "it came too late"
    agent = entry.actor
    if agent == request.agent:
        return f"{agent} approved its own request"
    if entry.grant is None:
        is_owner = owner_signed(entry) is not None and grants.acts_as_node(agent, entry.node_id, entry.id)
        return None if is_owner else f"{agent} is not the owner, and named no grant"
    if _is_through(grants, entry.grant, request):
        return f"its grant {entry.grant} was delegated by {request.agent}"
    return grants.fault_of(entry, request.acts(), time_ms)


def _is_through(grants: GrantHistory, grant_id: str, request: ApprovalRequest) -> bool:
    """Return whether a grant was delegated by the agent that asks, directly or over others."""
    return any(each.agent == request.agent for each in grants.chain(grant_id))


class ApprovalHistory:
    """Take in the authentic ops about approvals, in the order of their commits, to check what was done."""

    def __init__(self, grants: GrantHistory, owner_signed: Signer) -> None:
        self._grants = grants
        self._owner_signed = owner_signed
        self._requests: dict[str, ApprovalRequest] = {}
        self._decided: dict[str, LogEntry] = {}
        self._by_application: dict[str, str] = {}

    def hear(self, entry: LogEntry) -> None:
        """Take in the next op about approvals; what does not count is left out."""
        if entry.accepted != 1:
            return
        try:
            if entry.kind == REQUEST:
                request = ApprovalRequest.read(entry)
                if request_fault(entry, request, self._grants) is None:
                    self._requests[request.approval_id] = request
                    self._by_application.setdefault(request.applied_as, request.approval_id)
                return
            approval_id = Decision.read(entry.payload).approval_id
            asked = self._requests.get(approval_id)
            if asked is None or approval_id in self._decided:
                return
            if entry.kind == DENY or approval_fault(entry, asked, self._grants, self._owner_signed) is None:
                self._decided[approval_id] = entry
        except READ_ERRORS:
            return

    def fault_of(self, entry: LogEntry) -> str | None:
        """Return why an op, which its grant allows after an approval only, has none; or `None`."""
        approval_id = self._by_application.get(entry.op_id)
        if approval_id is None:
            return "no approval names it"
        request, decided = self._requests[approval_id], self._decided.get(approval_id)
        if (request.agent, request.grant_id) != (entry.agent, entry.grant):
            return f"{request.agent} asked for approval {approval_id}"
        if not request.operation.is_done_by(entry):
            return f"approval {approval_id} is for something else"
        if decided is None or decided.kind != APPROVE or decided.id > entry.id:
            return f"approval {approval_id} was not given"
        if entry.time_ms >= request.expires_ms:
            return f"approval {approval_id} had expired"
        return None
