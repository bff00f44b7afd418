"""Rollbacks of the store: what was acknowledged in a lost window may be gone; tokens rise all the same."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proof import tables
from proof.checkers.counters import COUNTER_CHECKS
from proof.checkers.dependencies import DEPENDENCY_CHECKS
from proof.checkers.effects import EFFECT_CHECKS
from proof.checkers.jobs import JOB_CHECKS
from proof.checkers.locks import LOCK_CHECKS
from proof.checkers.messages import MESSAGE_CHECKS
from proof.checkers.oplog import OPLOG_CHECKS
from proof.history import Event, History, Step
from proof.losses import NOTE, Loss, Losses
from tests.proof.checkers.timed import Lines, did, faults, final, noted

_KEY = "task:deploy"
_COUNTER = "counter:1"


def _back(kept_until: float, lost_at: float, back_at: float) -> Lines:
    return noted("stage", NOTE, back_at, kept_until=kept_until, lost_at=lost_at, back_at=back_at)


BACK = _back(10.0, 14.0, 15.0)


def _took(who: str, at: float, token: int) -> Lines:
    args = {"keys": [_KEY], "ttl": 5.0, "wait": 0.0}
    return did(who, "lock.take", (at, at + 0.1), args, token=token)


def _put(who: str, at: float, token: int, highest: int, *, is_taken: bool) -> Lines:
    about = {"keys": [_KEY], "token": token, "ttl": 5.0, "cell": _KEY}
    lines = noted(who, "outside.write", at, key=_KEY, token=token, highest=highest, taken=is_taken)
    return lines + did(who, "lock.put", (at - 0.01, at + 0.01), about, taken=is_taken)


# --- locks: strict across it --------------------------------------------------------------------------


def test_a_token_that_was_granted_in_the_lost_window_and_again_after_it_is_found() -> None:
    assert faults(LOCK_CHECKS, "tokens-rise", BACK, _took("ada", 12.0, 7), _took("bob", 16.0, 7))
    assert faults(LOCK_CHECKS, "tokens-rise", BACK, _took("ada", 12.0, 7), _took("bob", 16.0, 6))
    assert faults(LOCK_CHECKS, "tokens-rise", BACK, _took("ada", 12.0, 7), _took("bob", 16.0, 8)) == []


def test_a_hold_that_was_lost_may_be_anothers_and_its_holder_refused_but_no_other_one() -> None:
    lost = BACK, _took("ada", 13.0, 7), _took("bob", 15.5, 8)
    assert faults(LOCK_CHECKS, "locks-linearizable", *lost) == []
    refused = _put("bob", 15.8, 8, 8, is_taken=True), _put("ada", 16.0, 7, 8, is_taken=False)
    assert faults(LOCK_CHECKS, "outside-takes-no-older", *lost, *refused) == []
    fenced_out = _put("bob", 15.8, 8, 9, is_taken=False)
    assert faults(LOCK_CHECKS, "outside-takes-no-older", *lost, fenced_out)


def test_two_who_hold_a_lock_at_once_are_found_before_and_after_a_rollback() -> None:
    for at in (11.0, 16.0):
        both = _took("ada", at, 7), _took("bob", at + 1.0, 8)
        assert faults(LOCK_CHECKS, "locks-linearizable", BACK, *both)


# --- all else: what fell into the window may be gone ---------------------------------------------------


@pytest.mark.parametrize(
    ("at", "is_fault"), [(8.0, True), (9.95, False), (12.0, False), (14.5, False), (15.1, True)]
)
def test_an_effect_that_is_gone_is_a_fault_unless_it_was_reported_in_the_window(
    at: float, is_fault: bool
) -> None:
    lines = did("ada", "effect", (at, at + 0.1), {"key": "e", "number": 1}, spooled=False, repeated=False)
    other = (
        final(tables.EFFECTS, {"effect": "f", "part": 1}),
        did("ada", "effect", (1.0, 1.1), {"key": "f"}, Step.UNKNOWN),
    )
    assert bool(faults(EFFECT_CHECKS, "effect-none-lost", BACK, lines, *other)) is is_fault


def test_what_was_spooled_before_the_window_may_have_been_written_in_it() -> None:
    lines = did("ada", "effect", (8.0, 8.1), {"key": "e", "number": 1}, spooled=True, repeated=False)
    other = (
        final(tables.EFFECTS, {"effect": "f", "part": 1}),
        did("ada", "effect", (1.0, 1.1), {"key": "f"}, Step.UNKNOWN),
    )
    assert faults(EFFECT_CHECKS, "effect-none-lost", BACK, lines, *other) == []


def test_an_effect_outside_may_be_had_again_only_if_its_first_time_was_lost() -> None:
    def had(*times: float) -> list[Lines]:
        return [noted("ada", "outside.effect", at, key="e") for at in times]

    assert faults(EFFECT_CHECKS, "effect-once", BACK, *had(12.0, 16.0)) == []
    assert faults(EFFECT_CHECKS, "effect-once", BACK, *had(9.0, 16.0))
    assert faults(EFFECT_CHECKS, "effect-once", BACK, *had(12.0, 12.5))
    assert faults(EFFECT_CHECKS, "effect-once", BACK, *had(16.0, 17.0))


def _counted(who: str, at: float, over: list[Any]) -> Lines:
    args = {
        "key": _COUNTER,
        "base": over,
        "strategy": "TakeRight",
        "values": {"importance": over[0] + 1, "content": who},
    }
    return did(who, "counter.write", (at, at + 0.1), args, over=over)


def test_a_counter_may_go_back_with_the_store_and_no_further() -> None:
    kept, lost, after = (
        _counted("a", 8.0, [0, None, None]),
        _counted("b", 12.0, [1, "a", None]),
        [1, "a", None],
    )
    end = final("memories", {"memory_key": _COUNTER, "importance": 2, "content": "c", "agent_id": None})
    good = BACK, kept, lost, _counted("c", 16.0, after), end
    for name in ("counters-linearizable", "no-lost-update"):
        assert faults(COUNTER_CHECKS, name, *good) == []
    between = (
        _counted("e", 14.5, after),
        did(
            "e",
            "counter.write",
            (14.4, 16.5),
            {
                "key": _COUNTER,
                "base": after,
                "strategy": "TakeRight",
                "values": {"importance": 2, "content": "f"},
            },
            over=after,
        ),
    )
    assert faults(COUNTER_CHECKS, "counters-linearizable", BACK, kept, lost, *between) == []
    twice = _counted("c", 16.0, after), _counted("d", 17.0, after)
    assert faults(COUNTER_CHECKS, "counters-linearizable", BACK, kept, *twice, end)
    no_more = final("memories", {"memory_key": _COUNTER, "importance": 1, "content": "a", "agent_id": None})
    assert faults(COUNTER_CHECKS, "no-lost-update", BACK, kept, _counted("c", 16.0, after), no_more)


def test_jobs_messages_and_ops_of_the_window_may_be_gone_and_others_not() -> None:
    for at, is_fault in ((12.0, False), (16.0, True)):
        times = (at, at + 0.1)
        job = did("ada", "job.submit", times, {"key": "j", "needs": []}, job="x", is_new=True)
        assert bool(faults(JOB_CHECKS, "jobs-submitted-once", BACK, job)) is is_fault
        sent = did("ada", "message.send", times, {"key": "m", "to": "r"}, spooled=False)
        other = final(
            "a2a_messages", {"message_uuid": "n", "payload": "{}", "state": "stored", "receiver_agent": "r"}
        )
        also = did("ada", "message.send", (1.0, 1.1), {"key": "n", "to": "r"}, Step.UNKNOWN)
        assert bool(faults(MESSAGE_CHECKS, "messages-acked", BACK, sent, other, also)) is is_fault
        op = did("ada", "log.append", times, {"key": "o"}, spooled=False)
        assert bool(faults(OPLOG_CHECKS, "chains-complete", BACK, op)) is is_fault


def test_an_acknowledgement_of_the_window_may_be_gone_and_others_not() -> None:
    row = final(
        "a2a_messages",
        {"message_uuid": "m", "payload": orjson.dumps({}).decode(), "state": "stored", "receiver_agent": "r"},
    )
    sent = did("ada", "message.send", (1.0, 1.1), {"key": "m", "to": "r"}, spooled=False)
    for at, is_fault in ((12.0, False), (16.0, True)):
        ack = did("bob", "message.ack", (at, at + 0.1), {"key": "m", "owner": "bob#1:x"}, spooled=False)
        assert bool(faults(MESSAGE_CHECKS, "messages-acked", BACK, row, sent, ack)) is is_fault


def test_a_spooled_message_of_a_broadcast_may_be_gone_and_the_others_not() -> None:
    row = {"message_uuid": "m", "payload": "{}", "state": "acked", "receiver_agent": "r"}
    acked = did("bob", "message.ack", (16.0, 16.1), {"key": "m", "owner": "bob#1:x"}, spooled=False)
    for spooled, is_fault in (["n"], False), (["m"], True), ([], True):
        sent = did("ada", "message.broadcast", (8.0, 8.1), {}, keys=["m", "n"], spooled=spooled)
        found = faults(MESSAGE_CHECKS, "messages-acked", BACK, sent, final("a2a_messages", row), acked)
        assert bool(found) is is_fault


def _overtaken() -> Lines:
    """Two messages of a pair that were claimed together, the second of which is acknowledged first."""
    pair = {"sender_agent": "ada", "receiver_agent": "r", "expires_ms": None}
    claimed = {"deed": "update", "state": "delivered", "claim_owner": "bob#1:x", "claim_until_ms": 900}
    steps: list[dict[str, Any]] = [
        *({"message_uuid": key, "deed": "insert", "state": "stored", "at_ms": 100} for key in "ab"),
        *({"message_uuid": key, "at_ms": 200} | claimed for key in "ab"),
        {"message_uuid": "b", "at_ms": 800} | claimed | {"state": "acked"},
    ]
    none = {"claim_owner": None, "claim_until_ms": None}
    moves = (
        {"id": number, "hlc": step["message_uuid"]} | none | pair | step
        for number, step in enumerate(steps, 1)
    )
    return final("proof_message_moves", *moves)


def _acked(key: str, at: float, owner: str, *, spooled: bool = False) -> Lines:
    return did("bob", "message.ack", (at, at + 0.1), {"key": key, "owner": owner}, spooled=spooled)


@pytest.mark.parametrize(
    ("at", "owner", "is_fault"),
    [(12.0, "bob#1:x", False), (8.0, "bob#1:x", True), (12.0, "bob#1:before", True)],
)
def test_a_message_behind_one_whose_acknowledgement_was_lost_may_be_acknowledged_first(
    at: float, owner: str, is_fault: bool
) -> None:
    acks = _acked("a", at, owner), _acked("b", 16.0, "bob#1:x")
    assert bool(faults(MESSAGE_CHECKS, "messages-in-order", BACK, _overtaken(), *acks)) is is_fault


@pytest.mark.parametrize(
    ("at", "spooled", "is_fault"), [(13.0, True, False), (13.0, False, True), (11.0, True, True)]
)
def test_a_spooled_acknowledgement_may_be_repeated_before_one_that_was_lost(
    at: float, spooled: bool, is_fault: bool
) -> None:
    first = did("cleo", "message.ack", (12.0, 12.1), {"key": "a", "owner": "cleo#1:x"}, spooled=False)
    acks = first, _acked("b", at, "bob#1:before", spooled=spooled)
    assert bool(faults(MESSAGE_CHECKS, "messages-in-order", BACK, _overtaken(), *acks)) is is_fault


@pytest.mark.parametrize(("at", "is_fault"), [(12.0, False), (17.0, True)])
def test_an_acknowledgement_that_waits_in_the_spool_was_made(at: float, is_fault: bool) -> None:
    acks = _acked("a", at, "bob#1:before", spooled=True), _acked("b", 16.0, "bob#1:x")
    assert bool(faults(MESSAGE_CHECKS, "messages-in-order", _overtaken(), *acks)) is is_fault


def test_a_job_may_be_begun_again_under_the_token_of_a_claim_that_was_lost() -> None:
    moved = final("proof_job_moves", {"job_id": "j", "state": "pending", "claim_token": 1})
    for first, is_fault in ((12.0, False), (9.0, True)):
        begun = [noted("ada", "job.began", at, job="j", token=3) for at in (first, 16.0)]
        assert bool(faults(JOB_CHECKS, "claims-apart", BACK, moved, *begun)) is is_fault


@pytest.mark.parametrize(("kind", "is_fault"), [("ClaimWork", False), ("proof.note", True)])
def test_only_the_op_of_a_job_may_name_a_cause_that_was_lost(kind: str, is_fault: bool) -> None:
    row = {"id": 1, "node_id": "ada", "op_id": "o", "kind": kind, "causal_deps": '["lost"]', "payload": "{}"}
    entry = final("agent_oplog", row | {"accepted": 1, "reason": None})
    assert bool(faults(DEPENDENCY_CHECKS, "ops-in-order", BACK, entry)) is is_fault
    assert faults(DEPENDENCY_CHECKS, "ops-in-order", entry) != []


def test_what_a_stopped_player_notes_when_it_goes_on_may_be_of_the_window() -> None:
    paused, resumed = (
        noted("stage", "paused", 13.0, player="ada"),
        noted("stage", "resumed", 20.0, player="ada"),
    )
    losses = Losses(History([*BACK, *paused, *resumed]))
    assert losses.covers(20.5, "ada")
    assert not losses.covers(20.5, "bob")
    assert not losses.covers(22.0, "ada")


def test_eras_lie_between_rollbacks() -> None:
    events: list[Event] = [*BACK, *_back(18.0, 20.0, 21.0)]
    losses = Losses(History(events))
    assert losses.all == (Loss(10.0, 14.0, 15.0), Loss(18.0, 20.0, 21.0))
    assert losses.era_of(1.0, 13.0) == 0
    assert losses.era_of(13.0, 14.5) is None
    assert losses.era_of(15.0, 20.0) == 1
    assert losses.span(1.0, float("inf")) == (0, 2)
    assert losses.bounds(1) == (15.0, 20.0)


def test_a_log_behind_what_a_node_remembers_is_excused_only_around_a_rollback() -> None:
    behind = "/None: the log was rolled back since the memory of node ada recorded: heartbeat 2 is below 3"

    def verified(at: float, problem: str) -> list[str]:
        return faults(
            OPLOG_CHECKS,
            "chains-whole",
            BACK,
            did("bob", "log.verify", (at, at + 0.1), {}, problems=[problem]),
        )

    assert verified(15.5, behind) == []
    assert verified(9.0, behind)
    assert verified(30.0, behind)
    assert verified(15.5, "ada/2: the hash is wrong")
