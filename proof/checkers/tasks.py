"""Tasks of MCP clients: what was acknowledged is there, leads to its job, and ends once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import orjson

from proof.archived_log import log_rows
from proof.final_state import final_rows
from proof.history import History, Operation
from proof.losses import Losses
from proof.verdicts import Check

_OPEN: Final = ("working", "input_required", None)


def none_lost(history: History) -> Iterator[str | int]:
    """Compare the tasks that clients were given with the table and the log."""
    losses = Losses(history)
    kept = {row["task_hash"]: row["job_id"] for row in final_rows(history, "mcp_tasks")}
    named: dict[str, str] = {}
    for row in log_rows(history):
        if row["accepted"] and row["kind"] == "ScheduleJob":
            items = orjson.loads(row["payload"])["jobs"]
            named |= {item["task"]: item["job_id"] for item in items if "task" in item}
    for created in history.operations("task.create"):
        if not created.is_ok or losses.may_have_lost(created):
            continue
        yield 1
        task, job = created.result["task"], created.result["job"]
        hashed = hashlib.sha256(task.encode()).hexdigest()
        for where, found in (("table", kept.get(hashed)), ("log", named.get(hashed))):
            if found != job:
                yield f"the task of job {job} leads to {found} in the {where}"


def ends_once(history: History) -> Iterator[str | int]:
    """Look at what clients saw of each task, in order: it is there, of one job, and stays ended."""
    losses = Losses(history)
    created = {each.result["task"]: each for each in history.operations("task.create") if each.is_ok}
    ended: dict[str, Operation] = {}
    asked = [*history.operations("task.get"), *history.operations("task.cancel")]
    for each in sorted(asked, key=lambda each: each.began):
        task = each.args["task"]
        if not each.is_ok or task not in created or losses.may_have_lost(created[task]):
            continue
        yield 1
        job, status = created[task].result["job"], each.result["status"]
        if each.result["job"] != job:
            yield f"the task of job {job} was found with job {each.result['job']}"
        last = ended.get(task)
        if last is not None and _is_between(losses, last, each):
            del ended[task]
            last = None
        if last is not None and last.ended < each.began and status != last.result["status"]:
            yield f"the task of job {job} was {last.result['status']}, and later {status}"
        if status not in _OPEN and (last is None or each.ended < last.ended):
            ended[task] = each


def _is_between(losses: Losses, first: Operation, second: Operation) -> bool:
    """Return whether a rollback may have lost what the first of two operations saw."""
    return any(first.began < loss.back_at and second.ended > loss.kept_until for loss in losses.all)


TASK_CHECKS: Final = (
    Check("tasks-none-lost", "a task that a client was given leads to its job, whatever dies", none_lost),
    Check("tasks-end-once", "a task is found by its id, and stays as it has ended", ends_once),
)
