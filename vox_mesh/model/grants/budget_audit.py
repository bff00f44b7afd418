"""The audit of budgets: which entries of the log scheduled jobs that their grants had no budget for.

It counts as the database does: what a job may cost from the entry that schedules it on, and what it did cost
from the entry that ends it on. Where the log does not say it, it counts less: the cost of an attempt that was
taken from its worker, and a job that nothing was done with, and that may have failed with a predecessor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.grants import capability
from vox_mesh.model.grants.history import GrantHistory
from vox_mesh.model.grants.limits import MILLI, GrantBudget, budgets_of, most_cost
from vox_mesh.model.jobs.records import ABORT, COMPLETE, EXPIRE, JOB_OPS, SCHEDULE, YIELD
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.verification import READ_ERRORS

_ENDS: Final = (COMPLETE, ABORT)
_SCHEDULING: Final = (capability.Act(capability.SCHEDULE),)


class _Schedule(NamedTuple):
    """An entry that scheduled jobs by a grant with a budget, or one that was delegated from such a grant."""

    entry: LogEntry
    budgets: Sequence[GrantBudget]
    costs: Mapping[str, int]
    """By job, in thousandths of beats."""
    fault: str | None = None


class _Change(NamedTuple):
    """By how much an entry changes what counts of the budgets."""

    entry_id: int
    budgets: Sequence[GrantBudget]
    mbu: int


@dataclass(slots=True)
class _Job:
    """What the log says about a job, in any order."""

    has_predecessors: bool
    scheduled_at: int
    last_at: int = 0
    last_kind: str = ""
    ended_at: int | None = None
    spent_mbu: int = 0

    def settled_at(self) -> int | None:
        """Return the entry from which on its cost counts, if there is one."""
        if self.ended_at is None and not self.last_at and self.has_predecessors:
            return self.scheduled_at
        return self.last_at if self.ended_at is None and self.last_kind == EXPIRE else self.ended_at


@dataclass(slots=True)
class BudgetAudit:
    """Check entries; then hear all that scheduled jobs; then all about jobs. Each in any order."""

    history: GrantHistory
    _checked: set[int] = field(default_factory=set)
    _schedules: list[_Schedule] = field(default_factory=list)
    _jobs: dict[str, _Job] = field(default_factory=dict)

    @property
    def is_needed(self) -> bool:
        """Return whether an entry that was checked used of a budget."""
        return bool(self._checked)

    def check(self, entry: LogEntry) -> None:
        """Take in an entry that is to be reported if it exceeded a budget."""
        if self._budgets_of(entry):
            self._checked.add(entry.id)

    def _budgets_of(self, entry: LogEntry) -> list[GrantBudget]:
        if entry.kind != SCHEDULE or entry.accepted != 1 or entry.grant is None:
            return []
        return budgets_of(self.history.chain(entry.grant), _SCHEDULING)

    def hear_schedule(self, entry: LogEntry) -> None:
        """Take in an entry that may have used of a budget."""
        budgets = self._budgets_of(entry)
        if not budgets:
            return
        try:
            items = _items_in(parse(entry.payload))
            self._schedules.append(_schedule_of(entry, budgets, items))
        except READ_ERRORS:
            return  # the check of its chain reports it
        for job_id, item in items.items():
            self._jobs.setdefault(job_id, _Job(bool(item.get("after")), entry.id))

    def hear_job(self, entry: LogEntry) -> None:
        """Take in an entry that may have changed a job."""
        if entry.kind not in JOB_OPS or entry.accepted != 1:
            return
        try:
            self._hear_job(entry)
        except READ_ERRORS:
            return

    def _hear_job(self, entry: LogEntry) -> None:
        items = _items_in(parse(entry.payload))
        for job_id in self._jobs.keys() & _moved_by(entry, items):
            job = self._jobs[job_id]
            if entry.kind == SCHEDULE:  # of several, only the first one counts
                job.scheduled_at = min(job.scheduled_at, entry.id)
                continue
            if entry.kind in _ENDS:
                job.ended_at = min(entry.id, job.ended_at or entry.id)
            if entry.id > job.last_at:
                job.last_at, job.last_kind = entry.id, entry.kind
            if entry.kind in (COMPLETE, YIELD):
                job.spent_mbu += _spent_by(items[job_id])

    @property
    def findings(self) -> Iterator[ChainFinding]:
        """Return the checked entries that scheduled more than a budget allowed."""
        changes = sorted(self._changes())
        counted, at = Counter[str](), 0
        for schedule in sorted(self._schedules, key=lambda each: each.entry.id):
            entry, fault = schedule.entry, schedule.fault
            while at < len(changes) and changes[at].entry_id <= entry.id:
                for grant_id, _ in changes[at].budgets:
                    counted[grant_id] += changes[at].mbu
                at += 1
            if any(self._is_new(job_id, entry) for job_id in schedule.costs):
                fault = _fault_of(schedule.budgets, counted)
            if fault is not None and entry.id in self._checked:
                yield ChainFinding(entry.node_id, entry.seq, entry.op_id, fault)

    def _changes(self) -> Iterator[_Change]:
        for entry, budgets, costs, _ in self._schedules:
            for job_id, mbu in costs.items():
                if self._is_new(job_id, entry):
                    job = self._jobs[job_id]
                    yield _Change(entry.id, budgets, mbu)
                    if (settled_at := job.settled_at()) is not None:
                        # Not before the next entry: the job counts when it is scheduled.
                        yield _Change(max(settled_at, entry.id + 1), budgets, job.spent_mbu - mbu)

    def _is_new(self, job_id: str, entry: LogEntry) -> bool:
        return self._jobs[job_id].scheduled_at == entry.id


def _schedule_of(entry: LogEntry, budgets: Sequence[GrantBudget], items: Mapping[str, Any]) -> _Schedule:
    brief = entry._replace(payload="")
    try:
        costs = {job_id: most_cost(item["kind"], item["manifest"]) for job_id, item in items.items()}
    except BadValue as error:
        return _Schedule(brief, budgets, {}, str(error))
    return _Schedule(brief, budgets, costs)


def _fault_of(budgets: Iterable[GrantBudget], counted: Mapping[str, int]) -> str | None:
    for grant_id, mbu in budgets:
        if counted[grant_id] > mbu:
            cost = f"{counted[grant_id] / MILLI:g} of {mbu / MILLI:g} beats"
            return f"it exceeded the budget of grant {grant_id}: its jobs may cost {cost}"
    return None


def _items_in(payload: Any) -> dict[str, Any]:
    return {str(each["job_id"]): each for each in payload["jobs"]}


def _moved_by(entry: LogEntry, items: Mapping[str, Any]) -> Iterable[str]:
    """Return the jobs that an entry has changed; without a result, all that it names."""
    result = {} if entry.result is None else orjson.loads(entry.result)
    return items.keys() & orjson.loads(result["moved"]) if "moved" in result else items.keys()


def _spent_by(item: Mapping[str, Any]) -> int:
    """Return what the attempt did cost. It is rounded down: the database has the same number, or one more."""
    beats = item.get("phrase", {}).get("beats", {})
    return int(sum(beats.values()) * MILLI)
