"""Pruning: only ended jobs go, by an op of the log, and never one that another job that stays refers to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from proof.archived_log import log_rows
from proof.final_state import Row, final_rows
from proof.history import History
from proof.verdicts import Check
from vox_mesh.model.jobs.records import ENDS, SCHEDULE
from vox_mesh.model.retention.ops import PRUNE


def pruned_by(history: History) -> dict[str, list[str]]:
    """Return the jobs that accepted ops of the log have pruned, with the ids of the ops."""
    found: dict[str, list[str]] = {}
    for entry in _accepted(history, PRUNE):
        for item in orjson.loads(entry["payload"])["jobs"]:
            found.setdefault(item["job_id"], []).append(entry["op_id"])
    return found


def nothing_needed(history: History) -> Iterator[str | int]:
    """Compare the deletions of jobs, as the witness saw them, with the log."""
    pruned, referrers = pruned_by(history), _referrers(history)
    states: dict[str, str] = {}
    existing: set[str] = set()
    for move in final_rows(history, "proof_job_moves"):
        job_id = move["job_id"]
        states[job_id] = move["state"]
        if move["deed"] != "delete":
            existing.add(job_id)
            continue
        yield 1
        existing.discard(job_id)
        ops = pruned.get(job_id)
        if ops is None:
            yield f"job {job_id} was deleted, and no op has pruned it"
            continue
        if states[job_id] not in ENDS:
            yield f"job {job_id} was pruned while it was {states[job_id]}"
        for other in referrers.get(job_id, set()) & existing:
            if not set(ops) & set(pruned.get(other, ())):  # gone with it, in the same transaction
                yield f"job {job_id} was pruned, and {other} refers to it"


def _referrers(history: History) -> dict[str, set[str]]:
    """Return the jobs that wait or waited for each job, or retry it."""
    found: dict[str, set[str]] = {}
    for entry in _accepted(history, SCHEDULE):
        for item in orjson.loads(entry["payload"])["jobs"]:
            for name in _names(item):
                found.setdefault(name, set()).add(item["job_id"])
    return found


def _names(item: dict[str, Any]) -> Iterator[str]:
    yield from (name for name, awaited in item.get("after") or () if awaited != "op")
    if (retried := item["manifest"].get("retry_of")) is not None:
        yield retried


def _accepted(history: History, kind: str) -> Iterator[Row]:
    return (row for row in log_rows(history) if row["accepted"] and row["kind"] == kind)


PRUNING_CHECKS: Final = (
    Check(
        "nothing-pruned-that-is-needed",
        "only ended jobs are pruned, by an op of the log, and none that another job refers to",
        nothing_needed,
    ),
)
