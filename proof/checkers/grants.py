"""Grants: admitted agents act by their grants only, and by none of them after its revocation.

Ops name their grants in the log. Messages, locks and takes of jobs are in tables: their witnesses say behind
which entry of the log each was committed, so that the grants in force at that moment are known.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

from proof.archived_log import log_rows
from proof.final_state import Row, final_rows
from proof.history import History
from proof.verdicts import Check
from proof.witness import ACQUISITIONS, SENDS, TAKES
from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.audit import APPROVAL_OPS, GRANT_OPS, GrantAudit
from vox_mesh.model.grants.budget_audit import BudgetAudit
from vox_mesh.model.grants.capability import ACQUIRE, SCHEDULE, SEND, TAKE, Act
from vox_mesh.model.grants.grant import Grant, SignedGrant
from vox_mesh.model.grants.history import GrantHistory, GrantRecord
from vox_mesh.model.grants.limits import MILLI, budgets_of, most_cost
from vox_mesh.model.jobs import records
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
        rows = log_rows(history)
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
    for entry in grants.entries:
        audit.hear_job(entry)
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


def grant_budget_settled(history: History) -> Iterator[str | int]:
    """Follow the log for what was left when jobs were scheduled; compare the rest with what they did cost."""
    grants = _Grants(history)
    audit = BudgetAudit(grants.history)
    for hear in (audit.check, audit.hear_schedule, audit.hear_job):
        for entry in grants.entries:
            hear(entry)
    for finding in audit.findings:
        yield f"op {finding.op_id} of {finding.chain}: {finding.what}"
    counted = _counted_of_budgets(history, grants)
    for row in final_rows(history, "grants"):
        if row["grant_id"] in counted:
            yield 1
            if row["reserved_mbu"] != counted[row["grant_id"]]:
                yield (
                    f"{row['reserved_mbu']} thousandths of beats of grant {row['grant_id']} are used, "
                    f"and its jobs cost {counted[row['grant_id']]}"
                )


def _counted_of_budgets(history: History, grants: _Grants) -> Counter[str]:
    """Return by grant what its jobs did cost, or may cost while that is not known."""
    spent = Counter[str]()
    for row in final_rows(history, "phrase_ends"):
        spent[row["job_id"]] += math.ceil(row["bu"] * MILLI)
    is_open = {row["job_id"] for row in final_rows(history, "jobs") if row["ended_ms"] is None}
    is_open |= {row["job_id"] for row in final_rows(history, "phrase_begins")}
    counted, known = Counter[str](), set[str]()
    for entry in grants.entries:
        if entry.kind == records.SCHEDULE:
            jobs = {each["job_id"]: each for each in orjson.loads(entry.payload)["jobs"]}
            for budget in budgets_of(grants.history.chain(entry.grant or ""), [Act(SCHEDULE)]):
                for job_id in jobs.keys() - known:
                    most = most_cost(jobs[job_id]["kind"], jobs[job_id]["manifest"])
                    counted[budget.grant_id] += most if job_id in is_open else spent[job_id]
            known |= jobs.keys()
    return counted


def grant_rate_kept(history: History) -> Iterator[str | int]:
    """Find the periods in which an agent has sent more messages than the rates of its grants allow."""
    grants = _Grants(history)
    sent = defaultdict[str, list[_Deed]](list)
    for deed in grants.deeds():
        if deed.act.action == SEND:
            sent[deed.agent].append(deed)
    for agent, deeds in sent.items():
        found = {record for deed in deeds for record in grants.covering(deed)}
        rates = [
            each.rate
            for record in found
            for each in record.grant.terms.capabilities
            if each.act.action == SEND
        ]
        limits = [rate for rate in rates if rate is not None]
        if not limits or len(limits) < len(rates):
            continue  # no grant of its own allows it, as another check says, or one of them has no limit
        times, window_ms = sum(rate.times for rate in limits), min(rate.window_ms for rate in limits)
        for number, deed in enumerate(deeds[times:]):
            yield 1
            period_ms = deed.at_ms - deeds[number].at_ms
            if period_ms < window_ms:
                yield f"{agent} has sent {times + 1} messages within {period_ms} ms, to {deed.log_id}"


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
    Check(
        "grant-budget-settled",
        "jobs are scheduled within the budgets of grants, which they are charged what they cost, once",
        grant_budget_settled,
    ),
    Check(
        "grant-rate-kept",
        "no agent does something more often than the rates of its grants allow",
        grant_rate_kept,
    ),
)
