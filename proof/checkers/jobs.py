"""Jobs: each ends once, is held under one claim at a time, and starts only after its dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import orjson

from proof.archived_log import log_rows
from proof.checkers.pruning import pruned_by
from proof.final_state import Row, final_rows, grouped
from proof.history import History, Operation
from proof.losses import Losses
from proof.verdicts import Check
from vox_mesh.model.jobs.records import COMPLETE, ENDS, EXPIRE, HELD, SCHEDULE, JobState

_Moves = dict[str, list[Row]]


def _moves(history: History) -> _Moves:
    """Return the transitions of each job, as the witness saw them."""
    return grouped(final_rows(history, "proof_job_moves"), "job_id")


def _ops(history: History) -> dict[str, Row]:
    """Return the accepted ops of the log, by id."""
    return {row["op_id"]: row for row in log_rows(history) if row["accepted"]}


def _is_end(row: Row) -> bool:
    return row["state"] in ENDS


def _text(row: Row) -> str:
    return f"{row['state']} under {row['claim_token']} of {row['claimer']} at {row['at_ms']}"


# --- ends -----------------------------------------------------------------------------------------


def one_end(history: History) -> Iterator[str | int]:
    """Every job has ended, once."""
    moves = _moves(history)
    for job in final_rows(history, "jobs"):
        yield 1
        name, seen = job["job_id"], moves.get(job["job_id"], [])
        if not _is_end(job):
            yield f"job {name} is {job['state']}, and no more was to come"
            continue
        interrupted, allowed = (job[each] or 0 for each in ("interruptions", "max_interruptions"))
        if interrupted > allowed + (job["state"] == JobState.FAILED):
            yield f"job {name} is {job['state']} after {interrupted} interruptions, and may have {allowed}"
        ends = [now for before, now in pairwise(seen) if _is_end(now) and not _is_end(before)]
        if len(ends) != 1:
            yield f"job {name} came to {len(ends)} ends: {', '.join(map(_text, ends))}"
    pruned = pruned_by(history)
    for name, seen in moves.items():
        for before, now in pairwise(seen):
            is_lost = now["deed"] == "delete" and name not in pruned
            if _is_end(before) and (now["state"] != before["state"] or is_lost):
                yield f"job {name} went on after its end: {_text(before)}, then {now['deed']} {_text(now)}"


def one_completion(history: History) -> Iterator[str | int]:
    """At most one completion of a job was accepted, from the holder of its claim; and its work was done."""
    completions: dict[str, list[tuple[Row, int]]] = {}
    for op in _ops(history).values():
        if op["kind"] == COMPLETE:
            for item in orjson.loads(op["payload"])["jobs"]:
                completions.setdefault(item["job_id"], []).append((op, item["claim_token"]))
    done = {(each.data["job"], each.data["token"]) for each in history.notes("job.done")}
    moves = _moves(history)
    for job in final_rows(history, "jobs"):
        yield 1
        name, accepted = job["job_id"], completions.get(job["job_id"], [])
        if len(accepted) > 1:
            yield f"job {name} was completed by {' and '.join(op['op_id'] for op, _ in accepted)}"
        if job["state"] == JobState.SUCCEEDED and (name, job["claim_token"]) not in done:
            yield f"job {name} has succeeded under {job['claim_token']}, and no attempt had completed"
        for op, token in accepted:
            for before, now in pairwise(moves.get(name, [])):
                holder = before["claimer"], before["claim_token"]
                if now["last_op"] == op["op_id"] and holder != (op["node_id"], token):
                    yield f"job {name} was completed by {op['node_id']} under {token}: it was {_text(before)}"


# --- claims ---------------------------------------------------------------------------------------


def claims_apart(history: History) -> Iterator[str | int]:
    """By the database's clock, no claim began, or was revoked, before the previous one was over."""
    ops = _ops(history)
    for name, seen in _moves(history).items():
        yield len(seen)
        for before, now in pairwise(seen):
            is_held, is_anew = before["state"] in HELD, now["claim_token"] != before["claim_token"]
            if is_anew and now["claim_token"] <= before["claim_token"]:
                yield f"job {name}: token {now['claim_token']} came after {before['claim_token']}"
            if not is_held:
                continue
            is_valid = before["lease_until_ms"] >= now["at_ms"]
            if is_anew and is_valid:
                yield f"job {name} was claimed while it was {_text(before)}: {_text(now)}"
            elif not is_anew and now["state"] in HELD:
                if now["claimer"] != before["claimer"]:
                    yield f"job {name} changed hands without a claim: {_text(before)}, then {_text(now)}"
                if not is_valid:
                    yield f"job {name} was kept after its lease: {_text(before)}, then {_text(now)}"
            elif is_valid and _kind_of(ops, now) == EXPIRE:
                yield f"job {name} was taken back early: {_text(before)}, then {_text(now)}"
    losses = Losses(history)
    began = history.notes("job.began")
    begun = Counter((each.data["job"], each.data["token"]) for each in began)
    lost = {(each.data["job"], each.data["token"]) for each in began if losses.covers(each.at, each.who)}
    for (name, token), times in begun.items():
        if times > 1 and (name, token) not in lost:
            yield f"job {name} was begun {times} times under the claim {token}"


