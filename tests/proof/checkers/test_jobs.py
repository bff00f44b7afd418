"""What the judges of jobs, crons and rules find, and what they have nothing against."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proof.checkers.crons import CRON_CHECKS
from proof.checkers.jobs import JOB_CHECKS
from proof.checkers.pruning import PRUNING_CHECKS
from proof.checkers.rules import RULE_CHECKS
from proof.checkers.spending import SPENDING_CHECKS
from proof.history import Step
from proof.workloads.spending import KIND
from tests.proof.checkers.story import Story, faults

_MINUTE = 60_000

Move = tuple[int, str, int, str | None, int | None, str]
"""When, the state, the token, the claimer, until when, and by which op."""

GOOD: list[Move] = [
    (100, "pending", 0, None, None, "submit"),
    (200, "claimed", 1, "ada", 1_200, "claim"),
    (200, "running", 1, "ada", 1_200, "start"),
    (900, "running", 1, "ada", 1_900, "renew"),
    (1_901, "pending", 1, None, None, "expire"),
    (2_000, "claimed", 2, "bob", 3_000, "claim2"),
    (2_000, "running", 2, "bob", 3_000, "start2"),
    (3_100, "succeeded", 2, "bob", None, "complete"),
]


def _tell(story: Story, moves: list[Move], job_id: str = "j", **more: Any) -> None:
    for at_ms, state, token, claimer, until_ms, op in moves:
        operation = "insert" if op == "submit" else "update"
        where = {"job_id": job_id, "state": state, "claim_token": token, "claimer": claimer}
        story.final(
            "proof_job_moves",
            **where,
            at_ms=at_ms,
            lease_until_ms=until_ms,
            last_op=op + job_id,
            deed=operation,
        )
    manifest = orjson.dumps({"payload": {"key": f"key of {job_id}"}}).decode()
    story.final("jobs", job_id=job_id, **_end(moves), manifest=manifest, **more)


def _end(moves: list[Move]) -> dict[str, Any]:
    _, state, token, claimer, *_ = moves[-1]
    return {"state": state, "claim_token": token, "claimer": claimer}


def _op(story: Story, op_id: str, kind: str, node: str, **item: Any) -> None:
    payload = orjson.dumps({"jobs": [item]}).decode()
    story.final("agent_oplog", op_id=op_id, kind=kind, node_id=node, accepted=1, payload=payload)


def _story(moves: list[Move] = GOOD) -> Story:
    story = Story()
    story.node("ada").note("job.began", job="j", token=1)
    story.node("bob").note("job.began", job="j", token=2)
    story.node("bob").note("job.done", job="j", token=2)
    story.did("ada", "job.submit", {"key": "key of j", "needs": []}, Step.UNKNOWN)
    story.did("ada", "job.submit", {"key": "key of j", "needs": []}, job="j", is_new=False)
    story.did("ada", "job.submit", {"key": "of another", "needs": []}, Step.NO)
    _tell(story, moves)
    _op(story, "expirej", "ExpireWork", "cyd", job_id="j", claim_token=1)
    _op(story, "completej", "CompleteJob", "bob", job_id="j", claim_token=2)
    return story


@pytest.mark.parametrize("name", ["one-end", "one-completion", "claims-apart", "jobs-submitted-once"])
def test_a_job_that_was_lost_and_done_by_another_is_all_right(name: str) -> None:
    assert faults(JOB_CHECKS, name, _story()) == []


def test_a_job_without_an_end_is_found() -> None:
    assert "is running" in faults(JOB_CHECKS, "one-end", _story(GOOD[:-1]))[0]


def test_a_second_end_is_found() -> None:
    again: Move = (3_200, "failed", 2, "bob", None, "again")
    assert "went on after its end" in faults(JOB_CHECKS, "one-end", _story([*GOOD, again]))[0]


def test_a_second_completion_is_found() -> None:
    story = _story()
    _op(story, "twice", "CompleteJob", "ada", job_id="j", claim_token=1)
    assert "was completed by completej and twice" in faults(JOB_CHECKS, "one-completion", story)[0]


def test_a_completion_under_an_old_claim_is_found() -> None:
    stale: Move = (2_500, "succeeded", 2, "bob", None, "stale")
    story = _story([*GOOD[:-1], stale])
    _op(story, "stalej", "CompleteJob", "ada", job_id="j", claim_token=1)
    found = faults(JOB_CHECKS, "one-completion", story)
    assert any("by ada under 1: it was running under 2 of bob" in each for each in found)


def test_a_success_without_an_attempt_is_found() -> None:
    story = _story()
    story.events = [each for each in story.events if each.what != "job.done"]
    assert "no attempt had completed" in faults(JOB_CHECKS, "one-completion", story)[0]


@pytest.mark.parametrize(
    ("place", "move", "fault"),
    [
        (4, (1_800, "pending", 1, None, None, "expire"), "taken back early"),
        (4, (1_900, "claimed", 2, "bob", 3_000, "claim2"), "was claimed while"),
        (3, (1_300, "running", 1, "ada", 2_300, "renew"), "kept after its lease"),
        (3, (900, "running", 1, "cyd", 1_900, "renew"), "changed hands"),
        (5, (2_000, "claimed", 3, "bob", 3_000, "claim2"), "token 2 came after 3"),
    ],
)
def test_claims_that_overlap_are_found(place: int, move: Move, fault: str) -> None:
    story = _story([*GOOD[:place], move, *GOOD[place + 1 :]])
    assert fault in " ".join(faults(JOB_CHECKS, "claims-apart", story))


def test_an_attempt_that_is_begun_twice_is_found() -> None:
    story = _story()
    story.node("cyd").note("job.began", job="j", token=2)
    assert "begun 2 times" in faults(JOB_CHECKS, "claims-apart", story)[0]


def test_a_key_that_became_two_jobs_none_or_one_against_its_word_is_found() -> None:
    story = _story()
    _tell(story, GOOD, "k")
    manifest = orjson.dumps({"payload": {"key": "key of j"}}).decode()
    story.final("jobs", job_id="l", state="aborted", manifest=manifest)
    story.did("ada", "job.submit", {"key": "key of k", "needs": []}, Step.NO)
    story.did("ada", "job.submit", {"key": "key of m", "needs": []}, job="m", is_new=True)
    text = " ".join(faults(JOB_CHECKS, "jobs-submitted-once", story))
    assert "has become 2 jobs: j, l" in text
    assert "job k is there" in text
    assert "job m was submitted and is not there" in text


def test_a_job_waits_for_what_it_needs() -> None:
    story = _story()
    story.node("ada").note("job.began", job="after", token=1)
    _tell(
        story, [(50, "pending", 0, None, None, "submit"), (4_000, "claimed", 1, "ada", 9_000, "c")], "after"
    )
    story.did("ada", "job.submit", {"key": "key of after", "needs": ["key of j"]}, job="after", is_new=True)
    assert faults(JOB_CHECKS, "jobs-in-order", story) == []


def test_a_job_that_did_not_wait_is_found() -> None:
    story = Story()
    story.node("ada").note("job.began", job="after", token=1)
    _tell(story, [(50, "pending", 0, None, None, "submit"), (60, "claimed", 1, "ada", 9_000, "c")], "after")
    _tell(story, GOOD)
    story.did("ada", "job.submit", {"key": "key of after", "needs": ["key of j"]}, job="after", is_new=True)
    text = " ".join(faults(JOB_CHECKS, "jobs-in-order", story))
    assert "was claimed before j" in text
    assert "was begun at" in text


def _cron(story: Story, operation: str, at_ms: int, next_ms: int, last_ms: int | None = None) -> None:
    what = {"name": "c", "expression": "* * * * *", "timezone": "UTC", "last_job": "j"}
    story.final("proof_cron_moves", **what, deed=operation, at_ms=at_ms, next_ms=next_ms, last_ms=last_ms)


def _crons(*fired: tuple[int, int, int]) -> Story:
    story = Story()
    story.final("jobs", job_id="j", state="succeeded")
    _cron(story, "insert", 1_000, _MINUTE)
    for at_ms, last_ms, next_ms in fired:
        _cron(story, "update", at_ms, next_ms, last_ms)
    story.node("stage").note("final.clock", now_ms=5 * _MINUTE)
    return story


def test_a_cron_that_catches_up_with_the_last_time_is_all_right() -> None:
    story = _crons((_MINUTE + 10, _MINUTE, 2 * _MINUTE), (4 * _MINUTE + 9, 4 * _MINUTE, 5 * _MINUTE))
    assert faults(CRON_CHECKS, "crons-once", story) == []


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ((_MINUTE + 20, _MINUTE, 2 * _MINUTE), "fired twice"),
        ((2 * _MINUTE + 20, 2 * _MINUTE, 4 * _MINUTE), "after 120000 came 240000"),
        ((2 * _MINUTE - 5, 2 * _MINUTE, 3 * _MINUTE), "was fired at 119995"),
        ((2 * _MINUTE + 5, 2 * _MINUTE, 3 * _MINUTE), "was not fired until"),
    ],
)
def test_crons_that_fire_twice_early_or_never_are_found(second: tuple[int, int, int], fault: str) -> None:
    story = _crons((_MINUTE + 10, _MINUTE, 2 * _MINUTE), second)
    assert fault in " ".join(faults(CRON_CHECKS, "crons-once", story))


# --- rules ----------------------------------------------------------------------------------------


def _rules(*firings: str, jobs: str = "x y", cause: bool = True) -> Story:
    """Three ops, the first before the rule, and the ops for which the rule has fired."""
    story = Story()
    row = {"accepted": 1, "causal_deps": "[]", "payload": "{}"}
    kinds = {"w": "rules.event", "add": "AddRule", "x": "rules.event", "y": "rules.event"}
    for number, (op_id, kind) in enumerate(kinds.items()):
        story.final("agent_oplog", **row | {"id": number, "op_id": op_id, "kind": kind})
    for number, op_id in enumerate(firings, len(kinds)):
        job = {"job_id": op_id, "manifest": {"nonce": f"rules-event@{op_id}"}}
        row["payload"] = orjson.dumps({"jobs": [job]}).decode()
        row["causal_deps"] = orjson.dumps([op_id] if cause else []).decode()
        story.final("agent_oplog", **row | {"id": number, "op_id": f"s{number}", "kind": "ScheduleJob"})
    for op_id in jobs.split():
        story.final("jobs", job_id=op_id)
    return story


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_rules("x", "y"), ""),
        (_rules("x", "y", "x"), "op x has fired 2 times"),
        (_rules("x"), "op y has fired 0 times"),
        (_rules("w", "x", "y"), "op w has fired 1 times"),
        (_rules("x", "y", "z"), "the rule has fired for z, which is not in the log"),
        (_rules("x", "y", jobs="x"), "the job y for y is not there"),
        (_rules("x", "y", cause=False), "does not name it as its cause"),
    ],
)
def test_rules_that_fire_twice_or_never_are_found(story: Story, fault: str) -> None:
    found = " ".join(faults(RULE_CHECKS, "rules-once", story))
    assert fault in found
    assert bool(found) is bool(fault)


# --- pruning --------------------------------------------------------------------------------------


def _pruning(moves: str, *ops: str) -> Story:
    """Jobs come (+a), end (a!) and are deleted (-a), as b, which waits for a. Each op prunes these jobs."""
    story = Story()
    row: dict[str, Any] = {"accepted": 1, "op_id": "s", "kind": "ScheduleJob", "id": 1}
    items = [{"job_id": "a", "manifest": {}}, {"job_id": "b", "after": [["a", "end"]], "manifest": {}}]
    story.final("agent_oplog", **row | {"payload": orjson.dumps({"jobs": items}).decode()})
    for number, names in enumerate(ops, 2):
        payload = orjson.dumps({"jobs": [{"job_id": name} for name in names]}).decode()
        story.final(
            "agent_oplog", **row | {"id": number, "op_id": names, "kind": "PruneJobs", "payload": payload}
        )
    states = {"+": ("insert", "pending"), "!": ("update", "succeeded"), "-": ("delete", "succeeded")}
    for number, move in enumerate(moves.split()):
        name = move.strip("+-!?")
        deed, state = ("delete", "running") if "?" in move else states[move.strip(name)]
        story.final("proof_job_moves", id=number, job_id=name, deed=deed, state=state)
    return story


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_pruning("+a +b a! b! -b -a", "b", "a"), ""),
        (_pruning("+a +b a! b! -a -b", "ab"), ""),
        (_pruning("+a +b a! -a", "a"), "job a was pruned, and b refers to it"),
        (_pruning("+a +b a! b! -a -b", "a", "b"), "job a was pruned, and b refers to it"),
        (_pruning("+a +b a! b! -b", "a"), "job b was deleted, and no op has pruned it"),
        (_pruning("+b -b?", "b"), "job b was pruned while it was running"),
    ],
)
def test_what_is_pruned_though_it_is_needed_is_found(story: Story, fault: str) -> None:
    found = " ".join(faults(PRUNING_CHECKS, "nothing-pruned-that-is-needed", story))
    assert fault in found
    assert bool(found) is bool(fault)


# --- spending -------------------------------------------------------------------------------------


def _spending(text: str, spent: int) -> Story:
    """Jobs are claimed (+a), end after some tokens (a:9), are charged (a*9) or lose their leases (-a)."""
    story = Story()
    for number, step in enumerate(text.split()):
        match step[0], step[1:2]:
            case ("+", _):
                kind, job, tokens = "ClaimWork", step[1:], None
            case ("-", _):
                kind, job, tokens = "ExpireWork", step[1:], None
            case (job, mark):
                kind, tokens = "CompleteJob" if mark == ":" else "ChargeTokens", int(step[2:])
        item: dict[str, Any] = {"job_id": job}
        if tokens is not None:
            item["usage"] = {"models": {"m": {"input_tokens": tokens, "output_tokens": 0}}}
        payload = orjson.dumps(item if kind == "ChargeTokens" else {"jobs": [item]}).decode()
        row = {"id": number, "op_id": str(number), "kind": kind, "accepted": 1}
        story.final("agent_oplog", **row, payload=payload, result=None)
    for job in "abcdefg":
        story.final("jobs", job_id=job, kind=KIND)
    story.final("spend_limits", subject="account:spending", spent=spent)
    return story


@pytest.mark.parametrize(
    ("text", "spent", "fault"),
    [
        ("+a +b +c +d +e +f a:5 b:0 c:0 d:0 e:0 f:0", 5, ""),
        ("+a +b +c +d +e +f +g", 0, "0 tokens are spent and 70 reserved, where 60 are allowed"),
        ("+a +b +c +d +e +f -f +g", 0, ""),
        ("+a a:30 +b +c +d +e", 30, ""),  # it has overrun its reservation
        ("+a a*8 +b +c +d +e +f a:2", 10, ""),
        ("+a a*8 a:2 +b +c +d +e +f +g", 10, "10 tokens are spent and 60 reserved"),
        ("+a -a a*9", 9, ""),  # the attempt has lost its claim
        ("+a a:5", 4, "has spent 4 tokens, and 5 by the log"),
    ],
)
def test_budgets_that_are_exceeded_are_found(text: str, spent: int, fault: str) -> None:
    found = " ".join(faults(SPENDING_CHECKS, "budget-not-exceeded", _spending(text, spent)))
    assert fault in found
    assert bool(found) is bool(fault)


# --- spooled -------------------------------------------------------------------------------------


def _spooled(*ids: int, **refused: Any) -> Story:
    story = Story()
    for number, row_id in enumerate(ids):
        name = f"s{number}"
        story.did("ada", "job.submit", {"key": name, "needs": []}, job=name, is_new=True, spooled=True)
        if row_id:
            story.final("jobs", id=row_id, job_id=name, manifest=orjson.dumps({"payload": {"key": name}}))
    for name in refused:
        payload = orjson.dumps({"jobs": [{"job_id": name}]}).decode()
        story.final("agent_oplog", op_id=name, kind="ScheduleJob", node_id="ada", accepted=0, payload=payload)
    return story


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_spooled(1, 2, 3), ""),
        (_spooled(1, 3, 2), "spooled after s1 and scheduled before it"),
        (_spooled(1, 0, 3), "was spooled and is not there"),
        (_spooled(1, 0, 3, s1=True), ""),
    ],
)
def test_a_spooled_job_is_there_in_order_or_was_refused(story: Story, fault: str) -> None:
    found = " ".join(faults(JOB_CHECKS, "jobs-spooled", story))
    assert fault in found
    assert bool(found) is bool(fault)
