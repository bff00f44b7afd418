"""The audit of grants: which entries of the log were done without the grant that they needed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.history import GrantHistory
from vox_mesh.model.grants.needs import acts_of, is_checked
from vox_mesh.model.jobs.records import ABORT, SCHEDULE
from vox_mesh.model.messages.records import MESH_AGENT
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.verification import APPROVE, DELEGATE, DENY, OWNER_GRANTS, READ_ERRORS, REQUEST

GRANT_OPS: Final = frozenset((DELEGATE, *OWNER_GRANTS))
"""The ops that a history of grants is read from."""

APPROVAL_OPS: Final = frozenset((REQUEST, APPROVE, DENY))
"""The ops that a history of approvals is read from."""


class _DoubtedEntry(NamedTuple):
    """An entry without a grant that ended jobs, which is right if its agent has scheduled all of them."""

    entry: LogEntry
    jobs: frozenset[str]
    finding: ChainFinding


class GrantAudit:
    """Check entries, in any order, against a history. Then hear of all that scheduled the jobs in doubt."""

    def __init__(self, history: GrantHistory, approvals: ApprovalHistory) -> None:
        self._history = history
        self._approvals = approvals
        self._findings: list[ChainFinding] = []
        self._doubts: list[_DoubtedEntry] = []
        self._scheduled: dict[str, list[LogEntry]] = defaultdict(list)

    @property
    def has_doubts(self) -> bool:
        """Return whether it depends on who scheduled jobs, if some entries are right."""
        return bool(self._doubts)

    def check(self, entry: LogEntry) -> None:
        """Take in an entry of any kind."""
        if entry.accepted != 1 or entry.agent == MESH_AGENT or not is_checked(entry.kind):
            return
        try:
            fault = self._fault_of(entry)
            jobs = _jobs_in(entry) if fault is not None and entry.kind == ABORT else frozenset()
        except READ_ERRORS:
            return  # the check of its chain reports it
        if fault is None:
            return
        finding = ChainFinding(entry.node_id, entry.seq, entry.op_id, fault)
        if jobs and entry.grant is None:
            self._doubts.append(_DoubtedEntry(entry, jobs, finding))
        else:
            self._findings.append(finding)

    def _fault_of(self, entry: LogEntry) -> str | None:
        acts, time_ms = acts_of(entry), Hlc.parse(entry.hlc).wall_ms
        fault = self._history.fault_of(entry, acts, time_ms) if acts else None
        if fault is None or self._history.fault_of(entry, acts, time_ms, may_ask=True) is not None:
            return fault
        return self._approvals.fault_of(entry)

    def hear_schedule(self, entry: LogEntry) -> None:
        """Take in an entry that may have scheduled the jobs in doubt."""
        if entry.kind != SCHEDULE or entry.accepted != 1:
            return
        try:
            jobs = _jobs_in(entry)
        except READ_ERRORS:
            return
        for job_id in jobs & {each for doubt in self._doubts for each in doubt.jobs}:
            self._scheduled[job_id].append(entry)

    @property
    def findings(self) -> list[ChainFinding]:
        """Return all entries that were done without a grant."""
        return self._findings + [each.finding for each in self._doubts if not self._is_own(each)]

    def _is_own(self, doubt: _DoubtedEntry) -> bool:
        """Return whether the agent of an entry has scheduled all jobs that it ended."""
        entry = doubt.entry
        return all(
            any(each.agent == entry.agent and each.id < entry.id for each in self._scheduled.get(job_id, ()))
            for job_id in doubt.jobs
        )


def _jobs_in(entry: LogEntry) -> frozenset[str]:
    read: Any = parse(entry.payload)
    return frozenset(str(each["job_id"]) for each in read["jobs"])