def _kind_of(ops: dict[str, Row], move: Row) -> str | None:
    op = ops.get(move["last_op"])
    return None if op is None else op["kind"]


# --- submissions ----------------------------------------------------------------------------------


def _key(job: Row) -> str | None:
    payload: Any = orjson.loads(job["manifest"]).get("payload")
    return payload.get("key") if isinstance(payload, dict) else None


def submitted_once(history: History) -> Iterator[str | int]:
    """A job submitted under one key, however often, exists once; if all were rejected, it does not."""
    jobs = grouped(({**job, "key": _key(job)} for job in final_rows(history, "jobs")), "key")
    operations: dict[str, list[Operation]] = {}
    losses = Losses(history)
    for operation in history.operations("job.submit"):
        operations.setdefault(operation.args["key"], []).append(operation)
    for key, tries in operations.items():
        yield 1
        there = [job["job_id"] for job in jobs.get(key, [])]
        ok = [
            each for each in tries if each.is_ok and not _is_spooled(each) and not losses.may_have_lost(each)
        ]
        if len(there) > 1:
            yield f"the key {key} has become {len(there)} jobs: {', '.join(there)}"
        for operation in ok:
            if operation.result["job"] not in there:
                yield f"job {operation.result['job']} was submitted and is not there: {operation}"
        if sum(operation.result["is_new"] for operation in ok) > 1:
            yield f"the key {key} was new more than once: {ok[0]} and {ok[-1]}"
        if there and not any(operation.may_have_happened for operation in tries):
            yield f"job {there[0]} is there, and its submission was refused: {tries[0]}"


def _is_spooled(operation: Operation) -> bool:
    return bool(operation.result.get("spooled"))


def spooled_in_order(history: History) -> Iterator[str | int]:
    """A spooled job is there, after the ones that its node spooled before; or the log has its refusal."""
    jobs, losses = {_key(job): job for job in final_rows(history, "jobs")}, Losses(history)
    refused = _refused_jobs(history)
    tried: set[str] = set()
    last: dict[str, Row] = {}
    for operation in history.operations("job.submit"):
        key = operation.args["key"]
        is_first = key not in tried
        if operation.may_have_happened:
            tried.add(key)
        if not (operation.is_ok and _is_spooled(operation)) or losses.may_have_lost(operation):
            continue
        yield 1
        job, before = jobs.get(key), last.get(operation.who)
        if job is None:
            if operation.result["job"] not in refused:
                yield f"job {operation.result['job']} was spooled and is not there: {operation}"
        elif is_first and not losses:
            if before is not None and before["id"] > job["id"]:
                yield f"job {job['job_id']} was spooled after {before['job_id']} and scheduled before it"
            last[operation.who] = job


def _refused_jobs(history: History) -> set[str]:
    """Return the ids of the jobs that a refused op was to schedule."""
    ops = (row for row in log_rows(history) if not row["accepted"])
    payloads = (orjson.loads(op["payload"]) for op in ops if op["kind"] == SCHEDULE)
    return {item["job_id"] for payload in payloads for item in payload["jobs"]}


def _needs(history: History) -> Iterator[tuple[str, str]]:
    """Return the jobs that exist, each with the one it was submitted to follow."""
    jobs = {_key(job): job["job_id"] for job in final_rows(history, "jobs")}
    args = {operation.args["key"]: operation.args["needs"] for operation in history.operations("job.submit")}
    for key, needs in args.items():
        if key in jobs:
            yield from ((jobs[key], jobs[need]) for need in needs if need in jobs)


def in_order(history: History) -> Iterator[str | int]:
    """No attempt at a job began before its dependency, as given at submission, had succeeded."""
    moves = _moves(history)
    done: dict[str, float] = {}
    for event in history.notes("job.done"):
        done.setdefault(event.data["job"], event.at)
    begun: dict[str, float] = {}
    for event in history.notes("job.began"):
        begun.setdefault(event.data["job"], event.at)
    for name, needed in _needs(history):
        yield 1
        claimed = next((move["id"] for move in moves.get(name, []) if move["state"] in HELD), None)
        ended = next((move for move in moves.get(needed, []) if _is_end(move)), None)
        if claimed is not None:
            if ended is None or ended["id"] > claimed:
                yield f"job {name} was claimed before {needed}, which it needs, had ended"
            elif ended["state"] != JobState.SUCCEEDED:
                yield f"job {name} was claimed though {needed}, which it needs, is {ended['state']}"
        if name in begun and done.get(needed, float("inf")) > begun[name]:
            yield f"job {name} was begun at {begun[name]:.3f} before {needed}, which it needs, was done"


JOB_CHECKS: Final = (
    Check("one-end", "every job ends exactly once", one_end),
    Check("one-completion", "at most one completion of a job is accepted, from its holder", one_completion),
    Check("claims-apart", "no two claims of a job are valid at the same time", claims_apart),
    Check("jobs-submitted-once", "a job submitted twice under one key exists once", submitted_once),
    Check("jobs-spooled", "a spooled job is scheduled in order, or its refusal is logged", spooled_in_order),
    Check("jobs-in-order", "no job starts before its dependencies have ended", in_order),
)
