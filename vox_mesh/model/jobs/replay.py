"""Job replay: compute every job's row from the accepted ops of the log in commit order.

The rules are those of `sql/jobs.sql`, implemented a second time: where the two differ, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.records import (
    ABORT,
    CLAIM,
    COMPLETE,
    DEFAULT_INTERRUPTIONS,
    ENDS,
    EXPIRE,
    HELD,
    SCHEDULE,
    START,
    UNSUCCESSFUL,
    YIELD,
    Job,
    JobState,
    interrupted_too_often,
)
from vox_mesh.model.jobs.routes import RouteHistory
from vox_mesh.model.jobs.scheduling.many_predecessors import ManyPredecessors
from vox_mesh.model.jobs.scheduling.replayed_op import Item, ReplayedOp
from vox_mesh.model.jobs.steps.suspension import WAKE_EARLY
from vox_mesh.model.nodes.store_memory import ROLLED_BACK, TOKENS_RAISED_BY
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.model.retention.pruned_jobs import PruningRules

COLUMNS: Final = Job._fields[1:]
"""The columns that follow from the log; of the rowid, only the order does."""

PREDECESSOR_FAILED: Final = "a job that it waited for did not succeed"
LEASE_EXPIRED: Final = "the lease ran out"

NO_JOBS: Final[Mapping[str, int]] = MappingProxyType({})

_NO_OUTPUTS: Final = "[]"

Row = dict[str, Any]
"""The values of a job's row by column."""


class ReplayFinding(NamedTuple):
    """An accepted op that the rules do not allow."""

    entry_id: int
    op_id: str
    kind: str
    job_id: str
    what: str


