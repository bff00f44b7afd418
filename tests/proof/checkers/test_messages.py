"""What the judges of messages find, and what they have nothing against."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proof.checkers.messages import MESSAGE_CHECKS
from proof.history import Step
from proof.workloads.messages import UNREADABLE_PAYLOAD
from tests.proof.checkers.story import Story, faults

ADA = "ada#1:x"
BOB = "bob#1:y"


def _move(story: Story, key: str, at_ms: int, state: str, owner: str | None = None, **more: Any) -> None:
    """A move of a message whose name is its time, too."""
    until_ms = at_ms + 1_000 if state == "delivered" else None
    who = {"message_uuid": key, "hlc": key, "sender_agent": "s", "receiver_agent": "r"}
    text = {"at_ms": at_ms, "state": state, "claim_owner": owner, "claim_until_ms": until_ms}
    story.final("proof_message_moves", **(who | text | more))


def _row(story: Story, key: str, state: str, **more: Any) -> None:
    story.final(
        "a2a_messages", message_uuid=key, state=state, payload=orjson.dumps({"key": key}).decode(), **more
    )


def _sent(story: Story, key: str, step: Step = Step.OK) -> None:
    story.did("s", "message.send", {"key": key, "to": "r"}, step, spooled=False)


def _acked(story: Story, key: str, step: Step = Step.OK) -> None:
    story.did("r", "message.ack", {"key": key, "owner": ADA}, step, spooled=False)


def _good() -> Story:
    """Acknowledged, expired and dead ones; one that no one knows of, and one whose answer never came."""
    story = Story()
    for key in ("1", "2", "3"):
        _sent(story, key)
    _sent(story, "4", Step.UNKNOWN)
    _sent(story, "5", Step.UNKNOWN)
    _sent(story, "6", Step.NO)
    _acked(story, "1", Step.UNKNOWN)
    _acked(story, "4")
    _row(story, "1", "acked")
    _row(story, "2", "expired", expires_ms=500, ended_ms=600)
    _row(story, "3", "dead", delivery_attempts=2, max_attempts=2)
    _row(story, "4", "acked")
    for key in ("1", "2", "3", "4"):
        _move(story, key, 100, "stored", deed="insert", expires_ms=500 if key == "2" else None)
    _move(story, "1", 200, "delivered", ADA)
    _move(story, "1", 300, "acked", ADA)
    _move(story, "2", 600, "expired")
    _move(story, "3", 700, "delivered", ADA)
    _move(story, "3", 1_800, "delivered", BOB)
    _move(story, "3", 1_900, "dead", BOB)
    _move(story, "4", 2_000, "delivered", ADA)
    _move(story, "4", 2_100, "acked", ADA)
    return story


@pytest.mark.parametrize("name", [check.name for check in MESSAGE_CHECKS])
def test_messages_that_end_as_the_rules_have_it_are_all_right(name: str) -> None:
    story = _good()
    story.node("r").note("message.handed", key="2", expires_ms=500, now_ms=490)
    story.did("s", "message.send", {"key": "7", "to": "r", "ttl": 1.0}, Step.UNKNOWN)
    story.node("stage").note("monitor.expired", key="7")
    unreadable = {"payload": UNREADABLE_PAYLOAD, "receiver_agent": "proof-r"}
    story.final("a2a_messages", message_uuid="8", state="dead", ended_reason="unreadable: deep", **unreadable)
    assert faults(MESSAGE_CHECKS, name, story) == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"state": "delivered"}, "no more was to come"),
        ({"state": "dead", "delivery_attempts": 1, "max_attempts": 2}, "is dead after 1 of 2"),
        ({"state": "expired", "ended_ms": 600}, "before its time"),
        ({"state": "acked"}, "no consumer acknowledged it"),
    ],
)
def test_a_message_that_ended_otherwise_is_found(row: dict[str, Any], fault: str) -> None:
    story = Story()
    _sent(story, "1")
    _row(story, "1", receiver_agent="proof-r", **row)
    assert fault in faults(MESSAGE_CHECKS, "messages-acked", story)[0]


def test_a_message_that_was_lost_or_whose_acknowledgement_was_is_found() -> None:
    story = Story()
    _sent(story, "1")
    _sent(story, "2")
    _acked(story, "2")
    _row(story, "2", "dead", delivery_attempts=1, max_attempts=1)
    _move(story, "2", 100, "acked")
    _move(story, "2", 200, "stored")
    text = " ".join(faults(MESSAGE_CHECKS, "messages-acked", story))
    assert "message 1 was sent and is not there" in text
    assert "is dead though it was acknowledged" in text
    assert "message 2 went on after its end" in text


def test_an_unreadable_message_that_did_not_end_is_found() -> None:
    story = Story()
    unreadable = {"payload": UNREADABLE_PAYLOAD, "receiver_agent": "proof-r"}
    story.final("a2a_messages", message_uuid="8", state="stored", ended_reason=None, **unreadable)
    assert faults(MESSAGE_CHECKS, "unreadable-not-handed-out", story) == ["unreadable message 8 is stored"]


def test_an_unreadable_message_that_was_claimed_until_its_attempts_were_used_up_is_found() -> None:
    story = Story()
    unreadable = {"payload": UNREADABLE_PAYLOAD, "receiver_agent": "proof-r"}
    reason = "not acknowledged in 20 attempts"
    story.final("a2a_messages", message_uuid="8", state="dead", ended_reason=reason, **unreadable)
    (fault,) = faults(MESSAGE_CHECKS, "unreadable-not-handed-out", story)
    assert fault == f"unreadable message 8 is dead only by its attempts: {reason}"


def test_a_key_that_became_two_messages_or_one_against_its_word_is_found() -> None:
    story = _good()
    _row(story, "1", "acked")
    _row(story, "6", "acked")
    text = " ".join(faults(MESSAGE_CHECKS, "messages-once", story))
    assert "the key 1 has become 2 messages" in text
    assert "message 6 is there, and every send was refused" in text


def test_an_acknowledgement_of_another_or_too_late_is_found() -> None:
    story = Story()
    _acked(story, "1")
    _move(story, "1", 100, "delivered", BOB)
    _move(story, "1", 200, "acked", BOB)
    _move(story, "2", 100, "delivered", ADA)
    _move(story, "2", 1_200, "acked", ADA)
    text = " ".join(faults(MESSAGE_CHECKS, "acked-by-holder", story))
    assert "message 2 was acknowledged at 1200, without a holder" in text
    assert "r acknowledged 1 of bob#1:y" in text


@pytest.mark.parametrize("was_acked_first", [True, False])
def test_a_message_that_is_sent_again_after_its_end_may_be_acknowledged_before_earlier_ones(
    was_acked_first: bool,
) -> None:
    story = Story()
    _sent(story, "2", Step.UNKNOWN)
    if was_acked_first:
        _acked(story, "2", Step.UNKNOWN)
    _sent(story, "1")
    _sent(story, "2")
    for key in ("1", "2"):
        _move(story, key, 100, "stored", deed="insert")
    for key in ("1", "2"):
        _move(story, key, 200, "delivered", BOB)
    _move(story, "2", 300, "acked", BOB)
    assert (faults(MESSAGE_CHECKS, "messages-in-order", story) == []) == was_acked_first


def test_a_later_message_that_is_acknowledged_first_is_found() -> None:
    story = Story()
    for key in ("1", "2"):
        _move(story, key, 100, "stored", deed="insert")
    _move(story, "2", 200, "delivered", ADA)
    _move(story, "2", 300, "acked", ADA)
    assert "before 1, which is earlier" in faults(MESSAGE_CHECKS, "messages-in-order", story)[0]


def test_two_consumers_of_one_pair_are_found() -> None:
    story = Story()
    for key in ("1", "2"):
        _move(story, key, 100, "stored", deed="insert")
    _move(story, "1", 200, "delivered", ADA)
    _move(story, "2", 300, "delivered", BOB)
    assert "while ada#1:x had 1" in faults(MESSAGE_CHECKS, "messages-in-order", story)[0]


def test_messages_that_are_not_ordered_may_be_handled_at_once_and_in_any_order() -> None:
    story = Story()
    for key in ("1", "2"):
        _move(story, key, 100, "stored", deed="insert", is_ordered=0)
    _move(story, "1", 200, "delivered", ADA, is_ordered=0)
    _move(story, "2", 300, "delivered", BOB, is_ordered=0)
    _move(story, "2", 400, "acked", BOB, is_ordered=0)
    assert not faults(MESSAGE_CHECKS, "messages-in-order", story)


def test_a_message_that_came_late_and_a_node_that_began_again_are_all_right() -> None:
    story = Story()
    _move(story, "2", 100, "stored", deed="insert")
    _move(story, "2", 200, "delivered", ADA)
    _move(story, "1", 300, "stored", deed="insert")
    _move(story, "2", 400, "acked", ADA)
    _move(story, "3", 450, "stored", deed="insert")
    _move(story, "1", 500, "delivered", ADA)
    _move(story, "1", 600, "delivered", "ada#2:z")
    _move(story, "3", 600, "delivered", "ada#2:z")
    assert faults(MESSAGE_CHECKS, "messages-in-order", story) == []


def test_what_is_handed_out_after_it_has_expired_is_found() -> None:
    story = Story()
    _move(story, "1", 700, "delivered", ADA, expires_ms=500)
    story.node("bob").note("message.handed", key="2", expires_ms=500, now_ms=2_600)
    text = " ".join(faults(MESSAGE_CHECKS, "never-after-expiry", story))
    assert "message 1 was claimed at 700" in text
    assert "bob was handed 2" in text


def test_who_was_stopped_may_tell_late_what_it_was_handed() -> None:
    story = _good()
    story.node("bob").note("message.handed", key="2", expires_ms=500, now_ms=9_000)
    story.node("stage").note("resumed", player="bob")
    assert faults(MESSAGE_CHECKS, "never-after-expiry", story) == []


def test_a_message_that_expires_before_its_time_has_truly_passed_is_found() -> None:
    story = Story()
    story.did("s", "message.send", {"key": "1", "to": "r", "ttl": 3.0}, spooled=False)
    story.node("stage").note("monitor.expired", key="1")
    assert "before its time" in faults(MESSAGE_CHECKS, "never-before-expiry", story)[0]
    story = Story()
    story.did("s", "message.send", {"key": "1", "to": "r", "ttl": 1.0}, spooled=False)
    story.node("stage").note("monitor.expired", key="1")
    assert faults(MESSAGE_CHECKS, "never-before-expiry", story) == []
