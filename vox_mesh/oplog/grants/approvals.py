"""Approvals: agents ask for what their grants allow after an approval only, and people decide.

What was asked and who approved it are signed ops in the log; a row of `approvals` only says which ops to look
at. What is approved is applied once, by any node: the log has the op that applies it once, under the id that
the request names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

from vox_mesh.errors import (
    AWAY,
    ApprovalNeeded,
    ApprovalPending,
    BadValue,
    MeshError,
    NotAuthentic,
    NotKnown,
    Refused,
    StaleIncarnation,
    StoreClosed,
)
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.model.grants.approval import (
    MAX_ASKED,
    MAX_REASON,
    Approval,
    ApprovalRequest,
    ApprovalState,
    AskedOperation,
    Decision,
    approval_fault,
    approving_grant,
    request_fault,
)
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import APPROVE, DENY, OWNER_ONLY, READ_ERRORS, REQUEST
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits, applying
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.acting import acting_as
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement, guard, new_key
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

MAX_OPEN: Final = 1_000
"""The maximum number of open approvals."""

MAX_OPEN_OF_AGENT: Final = 50

LIFETIME_MS: Final = 24 * 3_600_000
"""How long an approval can be given and applied."""

_SQL: Final = named("approvals")
_OPLOG: Final = named("oplog")
_RETENTION_MS: Final = 7 * 24 * 3_600_000
_PRUNED_AT_ONCE: Final = 100
MAX_LISTED: Final = 100
_MAX_APPLIED: Final = 20
_GRACE_MS: Final = 2_000
"""How long the process that approved something has to apply it, before others do."""

_MIN_WAIT_S: Final = 0.05

_TOO_MANY: Final = "too_many_approvals"
_NOT_OPEN: Final = "approval_not_open"
_NOT_AS_ASKED: Final = "not_as_asked"
_NOTHING_TO_DO: Final = "nothing_to_do"
_OWN: Final = "own_request"
_NOT_APPROVER: Final = "not_an_approver"
_HINTS: Final = {
    _TOO_MANY: f"an agent may have {MAX_OPEN_OF_AGENT} open approvals, and all agents {MAX_OPEN:,}: have"
    " some of them decided first",
    _NOT_OPEN: "it was decided before, or has expired: see `vox-mesh approvals show`",
    _OWN: "another agent, or the owner, has to decide on it",
    _NOT_APPROVER: "the owner decides on it, or an agent whose own grant allows it without an approval and"
    " was not delegated by the agent that asks",
}

ApplyOperation = Callable[[AskedOperation], Awaitable[object]]
"""Does what was asked."""


class _Row(NamedTuple):
    """What the table says."""

    approval_id: str
    state: str
    decision_op: str | None


class _ApprovedStep(NamedTuple):
    """Apply what was approved: exactly as it was asked, under the id that the request names."""

    request: ApprovalRequest
    decision_op: str
    guards: tuple[Statement, ...]

    @property
    def key(self) -> str:
        return self.request.applied_as

    def bind(self, op: Op) -> Op:
        if AskedOperation.of(op.kind, op.payload, op.deps) != self.request.operation:
            raise Refused(_NOT_AS_ASKED, statement=0)
        return op._replace(deps=tuple(dict.fromkeys((*op.deps, self.request.approval_id, self.decision_op))))


class Approvals:
    """Asks for approvals, decides on them, and applies what was approved."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        permits: Permits,
        grant_log: GrantLog,
        ownership: Ownership,
        trusted_keys: TrustedKeys,
        operation: Callable[[str], ApplyOperation | None],
    ) -> None:
        """`operation` returns what applies the operations of a name; `None` if this process can't do them."""
        self._store = store
        self._mesh = store.mesh_id
        self._writer = writer
        self._clock = clock
        self._permits = permits
        self._grant_log = grant_log
        self._ownership = ownership
        self._trusted_keys = trusted_keys
        self._operation = operation

    # --- asking ----------------------------------------------------------------------------------

    async def ask(self, op: Op, needed: ApprovalNeeded) -> ApprovalPending:
        """Record what an agent wants to do, and return the error that says so.

        Asking again for the same returns the approval that is pending.
        """
        if self._operation(op.kind) is None:
            raise needed
        operation = AskedOperation.of(op.kind, op.payload, op.deps)
        if len(operation.arguments) > MAX_ASKED:
            raise BadValue(
                f"what needs an approval must have at most {MAX_ASKED} bytes, got {len(operation.arguments)}",
                hint="ask for less at a time",
            )
        values = (*self._mesh, needed.agent, operation.digest)
        known = (await self._store.read(_SQL["pending_of"], values, fresh=True)).value
        if known is not None:
            with suppress(NotAuthentic):
                return _pending((await self.find(known)).request)
        request = await self._request(operation, needed)
        await self._record(request)
        return _pending(request)

    async def _request(self, operation: AskedOperation, needed: ApprovalNeeded) -> ApprovalRequest:
        now_ms = self._clock.now_ms
        expires_ms = now_ms + LIFETIME_MS
        record = (await self._grant_log.history()).find(needed.grant_id)
        if record is not None and record.grant.terms.until_ms is not None:
            expires_ms = min(expires_ms, record.grant.terms.until_ms)
        return ApprovalRequest(
            new_key(), needed.agent, needed.grant_id, operation, expires_ms, new_key(), now_ms
        )

    async def _record(self, request: ApprovalRequest) -> None:
        self._clock.refuse_if_off()
        mesh, agent = self._mesh, request.agent
        row = (request.approval_id, agent, request.operation.digest, request.expires_ms)
        limits = (agent, MAX_OPEN_OF_AGENT, MAX_OPEN)
        script = self._permits.by(agent, request.grant_id).script(
            Statement(_SQL["prune"], (*mesh, _RETENTION_MS, _PRUNED_AT_ONCE)),
            Statement(_SQL["refuse_if_many"], (*mesh, *limits), refusal=_TOO_MANY),
            Statement(_SQL["ask"], (*mesh, *row)),
            op=Op(REQUEST, request.payload, signed=True),
            key=request.approval_id,
        )
        await self._write(script)

    # --- deciding --------------------------------------------------------------------------------

    async def approve(self, approval_id: str, reason: str = "") -> Approval:
        """Approve what was asked, and apply it; return what became of it.

        The owner may, and an agent that may do it itself; not the agent that asks, nor by a grant that this
        one delegated.
        """
        approval = await self._decide(approval_id, APPROVE, reason)
        try:
            return await self.apply(approval_id)
        except AWAY as error:
            _log.warning("approved, and not applied yet: approval_id=%s: %s", approval_id, error.line)
            return approval

    async def deny(self, approval_id: str, reason: str = "") -> Approval:
        """Deny what was asked. Those who may approve it may, and the agent that asks."""
        return await self._decide(approval_id, DENY, reason)

    async def _decide(self, approval_id: str, kind: str, reason: str) -> Approval:
        if len(reason) > MAX_REASON:
            raise BadValue(f"reason must have at most {MAX_REASON} characters, got {len(reason)}")
        approval = await self.find(approval_id)
        request, op_id = approval.request, new_key()
        permit, refusal = await self._approver(request, kind)
        values = (*self._mesh, approval_id)
        state = ApprovalState.APPROVED if kind == APPROVE else ApprovalState.DENIED
        decision = Decision(approval_id, request.operation.digest, reason)
        script = permit.script(
            *([] if refusal is None else [guard("0", refusal=refusal)]),
            Statement(_SQL["refuse_unless_pending"], values, refusal=_NOT_OPEN),
            Statement(_SQL["decide"], (*values, op_id, state.value)),
            op=Op(kind, decision.payload, (approval_id,), signed=True),
            key=op_id,
        )
        self._clock.refuse_if_off()
        await self._write(script)
        return approval._replace(
            state=state,
            decided_by=permit.agent,
            decided_ms=self._clock.now_ms,
            reason=reason,
            decision_op=op_id,
        )

    async def _approver(self, request: ApprovalRequest, kind: str) -> tuple[Permit, str | None]:
        """Return the permit by which the acting agent decides on a request, and why it may not."""
        author, agent = self._writer.identity, self._writer.acting_agent
        history = await self._grant_log.history()
        grant_id = approving_grant(history, request, agent, self._clock.now_ms)
        if grant_id is not None:
            return self._permits.by(agent, grant_id), None
        permit = self._permits.without_grant(agent)
        if agent == request.agent:
            return permit, _OWN if kind == APPROVE else None
        is_owner = history.acts_as_node(agent, author.chain) and await self._ownership.may_act(
            author.chain, author.key.public
        )
        return permit, None if is_owner else _NOT_APPROVER

    # --- applying --------------------------------------------------------------------------------

    async def apply_due(self) -> None:
        """Apply what was approved by processes that have gone before they could apply it."""
        if not self._clock.is_set:
            return
        values = (*self._mesh, _GRACE_MS, _MAX_APPLIED, self._clock.now_ms)
        for row in await self._store.read(_SQL["due"], values):
            approval_id: str = row["approval_id"]
            try:
                await self.apply(approval_id)
            except (StaleIncarnation, StoreClosed):
                raise
            except MeshError as error:
                _log.warning("approval not applied: approval_id=%s: %s", approval_id, error.line)

    async def apply(self, approval_id: str) -> Approval:
        """Apply what was approved, unless it is applied already; return what became of it.

        If the grant is revoked, the approval has expired or the operation is refused, that is recorded. What
        this process can't do is left to others: only the owner's nodes do what takes the owner's key.
        """
        approval = await self.find(approval_id)
        if approval.state is not ApprovalState.APPROVED or approval.decision_op is None:
            await self._mark(approval)
            return approval
        request = approval.request
        operation = self._operation(request.operation.name)
        if operation is None or not await self._may_author(request.operation.name):
            return approval
        permit = await self._approved_permit(request, approval.decision_op)
        refusal: MeshError = Refused(_NOTHING_TO_DO, statement=0)
        with acting_as(request.agent), applying(permit):
            try:
                await operation(request.operation)
            except (*AWAY, StaleIncarnation, StoreClosed):
                raise
            except MeshError as error:
                refusal = error
        approval = await self.find(approval_id)
        if approval.is_open:
            await self._record_refusal(request, permit, refusal)
            approval = await self.find(approval_id)
        await self._mark(approval)
        return approval

    async def _may_author(self, kind: str) -> bool:
        """Return whether this process may write ops of a kind: some only the owner's nodes may."""
        author = self._writer.identity
        return kind not in OWNER_ONLY or await self._ownership.may_act(author.chain, author.key.public)

    async def _approved_permit(self, request: ApprovalRequest, decision_op: str) -> Permit:
        values = (*self._mesh, request.approval_id)
        guards = (
            Statement(_SQL["refuse_unless_approved"], (*values, decision_op), refusal=_NOT_OPEN),
            Statement(_SQL["end"], (*values, ApprovalState.APPLIED.value)),
        )
        step = _ApprovedStep(request, decision_op, guards)
        permit = self._permits.by(request.agent, request.grant_id)._replace(approval=step)
        history = await self._grant_log.history()
        record = history.find(request.grant_id)
        if record is None:
            return permit
        return permit._replace(limits=self._permits.limits_of(record.grant, request.acts(), history))

    async def _record_refusal(self, request: ApprovalRequest, permit: Permit, error: MeshError) -> None:
        """Record in the log why an operation is refused, unless the op that applies it is there already."""
        reason = error.reason if isinstance(error, Refused) else str(error)
        op = permit.named_in(Op(*request.operation))
        with suppress(Refused):
            await self._store.write(Script(guard("0", refusal=reason), key=request.applied_as, op=op))

    async def _mark(self, approval: Approval) -> None:
        """Let the table say that an operation was refused, as the log does: a row of it may be behind."""
        if approval.state in (ApprovalState.APPLIED, ApprovalState.REFUSED):
            values = (*self._mesh, approval.request.approval_id, approval.state.value)
            await self._store.write(Script(Statement(_SQL["end"], values)))

    # --- reading ---------------------------------------------------------------------------------

    async def find(self, approval_id: str) -> Approval:
        """Return an approval. Raises `NotKnown`, or `NotAuthentic` if no signed op asks for it."""
        row = await self._row(approval_id)
        if row is None:
            raise NotKnown(
                f"approval {approval_id!r} not found",
                hint="run `vox-mesh approvals list` to see the open ones",
            )
        found = await self._read(row)
        if found is None:
            raise NotAuthentic(
                f"approval {approval_id} is not in the log: no agent has signed what it asks for",
                hint="do not approve it: its row was planted",
            )
        return found

    async def listed(
        self, *, every: bool = False, after: str | None = None, limit: int = MAX_LISTED
    ) -> list[Approval]:
        """Return the open approvals, the oldest first; or all that are kept, the newest first.

        Rows that no signed op has led to are left out. `after`: the id of the last one of the page before.
        """
        statement, found = _SQL["newest" if every else "open"], list[Approval]()
        while len(found) < limit:
            rows = await self._store.read(statement, (*self._mesh, limit - len(found), after))
            if not rows:
                break
            after = rows[-1]["approval_id"]
            read = [await self._read(_Row._make(row)) for row in rows]
            found += [each for each in read if each is not None]
        return found

    async def wait(self, approval_id: str, *, timeout: Duration | None = None) -> Approval:
        """Wait until an approval is denied, applied, refused or has expired.

        Raises `TimeoutError` after `timeout` seconds.
        """
        async with (
            asyncio.timeout(seconds_or_none("timeout", timeout)),
            aclosing(self.watch(approval_id)) as states,
        ):
            return [state async for state in states][-1]

    async def watch(self, approval_id: str) -> AsyncGenerator[Approval, None]:
        """Yield an approval now and after each change, until it is denied, applied, refused or expired."""
        last: _Row | None = None
        async for turn in self._store.changes():
            with turn.retry_if_unavailable():
                row = await self._row(approval_id, fresh=last is None)
                if last is None or row != last:
                    approval, last = await self.find(approval_id), row
                    yield approval
                    if not approval.is_open:
                        return
                turn.wait_at_most(
                    max(_MIN_WAIT_S, (approval.request.expires_ms - self._clock.now_ms) / 1_000)
                )

    async def _row(self, approval_id: str, *, fresh: bool = True) -> _Row | None:
        rows = await self._store.read(_SQL["of_id"], (*self._mesh, approval_id), fresh=fresh)
        return _Row._make(rows[0]) if rows else None

    async def _read(self, row: _Row) -> Approval | None:
        """Return what signed ops say about an approval; `None` if none asks for it."""
        request = await self.request(row.approval_id)
        if request is None:
            return None
        found = await self._decided(Approval(request, ApprovalState.PENDING), row.decision_op)
        applied = await self._entry(request.applied_as)
        if applied is not None:
            if applied.accepted == 1:
                return found._replace(state=ApprovalState.APPLIED)
            return found._replace(state=ApprovalState.REFUSED, refusal=applied.reason)
        is_over = found.is_open and request.expires_ms <= self._clock.now_ms
        return found._replace(state=ApprovalState.EXPIRED) if is_over else found

    async def request(self, approval_id: str) -> ApprovalRequest | None:
        """Return what was asked, which never changes; `None` if no signed op asks for it."""
        asked = await self._entry(approval_id)
        if asked is None or asked.accepted != 1:
            return None
        grants = await self._grant_log.history()
        try:
            request = ApprovalRequest.read(asked)
            return request if request_fault(asked, request, grants) is None else None
        except READ_ERRORS:
            return None

    async def _decided(self, approval: Approval, decision_op: str | None) -> Approval:
        """Return an approval with the decision on it, if an op that counts is one."""
        entry = None if decision_op is None else await self._entry(decision_op)
        if entry is None or entry.accepted != 1:
            return approval
        try:
            decision = Decision.read(entry.payload)
            state = ApprovalState.DENIED
            if decision.approval_id != approval.request.approval_id or entry.kind not in (APPROVE, DENY):
                return approval
            if entry.kind == APPROVE:
                grants, witness = await self._grant_log.history(), await self._ownership.witness()
                if approval_fault(entry, approval.request, grants, witness.owners.signer) is not None:
                    return approval
                state = ApprovalState.APPROVED
        except READ_ERRORS:
            return approval
        return approval._replace(
            state=state,
            decided_by=entry.agent or entry.node_id,
            decided_ms=entry.time_ms,
            reason=decision.reason,
            decision_op=entry.op_id,
        )

    async def _entry(self, op_id: str) -> LogEntry | None:
        """Return the entry of an op that its author signed, with its verdict; `None` if there is none."""
        rows = await self._store.read(_OPLOG["entries_of"], (*self._mesh, canonical([op_id])), fresh=True)
        if not rows:
            return None
        entry = LogEntry._make(rows[0])
        if not await self._trusted_keys.is_authentic(entry):
            return None
        return None if await self._trusted_keys.has_changed_verdict(entry) else entry

    async def _write(self, script: Script) -> None:
        try:
            await self._store.write(script)
        except Refused as refused:
            refused.hint = _HINTS.get(refused.reason, refused.hint)
            raise


def _pending(request: ApprovalRequest) -> ApprovalPending:
    return ApprovalPending(request.approval_id, request.agent, iso_of(request.expires_ms))