class JobReplay:
    """Replays the log entry by entry. An entry that is not allowed is a finding and changes nothing."""

    def __init__(self, routes: RouteHistory, deleted: Mapping[str, int] = NO_JOBS) -> None:
        """`routes` takes in the ops of the log that set routes, as they come.

        `deleted`: pruned jobs of which the log has only some ops left, each with the id up to which it is so.
        """
        self._routes = routes
        self._deleted = deleted
        self._misrouted: dict[tuple[str, int], str] = {}
        self.jobs: dict[str, Row] = {}
        """The rows by job id, in the order of scheduling."""
        self.after: dict[str, dict[str, str]] = {}
        """By job id, its predecessors and the condition of each."""
        self.findings: list[ReplayFinding] = []
        self.last_id = 0
        """The id of the last replayed entry."""
        self._successors: dict[str, list[str]] = {}
        self._many = ManyPredecessors(self.after, self._is_met)
        self._retries: dict[str, set[str]] = {}
        self._ulids: set[str] = set()
        self._accepted: set[str] = set()
        self._rules: Mapping[str, Callable[[ReplayedOp], None]] = {
            SCHEDULE: self._schedule,
            CLAIM: self._claim,
            START: self._start,
            COMPLETE: self._complete,
            YIELD: self._yield,
            EXPIRE: self._expire,
            ABORT: self._abort,
            WAKE_EARLY: self._wake_early,
            PRUNE: self._prune,
        }
        self._pruning = PruningRules()

    def follow(self, entry: LogEntry) -> None:
        """Replay the next entry."""
        self.last_id = entry.id
        if not entry.accepted:
            return
        if entry.kind == ROLLED_BACK:
            self._raise_tokens()
        self._routes.hear(entry)
        self._pruning.hear(entry)
        rule = self._rules.get(entry.kind)
        if rule is not None:
            try:
                rule(self._without_deleted(ReplayedOp.of(entry)))
            except (BadValue, KeyError, TypeError, ValueError, AttributeError) as error:
                self._report(entry, "", f"it can't be read: {error!r}")
        self._accept(entry.op_id)

    def _without_deleted(self, op: ReplayedOp) -> ReplayedOp:
        """Return an op without jobs of which the log has only some ops left."""
        gone = {item["job_id"] for item in op.items if self._deleted.get(item["job_id"], 0) >= op.entry_id}
        if not gone:
            return op
        items = [item for item in op.items if item["job_id"] not in gone]
        moved = [job_id for job_id in op.moved if job_id not in gone]
        return op._replace(payload={**op.payload, "jobs": items}, moved=moved)

    def _raise_tokens(self) -> None:
        """After a rollback of the database, put the next tokens above those of the lost time."""
        for row in self.jobs.values():
            if row["state"] == JobState.PENDING:
                row["claim_token"] += TOKENS_RAISED_BY

    def _accept(self, op_id: str) -> None:
        """Release the jobs that wait for this op."""
        self._accepted.add(op_id)
        for job_id in self._successors.get(op_id, ()):
            row = self.jobs[job_id]
            if self.after[job_id][op_id] == "op" and row["state"] == JobState.PENDING:
                is_counted = self._many.are_had_by(job_id)
                row["waits"] = max(row["waits"] - 1, 0) if is_counted else self._count_unmet(job_id)

    # --- scheduling ------------------------------------------------------------------------------

    def _schedule(self, op: ReplayedOp) -> None:
        new: list[tuple[str, Item]] = []
        for item in op.items:
            job_id = item["job_id"]
            if job_id in self.jobs:
                continue  # the same manifest is the same job
            if item["ulid"] in self._ulids:
                self._report(op, job_id, f"another job has the ULID {item['ulid']}")
            self.jobs[job_id] = _new_row(op, item)
            self._ulids.add(item["ulid"])
            self._pruning.count(self.jobs[job_id])
            if (retried := self.jobs[job_id]["retry_of"]) is not None:
                self._retries.setdefault(retried, set()).add(job_id)
            new.append((job_id, item))
        for job_id, item in new:
            for predecessor, awaited in item.get("after") or ():
                self.after.setdefault(job_id, {})[predecessor] = awaited
                self._successors.setdefault(predecessor, []).append(job_id)
                self._check_predecessor(op, job_id, predecessor, awaited)
            self.jobs[job_id]["waits"] = self._count_unmet(job_id)

    def _check_predecessor(self, op: ReplayedOp, job_id: str, predecessor: str, awaited: str) -> None:
        if awaited == "op":
            return  # an op refused in the same request can't be seen here
        row = self.jobs.get(predecessor)
        if row is None:
            if not op.payload.get("defers"):
                self._report(op, job_id, f"it waits for {predecessor}, which is not there")
        elif awaited == "success" and row["state"] in UNSUCCESSFUL:
            self._report(op, job_id, f"it waits for the success of {predecessor}, which is {row['state']}")

    def _count_unmet(self, job_id: str) -> int:
        return sum(not self._is_met(each, awaited) for each, awaited in self.after.get(job_id, {}).items())

    def _is_met(self, predecessor: str, awaited: str) -> bool:
        if awaited == "op":
            return predecessor in self._accepted
        row = self.jobs.get(predecessor)
        if row is None:
            return False
        return row["state"] == JobState.SUCCEEDED or (awaited == "end" and row["ended_ms"] is not None)

    # --- claiming --------------------------------------------------------------------------------

    def _claim(self, op: ReplayedOp) -> None:
        if op.payload.get("renews"):
            for row, _ in self._moved_rows(op, lambda row, item: _is_held(row, item, op.node_id)):
                row.update(lease_until_ms=op.lease_until_ms, last_op=op.op_id)
            return
        for row, item in self._moved_rows(op, _is_next):
            self._check_route(op, row, item)
            row.update(
                state=JobState.CLAIMED.value,
                claimer=op.node_id,
                claim_token=item["claim_token"],
                attempts=row["attempts"] + 1,
                lease_until_ms=op.lease_until_ms,
                last_op=op.op_id,
            )

    def _check_route(self, op: ReplayedOp, row: Row, item: Item) -> None:
        routed_to = self._routes.barred_from(row["kind"], op.node_id, op.entry_id)
        if routed_to is not None:
            what = f"{op.node_id} was not allowed to claim it: {row['kind']} was routed to {routed_to}"
            self._misrouted[row["job_id"], item["claim_token"]] = what
            self._report(op, row["job_id"], what)

    def _start(self, op: ReplayedOp) -> None:
        def can_start(row: Row, item: Item) -> bool:
            return row["state"] == JobState.CLAIMED and _is_held(row, item, op.node_id)

        for row, _ in self._moved_rows(op, can_start):
            row.update(state=JobState.RUNNING.value, started_ms=op.at_ms, last_op=op.op_id)

    # --- ending ----------------------------------------------------------------------------------

    def _complete(self, op: ReplayedOp) -> None:
        def can_end(row: Row, item: Item) -> bool:
            is_end = item["state"] in (JobState.SUCCEEDED, JobState.FAILED)
            return is_end and row["state"] == JobState.RUNNING and _is_held(row, item, op.node_id)

        for row, item in self._moved_rows(op, can_end):
            misrouted = self._misrouted.pop((row["job_id"], item["claim_token"]), None)
            if misrouted is not None:
                self._report(op, row["job_id"], misrouted)
            row.update(
                state=item["state"],
                failures=row["failures"] + (item["state"] == JobState.FAILED),
                exit_code=item.get("exit_code"),
                reason=item.get("reason"),
                output_artifacts=_outputs(item),
                lease_until_ms=None,
                ended_ms=op.at_ms,
                last_op=op.op_id,
            )
        self._follow_up(op)

    def _yield(self, op: ReplayedOp) -> None:
        def can_go_back(row: Row, item: Item) -> bool:
            return (
                _is_current(row, item)
                and row["failures"] + _failure_count(item) < row["max_attempts"]
                and _interruption_count(item) <= max(row["max_interruptions"] - row["interruptions"], 0)
            )

        for row, item in self._moved_rows(op, can_go_back):
            row.update(
                _RELEASED,
                failures=row["failures"] + _failure_count(item),
                interruptions=row["interruptions"] + _interruption_count(item),
                reason=item.get("reason"),
                not_before_ms=max(item.get("not_before_ms") or 0, op.at_ms),
                last_op=op.op_id,
            )
            if (question := item.get("question")) is not None:
                self._wait_for(row, question["id"], "op")
            for predecessor, awaited in item.get("after") or ():
                self._wait_for(row, predecessor, awaited)

    def _wait_for(self, row: Row, predecessor: str, awaited: str) -> None:
        after = self.after.setdefault(row["job_id"], {})
        if predecessor not in after:
            after[predecessor] = awaited
            self._successors.setdefault(predecessor, []).append(row["job_id"])
            self._many.forget(row["job_id"])
        row["waits"] = self._count_unmet(row["job_id"])

    def _wake_early(self, op: ReplayedOp) -> None:
        for row, _ in self._moved_rows(op, _is_suspended):
            job_id = row["job_id"]
            after = self.after.setdefault(job_id, {})
            for each in [name for name, awaited in after.items() if not self._is_met(name, awaited)]:
                del after[each]
                self._successors[each].remove(job_id)
            row["not_before_ms"] = min(row["not_before_ms"], op.at_ms)
            self._many.forget(job_id)
            after[op.op_id] = "op"
            self._successors.setdefault(op.op_id, []).append(job_id)
            row["waits"] = 0

    def _expire(self, op: ReplayedOp) -> None:
        for row, _ in self._moved_rows(op, _is_current):
            interrupts = op.payload.get("interrupts")  # otherwise it is the op of an older node
            is_last = _is_last_interruption(row) if interrupts else row["failures"] + 1 >= row["max_attempts"]
            ended = {"state": JobState.FAILED.value, "ended_ms": op.at_ms, "lease_until_ms": None}
            row.update(ended if is_last else _RELEASED)
            row["interruptions" if interrupts else "failures"] += 1
            is_too_often = is_last and interrupts
            reason = interrupted_too_often(row["max_interruptions"], LEASE_EXPIRED)
            row.update(
                not_before_ms=op.at_ms, reason=reason if is_too_often else LEASE_EXPIRED, last_op=op.op_id
            )
        self._follow_up(op)

    def _abort(self, op: ReplayedOp) -> None:
        for row, _ in self._moved_rows(op, lambda row, _: row["state"] not in ENDS):
            row.update(
                state=JobState.ABORTED.value,
                ended_ms=op.at_ms,
                lease_until_ms=None,
                reason=op.payload.get("reason"),
                last_op=op.op_id,
            )
        self._follow_up(op)

    def _follow_up(self, op: ReplayedOp) -> None:
        """Fail the jobs that wait for the success of a failed one; release those whose conditions are met."""
        ended = [
            job_id
            for job_id in dict.fromkeys(item["job_id"] for item in op.items)
            if self._is_moved_by(op, job_id) and self.jobs[job_id]["state"] in ENDS
        ]
        for job_id in ended:  # grows by the jobs that fail with their predecessors
            if self.jobs[job_id]["state"] in UNSUCCESSFUL:
                for row in self._pending_after(job_id, "success"):
                    row.update(
                        state=JobState.FAILED.value,
                        ended_ms=op.at_ms,
                        reason=PREDECESSOR_FAILED,
                        last_op=op.op_id,
                    )
                    ended.append(row["job_id"])
        for job_id in ended:
            for row in self._pending_after(job_id, "success", "end"):
                if row["waits"] > 0 and not self._many.are_awaited_by(row["job_id"]):
                    row.update(
                        waits=self._count_unmet(row["job_id"]),
                        not_before_ms=max(row["not_before_ms"], op.at_ms),
                        last_op=row["last_op"] if row["attempts"] else op.op_id,
                    )

    def _pending_after(self, job_id: str, *awaited: str) -> Iterator[Row]:
        for successor in self._successors.get(job_id, ()):
            row = self.jobs[successor]
            if row["state"] == JobState.PENDING and self.after[successor][job_id] in awaited:
                yield row

    # --- pruning ---------------------------------------------------------------------------------

    def _prune(self, op: ReplayedOp) -> None:
        """Drop the rows that the op has pruned; one that may not be pruned stays, and is missed."""
        together = {item["job_id"] for item in op.items}
        if not op.is_timely:
            self._report(op, "", f"it is of another time than its entry: {op.at_ms}")
            return
        for job_id in together:
            row = self.jobs.get(job_id)
            fault = "it is not there" if row is None else self._pruning.fault(row, op.at_ms)
            if fault is None and not together.issuperset(self._referrers(job_id)):
                fault = "another job refers to it"
            if fault is not None:
                self._report(op, job_id, f"it can't prune this job: {fault}")
                return
        for job_id in together:
            self._drop(job_id)

    def _referrers(self, job_id: str) -> Iterator[str]:
        """Yield the jobs that wait or waited for a job, and its retries."""
        yield from self._successors.get(job_id, ())
        yield from self._retries.get(job_id, ())

    def _drop(self, job_id: str) -> None:
        row = self.jobs.pop(job_id)
        self._pruning.forget(row)
        self._ulids.discard(row["ulid"])
        self._many.forget(job_id)
        for predecessor in self.after.pop(job_id, {}):
            self._successors[predecessor].remove(job_id)
        if row["retry_of"] in self._retries:
            self._retries[row["retry_of"]].discard(job_id)

    # --- rows of an op ---------------------------------------------------------------------------

    def _moved_rows(
        self, op: ReplayedOp, is_allowed: Callable[[Row, Item], bool]
    ) -> Iterator[tuple[Row, Item]]:
        """Yield the rows that the op claims to have changed, each once and with its entry."""
        has_consequences = op.kind in (EXPIRE, ABORT)  # these also name the jobs they changed indirectly
        for job_id in dict.fromkeys(op.moved):
            row = self.jobs.get(job_id)
            items = [item for item in op.items if item["job_id"] == job_id]
            if row is None or not items:
                self._report(op, job_id, "it moved a job that is not there")
                continue
            allowed = [item for item in items if is_allowed(row, item)]
            if allowed:
                yield row, allowed[0]
            elif not (has_consequences and row["state"] == JobState.PENDING):
                self._report(op, job_id, f"it can't move a job that is {_describe(row)}")

    def _is_moved_by(self, op: ReplayedOp, job_id: str) -> bool:
        row = self.jobs.get(job_id)
        return row is not None and row["last_op"] == op.op_id

    def _report(self, op: ReplayedOp | LogEntry, job_id: str, what: str) -> None:
        entry_id = op.id if isinstance(op, LogEntry) else op.entry_id
        self.findings.append(ReplayFinding(entry_id, op.op_id, op.kind, job_id, what))


