"""Grants: admitted agents act by their grants only, and by none of them after its revocation.

Ops name their grants in the log. Messages, locks and takes of jobs are in tables: their witnesses say behind
which entry of the log each was committed, so that the grants in force at that moment are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from proof.final_state import Row, final_rows
from proof.history import History
from proof.verdicts import Check
from proof.witness import ACQUISITIONS, SENDS, TAKES
from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.audit import APPROVAL_OPS, GRANT_OPS, GrantAudit
from vox_mesh.model.grants.capability import ACQUIRE, SEND, TAKE, Act
from vox_mesh.model.grants.grant import Grant, SignedGrant
from vox_mesh.model.grants.history import GrantHistory, GrantRecord
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import GRANT


class _Deed(NamedTuple):
    """What an agent did, in a table."""

    agent: str
    act: Act
    log_id: int
    """The last entry of the log before it."""
    at_ms: int

    def is_behind(self, record: GrantRecord) -> bool:
        """Return whether the grant was recorded before it, and has not expired."""
        return record.entry_id <= self.log_id and record.grant.terms.is_valid_at(self.at_ms)

    def __str__(self) -> str:
        return f"`{self.act}` of {self.agent} after entry {self.log_id}"


class _Grants:
    """The grants of a run, and what the agents did that need one."""

    def __init__(self, history: History) -> None:
        rows = sorted(final_rows(history, "agent_oplog"), key=lambda row: row["id"])
        self.entries = [LogEntry(**row) for row in rows if row["accepted"]]
        scopes = {row["scope_id"] for row in final_rows(history, "admitted_agents")}
        self.history = GrantHistory(_issuer, *scopes or {""})
        for entry in self.entries:
            if entry.kind in GRANT_OPS:
                self.history.hear(entry)
        self._run = history

    def deeds(self) -> Iterator[_Deed]:
        """Yield what agents did that needed a grant at that moment."""
        for deed in self._all_deeds():
            if self.history.needs_grant(deed.agent, "", deed.log_id + 1):
                yield deed

    def _all_deeds(self) -> Iterator[_Deed]:
        for row in final_rows(self._run, SENDS.name):
            yield _deed(row, row["sender_agent"], Act(SEND, row["receiver_agent"]))
        for row in final_rows(self._run, ACQUISITIONS.name):
            yield _deed(row, row["holder_agent"], Act(ACQUIRE, row["lock_key"]))
        kinds = {row["job_id"]: row["kind"] for row in final_rows(self._run, "jobs")}
        for row in final_rows(self._run, TAKES.name):
            if row["job_id"] in kinds:
                yield _deed(row, row["agent_id"], Act(TAKE, kinds[row["job_id"]]))

    def covering(self, deed: _Deed) -> list[GrantRecord]:
        """Return the grants that allowed a deed, also if they were revoked before it."""
        own = [each for each in self.history.records if each.grant.agent == deed.agent]
        return [each for each in own if deed.is_behind(each) and _allows(each, deed.act)]


def _issuer(entry: LogEntry) -> str:
    """Return the key that an entry of the owner names. That the owner has signed it is another check."""
    if entry.kind != GRANT:
        return ""
    return Grant.read(SignedGrant.from_payload(entry.payload).document).issuer_key


def _deed(row: Row, agent: str, act: Act) -> _Deed:
    return _Deed(agent, act, row["log_id"], row["at_ms"])


def _allows(record: GrantRecord, act: Act) -> bool:
    found = record.grant.terms.find(act)
    return found is not None and not found.asks


def nothing_without_grant(history: History) -> Iterator[str | int]:
    """Audit the log, and find the grant of each message, lock and take."""
    grants = _Grants(history)
    approvals = ApprovalHistory(grants.history, _issuer)
    audit = GrantAudit(grants.history, approvals)
    for entry in grants.entries:
        if entry.kind in APPROVAL_OPS:
            approvals.hear(entry)
    for entry in grants.entries:
        yield int(entry.grant is not None)
        audit.check(entry)
    for entry in grants.entries:
        audit.hear_schedule(entry)
    for finding in audit.findings:
        yield f"op {finding.op_id} of {finding.chain}: {finding.what}"
    for deed in grants.deeds():
        yield 1
        if not grants.covering(deed):
            yield f"no grant allowed {deed}"


def revoked_at_commit(history: History) -> Iterator[str | int]:
    """Compare the revocations in the log with all that was committed after them."""
    grants = _Grants(history)
    revoked_at = {each.grant.grant_id: each.revoked_at for each in grants.history.records if each.is_revoked}
    yield len(revoked_at)
    for entry in grants.entries:
        if entry.grant is not None and revoked_at.get(entry.grant, entry.id) < entry.id:
            yield f"op {entry.op_id} was done by grant {entry.grant}, which had been revoked"
    for deed in grants.deeds():
        covering = grants.covering(deed)
        if covering and all(each.revoked_at <= deed.log_id for each in covering):
            yield f"all grants that allowed {deed} had been revoked"
    for row in final_rows(history, TAKES.name):
        if revoked_at.get(row["grant_id"], row["log_id"] + 1) <= row["log_id"]:
            yield f"job {row['job_id']} was taken by grant {row['grant_id']}, which had been revoked"
    for row in final_rows(history, "grants"):
        if row["grant_id"] in revoked_at:
            yield f"grant {row['grant_id']} of {row['agent_id']} was revoked, and is in force"


GRANT_CHECKS: Final = (
    Check(
        "nothing-without-grant",
        "an admitted agent does nothing that no grant of its own allows",
        nothing_without_grant,
    ),
    Check(
        "revoked-at-commit",
        "nothing is committed by a grant after its revocation, or by a delegation of it",
        revoked_at_commit,
    ),
)
