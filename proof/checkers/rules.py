"""Rules: each op that is logged after a rule was added has one job, and the log says which op led to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from proof.archived_log import log_rows
from proof.final_state import Row, final_rows
from proof.history import History
from proof.verdicts import Check
from proof.workloads.rules import EVENT, NAME


def rules_once(history: History) -> Iterator[str | int]:
    """Compare the ops in the log with the accepted ops that scheduled jobs for them."""
    accepted = [row for row in log_rows(history) if row["accepted"]]
    added = min((row["id"] for row in accepted if row["kind"] == "AddRule"), default=None)
    if added is None:
        return
    events = {row["op_id"]: row["id"] for row in accepted if row["kind"] == EVENT.name}
    jobs = {row["job_id"] for row in final_rows(history, "jobs")}
    fired: dict[str, list[str]] = {}
    for row in accepted:
        for op_id, job_id in _firings(row):
            fired.setdefault(op_id, []).append(job_id)
            if op_id not in orjson.loads(row["causal_deps"]):
                yield f"op {row['op_id']} schedules the job for {op_id}, and does not name it as its cause"
    for op_id, entry_id in events.items():
        yield 1
        times = len(fired.get(op_id, ()))
        if times != (entry_id > added):
            yield f"op {op_id} has fired {times} times; the rule was added at {added}, the op at {entry_id}"
    for op_id, job_ids in fired.items():
        if op_id not in events:
            yield f"the rule has fired for {op_id}, which is not in the log"
        if missing := {*job_ids} - jobs:
            yield f"the job {missing.pop()} for {op_id} is not there"


def _firings(entry: Row) -> Iterator[tuple[str, str]]:
    """Yield the op and the job of each firing that an entry of the log records."""
    if entry["kind"] == "ScheduleJob":
        for item in orjson.loads(entry["payload"])["jobs"]:
            name, _, op_id = str(item["manifest"].get("nonce", "")).partition("@")
            if name == NAME:
                yield op_id, item["job_id"]


RULE_CHECKS: Final = (Check("rules-once", "a rule schedules one job for each op, whatever dies", rules_once),)