_RELEASED: Final = {
    "state": JobState.PENDING.value,
    "claimer": None,
    "lease_until_ms": None,
    "started_ms": None,
}
"""The values of a row whose job was returned to the queue."""


def _new_row(op: ReplayedOp, item: Item) -> Row:
    manifest = item["manifest"]
    row: Row = dict.fromkeys(COLUMNS)
    row.update(
        job_id=item["job_id"],
        ulid=item["ulid"],
        kind=item["kind"],
        state=JobState.PENDING.value,
        priority=item["priority"],
        waits=0,
        not_before_ms=max(op.at_ms, item.get("run_at_ms") or 0),
        max_attempts=item["max_attempts"],
        max_interruptions=item.get("max_interruptions", DEFAULT_INTERRUPTIONS),
        backoff_ms=item["backoff_ms"],
        lease_ms=item.get("lease_ms"),
        claim_token=0,
        attempts=0,
        failures=0,
        interruptions=0,
        created_ms=op.at_ms,
        output_artifacts=_NO_OUTPUTS,
        retry_of=manifest.get("retry_of"),
        scheduled_by=op.chain,
        seed=item["seed"],
        last_op=op.op_id,
        binding=item.get("binding"),
        manifest=canonical(manifest, max_depth=None),
    )
    return row


