"""Traces: the ops that led to the state of a job, and those of the jobs that it waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.jobs.queries import json
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.jobs.records import ABORT, COMPLETE, EXPIRE, SCHEDULE, YIELD
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.oplog.pages import Pace
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

MAX_JOBS: Final = 5_000
"""The maximum number of jobs in a trace."""

_ENTRIES_OF: Final = named("oplog")["entries_of"]
_MAX_READ: Final = 500
_MAX_DETAIL: Final = 1_024
_READ_ERRORS: Final = (ValueError, TypeError, KeyError, AttributeError)


class TracedJob(NamedTuple):
    """A job with its ops and what caused them, oldest first, and the jobs that it waited for."""

    job_id: str
    kind: str
    state: str
    predecessors: Sequence[str]
    ops: Sequence[LogEntry]


class JobTrace(NamedTuple):
    """The job that was asked for, and all that it waited for. `is_cut` if there are more."""

    jobs: Sequence[TracedJob]
    is_cut: bool


class _Named(NamedTuple):
    """An entry, the jobs that it names, and its causes."""

    entry: LogEntry
    jobs: frozenset[str]
    causes: Sequence[str]


async def trace_job(store: Store, job_id: str, limit: int = MAX_JOBS) -> JobTrace:
    """Follow the causes of a job's last op through the log, and of `limit` jobs at most, this one first."""
    rows = await store.read(SQL["ancestors"], (*store.mesh_id, job_id, limit + 1))
    found = rows[:limit]
    ops = await _Walk(store).ops_of({row["job_id"]: row["last_op"] for row in found})
    known = ops.keys()
    jobs = [
        TracedJob(
            *(row["job_id"], row["kind"], row["state"]),
            [each for each in orjson.loads(row["predecessors"]) if each in known],
            sorted(ops[row["job_id"]].values(), key=lambda entry: entry.id),
        )
        for row in found
    ]
    return JobTrace(jobs, len(rows) > limit)


class _Walk:
    """Reads entries layer by layer, each once: from the last ops of jobs to their causes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, _Named] = {}
        self._pace = Pace()

    async def ops_of(self, last_ops: dict[str, str]) -> dict[str, dict[str, LogEntry]]:
        """Return the ops of each job by id; one that is about many jobs counts for each that it names."""
        ops: dict[str, dict[str, LogEntry]] = {job_id: {} for job_id in last_ops}
        firing = set[tuple[str, str]]()  # ops that fired a rule, which name no job
        layer = defaultdict[str, set[str]](set)
        for job_id, op_id in last_ops.items():
            layer[op_id].add(job_id)
        while layer:
            await self._load(layer)
            following = defaultdict[str, set[str]](set)
            for op_id, jobs in layer.items():
                named_by = self._read.get(op_id)
                if named_by is None:
                    continue
                for job_id in jobs:
                    is_last = last_ops[job_id] == op_id  # a job that failed with another is not named
                    is_own = is_last or job_id in named_by.jobs or (op_id, job_id) in firing
                    if op_id not in ops[job_id] and is_own:
                        ops[job_id][op_id] = named_by.entry
                        for cause in named_by.causes:
                            following[cause].add(job_id)
                        if named_by.entry.kind == SCHEDULE:
                            firing.update((cause, job_id) for cause in named_by.causes)
            layer = following
        self._add_outer_causes(ops)
        return ops

    def _add_outer_causes(self, ops: dict[str, dict[str, LogEntry]]) -> None:
        """Add the causes that are ops of no traced job, such as one that fired a rule."""
        traced = {op_id for of_job in ops.values() for op_id in of_job}
        for of_job in ops.values():
            causes = {cause for op_id in of_job for cause in self._read[op_id].causes}
            of_job.update(
                {op_id: self._read[op_id].entry for op_id in causes - traced if op_id in self._read}
            )

    async def _load(self, op_ids: Iterable[str]) -> None:
        missing = [op_id for op_id in op_ids if op_id not in self._read]
        for start in range(0, len(missing), _MAX_READ):
            values = (*self._store.mesh_id, json(missing[start : start + _MAX_READ]))
            for row in await self._store.read(_ENTRIES_OF, values):
                entry = LogEntry._make(row)
                self._read[entry.op_id] = _named(entry)
                await self._pace.keep(entry.payload)


def _named(entry: LogEntry) -> _Named:
    """Read an entry; one that can't be read names nothing."""
    try:
        jobs = frozenset(_job_ids(orjson.loads(entry.payload)))
    except _READ_ERRORS:
        jobs = frozenset()
    return _Named(entry, jobs, causes_of(entry))


def causes_of(entry: LogEntry) -> list[str]:
    """Return the ops that an entry names as its causes; none if that can't be read."""
    try:
        return [each for each in orjson.loads(entry.causal_deps) if isinstance(each, str)]
    except _READ_ERRORS:
        return []


def _job_ids(payload: dict[str, Any]) -> Iterable[str]:
    items = payload.get("jobs", ())
    return (payload["job_id"],) if "job_id" in payload else (item["job_id"] for item in items)


# --- ends of attempts ----------------------------------------------------------------------------


class AttemptOutcome(NamedTuple):
    """How an attempt ended, and why; both are `None` if it was not ended."""

    outcome: str | None = None
    detail: str | None = None


def attempt_outcome(kind: str, payload: str, job_id: str) -> AttemptOutcome:
    """Return how an op ended an attempt at a job that it names: nothing if it did not, or can't be read."""
    if kind not in _OUTCOMES:
        return AttemptOutcome()
    try:
        document = orjson.loads(payload)
        (item,) = (each for each in document["jobs"] if each["job_id"] == job_id)
    except _READ_ERRORS:
        return AttemptOutcome()
    outcome, detail = _OUTCOMES[kind](document, item)
    return AttemptOutcome(str(outcome), detail[:_MAX_DETAIL] if isinstance(detail, str) else None)


def _completed(_: dict[str, Any], item: dict[str, Any]) -> tuple[Any, Any]:
    return item.get("state", "ended"), item.get("reason")


def _yielded(_: dict[str, Any], item: dict[str, Any]) -> tuple[Any, Any]:
    question = item.get("question")
    if isinstance(question, dict):
        return "asked", question.get("text")
    return "failed" if item.get("failed") else "yielded", item.get("reason")


def _expired(document: dict[str, Any], item: dict[str, Any]) -> tuple[Any, Any]:
    return "expired", item.get("reason", document.get("reason"))


def _aborted(document: dict[str, Any], _: dict[str, Any]) -> tuple[Any, Any]:
    return "aborted", document.get("reason")


_OUTCOMES: Final = {COMPLETE: _completed, YIELD: _yielded, EXPIRE: _expired, ABORT: _aborted}
