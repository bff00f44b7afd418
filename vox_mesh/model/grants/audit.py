"""The audit of grants: which entries of the log were done without the grant that they needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.budget_audit import BudgetAudit
from vox_mesh.model.grants.capability import TAKE, Act
from vox_mesh.model.grants.history import GrantHistory
from vox_mesh.model.grants.needs import acts_of, is_checked
from vox_mesh.model.jobs.records import ABORT, CLAIM, SCHEDULE
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.verification import APPROVE, DELEGATE, DENY, OWNER_GRANTS, READ_ERRORS, REQUEST

GRANT_OPS: Final = frozenset((DELEGATE, *OWNER_GRANTS))
"""The ops that a history of grants is read from."""

APPROVAL_OPS: Final = frozenset((REQUEST, APPROVE, DENY))
"""The ops that a history of approvals is read from."""


class _DoubtedEnd(NamedTuple):
    """An entry without a grant that ended jobs, which is right if its agent has scheduled all of them."""

    entry: LogEntry
    jobs: frozenset[str]
    fault: str


class _DoubtedTake(NamedTuple):
    """An entry that claimed jobs for an agent, which is right if its grant allows the kinds of all."""

    entry: LogEntry
    jobs: frozenset[str]


class _Scheduled(NamedTuple):
    """That a job was scheduled: by which entry and agent, and of which kind it is."""

    entry_id: int
    agent: str | None
    kind: str


class GrantAudit:
    """Check entries, in any order, against a history. Then hear of all that scheduled the jobs in doubt.

    If grants had budgets, then hear of all that changed jobs.
    """

    def __init__(self, history: GrantHistory, approvals: ApprovalHistory) -> None:
        self._history = history
        self._approvals = approvals
        self._budgets = BudgetAudit(history)
        self._findings: list[ChainFinding] = []
        self._ends: list[_DoubtedEnd] = []
        self._takes: list[_DoubtedTake] = []
        self._in_doubt: set[str] = set()
        self._scheduled: dict[str, list[_Scheduled]] = defaultdict(list)

    @property
    def has_doubts(self) -> bool:
        """Return whether it depends on what was scheduled, and by whom, if some entries are right."""
        return bool(self._in_doubt) or self.has_budgets

    @property
    def has_budgets(self) -> bool:
        """Return whether entries used of budgets: then it depends on what jobs did cost if they are right."""
        return self._budgets.is_needed

    def check(self, entry: LogEntry) -> None:
        """Take in an entry of any kind."""
        if entry.accepted != 1:
            return
        self._budgets.check(entry)
        try:
            if entry.kind == CLAIM:
                self._check_take(entry)
            elif entry.agent != MESH_AGENT and is_checked(entry.kind):
                self._check_acts(entry)
        except READ_ERRORS:
            return  # the check of its chain reports it

    def _check_acts(self, entry: LogEntry) -> None:
        fault = self._fault_of(entry)
        if fault is None:
            return
        jobs = frozenset(_jobs_in(entry)) if entry.kind == ABORT and entry.grant is None else None
        if jobs:
            self._ends.append(_DoubtedEnd(entry._replace(payload=""), jobs, fault))
            self._in_doubt |= jobs
        else:
            self._findings.append(_finding(entry, fault))

    def _fault_of(self, entry: LogEntry) -> str | None:
        acts, time_ms = acts_of(entry), entry.time_ms
        fault = self._history.fault_of(entry, acts, time_ms) if acts else None
        if fault is None or self._history.fault_of(entry, acts, time_ms, may_ask=True) is not None:
            return fault
        return self._approvals.fault_of(entry)

    def _check_take(self, entry: LogEntry) -> None:
        take = _take_in(entry)
        if take is None:
            return
        fault = self._history.fault_of(take.entry, (), entry.time_ms)
        if fault is not None:
            self._findings.append(_finding(entry, fault))
        elif self._fault_of_kinds(take, (None,)) is not None:
            self._takes.append(take)
            self._in_doubt |= take.jobs

    def _fault_of_kinds(self, take: _DoubtedTake, kinds: Iterable[str | None]) -> str | None:
        """Return why jobs of these kinds were not to be taken; `None` is a job of any kind."""
        return self._history.fault_of(take.entry, [Act(TAKE, kind) for kind in kinds], take.entry.time_ms)

    def hear_schedule(self, entry: LogEntry) -> None:
        """Take in an entry that may have scheduled the jobs in doubt."""
        self._budgets.hear_schedule(entry)
        if entry.kind != SCHEDULE or entry.accepted != 1:
            return
        try:
            kinds = {job_id: str(each["kind"]) for job_id, each in _jobs_in(entry).items()}
        except READ_ERRORS:
            return
        for job_id in self._in_doubt.intersection(kinds):
            self._scheduled[job_id].append(_Scheduled(entry.id, entry.agent, kinds[job_id]))

    def hear_job(self, entry: LogEntry) -> None:
        """Take in an entry that may have changed the jobs that budgets were used of for."""
        self._budgets.hear_job(entry)

    @property
    def findings(self) -> list[ChainFinding]:
        """Return all entries that were done without a grant, or exceeded its budget."""
        ends = [_finding(each.entry, each.fault) for each in self._ends if not self._is_own(each)]
        faults = ((each.entry, self._fault_of_kinds(each, self._kinds_of(each))) for each in self._takes)
        takes = [_finding(entry, fault) for entry, fault in faults if fault is not None]
        return [*self._findings, *ends, *takes, *self._budgets.findings]

    def _is_own(self, end: _DoubtedEnd) -> bool:
        """Return whether the agent of an entry has scheduled all jobs that it ended."""
        entry = end.entry
        return all(
            any(each.agent == entry.agent and each.entry_id < entry.id for each in self._scheduled[job_id])
            for job_id in end.jobs
        )

    def _kinds_of(self, take: _DoubtedTake) -> list[str]:
        """Return the kinds of the jobs that were taken, each as it was first scheduled."""
        found = (self._scheduled[job_id] for job_id in take.jobs)
        return sorted({min(each).kind for each in found if each})


def _take_in(entry: LogEntry) -> _DoubtedTake | None:
    """Return the claim of a node for an agent, as its payload names both; a worker's own needs no grant."""
    read: Any = parse(entry.payload)
    agent, grant = read.get("agent"), read.get("grant")
    if agent is None:
        return None
    named = entry._replace(payload="", agent=str(agent), grant=None if grant is None else str(grant))
    return _DoubtedTake(named, frozenset(_jobs_in(entry)))


def _jobs_in(entry: LogEntry) -> dict[str, Any]:
    read: Any = parse(entry.payload)
    return {str(each["job_id"]): each for each in read["jobs"]}


def _finding(entry: LogEntry, fault: str) -> ChainFinding:
    return ChainFinding(entry.node_id, entry.seq, entry.op_id, fault)