def _is_next(row: Row, item: Item) -> bool:
    is_free = row["state"] == JobState.PENDING and row["waits"] == 0
    token = item["claim_token"]
    last = item.get("last_token", token - 1)  # old entries have consecutive tokens
    return bool(is_free and row["claim_token"] == last < token)


def _is_suspended(row: Row, item: Item) -> bool:
    is_pending = row["state"] == JobState.PENDING and row["attempts"] > 0
    return bool(is_pending and row["claim_token"] == item["claim_token"])


def _is_current(row: Row, item: Item) -> bool:
    return row["state"] in HELD and bool(row["claim_token"] == item["claim_token"])


def _is_held(row: Row, item: Item, node_id: str) -> bool:
    return _is_current(row, item) and bool(row["claimer"] == node_id)


def _outputs(item: Item) -> str:
    return canonical(item["output_artifacts"], max_depth=None) if "output_artifacts" in item else _NO_OUTPUTS


def _failure_count(item: Item) -> int:
    return int(item.get("failed") or 0)


def _interruption_count(item: Item) -> int:
    return int(item.get("interrupted") or 0)


def _is_last_interruption(row: Row) -> bool:
    return bool(row["interruptions"] >= row["max_interruptions"])


def _describe(row: Row) -> str:
    return f"{row['state']}, with token {row['claim_token']} and {row['waits']} to wait for"
