"""What the judges of hand-outs find, and what they have nothing against."""

from __future__ import annotations

from typing import Any

import pytest

from proof.checkers.handouts import HANDOUT_CHECKS
from proof.history import Step
from proof.workloads.consumers import INBOX, PACE_NOTE
from tests.proof.checkers.timed import Lines, did, faults, noted
from vox_mesh.messages.claims import RELAYED_PREFIX

_LEASE_S = 20.0


def _handed(
    who: str, at: float, consumer: int = 1, left_s: float = _LEASE_S, *, is_relayed: bool = False
) -> Lines:
    prefix = RELAYED_PREFIX if is_relayed else ""
    about = {"key": "m", "owner": f"{prefix}{who}#1:x", "consumer": consumer}
    return noted(who, "message.handed", at, **about, expires_ms=None, now_ms=0, left_s=left_s)


def _acked(who: str, at: float, step: Step = Step.OK, consumer: int = 1, **result: Any) -> Lines:
    args = {"key": "m", "owner": f"{who}#1:x", "consumer": consumer}
    text = {"spooled": False} if step is Step.OK else {}
    return did(who, "message.ack", (at, at + 0.1), args, step, **(text | result))


def _let_go(who: str, at: float) -> Lines:
    return noted(who, "message.let_go", at, key="m", owner=f"{who}#1:x", consumer=1)


def _sent(at: float) -> Lines:
    return did("eve", "message.send", (at, at + 0.1), {"key": "m", "to": INBOX}, spooled=False)


PACE = noted("ada", PACE_NOTE, 0.0, tick_s=0.5, ttl_s=2.0, rest_s=0.3)
ONE_AFTER_ANOTHER = (
    *(PACE, _sent(1.0), _handed("ada", 2.0), _acked("ada", 3.0, Step.NO), _let_go("ada", 3.5)),
    *(_handed("bob", 4.0), _acked("bob", 5.0), noted("stage", "over", 30.0)),
)


@pytest.mark.parametrize("name", [check.name for check in HANDOUT_CHECKS])
def test_one_consumer_after_another_is_all_right(name: str) -> None:
    assert faults(HANDOUT_CHECKS, name, *ONE_AFTER_ANOTHER) == []


# --- one at a time ------------------------------------------------------------------------------------


def test_a_message_that_is_in_two_pairs_of_hands_is_found_also_within_a_process() -> None:
    assert faults(HANDOUT_CHECKS, "handed-to-one", _handed("ada", 2.0), _handed("bob", 4.0))
    assert faults(HANDOUT_CHECKS, "handed-to-one", _handed("ada", 2.0), _handed("ada", 4.0, consumer=2))


def test_a_message_may_come_to_another_when_its_lease_is_over_or_its_consumer_dead_or_lost() -> None:
    over = _handed("ada", 2.0, left_s=1.5), _handed("bob", 4.0)
    assert faults(HANDOUT_CHECKS, "handed-to-one", *over) == []
    dead = (
        noted("stage", "life.began", 0.0, player="ada", life=1, node_id="ada"),
        noted("stage", "life.ended", 3.0, player="ada", life=1, how="killed"),
    )
    assert faults(HANDOUT_CHECKS, "handed-to-one", *dead, _handed("ada", 2.0), _handed("bob", 4.0)) == []
    lost = noted("stage", "store.went_back", 3.0, kept_until=1.0, lost_at=2.9, back_at=3.0)
    assert faults(HANDOUT_CHECKS, "handed-to-one", lost, _handed("ada", 2.0), _handed("bob", 4.0)) == []


def test_an_acknowledgement_that_two_were_notified_of_is_found() -> None:
    assert faults(HANDOUT_CHECKS, "acked-once", _acked("ada", 2.0), _acked("bob", 4.0))
    unsure = _acked("ada", 2.0, spooled=True), _acked("bob", 4.0), _acked("cleo", 5.0, Step.UNKNOWN)
    assert faults(HANDOUT_CHECKS, "acked-once", *unsure) == []


def test_a_message_that_comes_again_after_its_acknowledgement_is_found() -> None:
    assert faults(HANDOUT_CHECKS, "acked-stays", _acked("ada", 2.0), _handed("bob", 4.0))
    stopped = noted("stage", "resumed", 3.9, player="bob")
    assert faults(HANDOUT_CHECKS, "acked-stays", stopped, _acked("ada", 2.0), _handed("bob", 4.0)) == []
    lost = noted("stage", "store.went_back", 3.0, kept_until=1.0, lost_at=2.9, back_at=3.0)
    again = _acked("ada", 2.0), _handed("bob", 4.0), _acked("bob", 5.0), _handed("bob", 4.5)
    assert faults(HANDOUT_CHECKS, "acked-stays", lost, *again) == []


def test_a_message_may_come_late_to_a_consumer_whose_claim_was_lost() -> None:
    lost = noted("stage", "store.went_back", 3.0, kept_until=1.0, lost_at=2.9, back_at=3.0)
    before = PACE, lost, _acked("ada", 3.5)
    assert faults(HANDOUT_CHECKS, "acked-stays", *before, _handed("bob", 4.0, left_s=_LEASE_S - 2.0)) == []
    assert faults(HANDOUT_CHECKS, "acked-stays", *before, _handed("bob", 4.0))


def test_a_message_may_come_again_if_it_was_sent_again_and_relayed() -> None:
    acked, relayed = _acked("ada", 2.0), _handed("bob", 4.0, is_relayed=True)
    assert faults(HANDOUT_CHECKS, "acked-stays", acked, _sent(3.0), relayed) == []
    assert faults(HANDOUT_CHECKS, "acked-stays", acked, _sent(1.0), relayed)
    assert faults(HANDOUT_CHECKS, "acked-stays", acked, _sent(3.0), _handed("bob", 4.0))
    assert faults(HANDOUT_CHECKS, "acked-stays", acked, _sent(3.0), _handed("ada", 4.0, is_relayed=True))


# --- in time ------------------------------------------------------------------------------------------


def _fault(kind: str, began: float, ended: float) -> Lines:
    text = {"kind": kind, "id": began, "player": "ada"}
    return noted("stage", "fault.began", began, **text) + noted("stage", "fault.ended", ended, **text)


def test_a_message_that_lies_on_a_healthy_database_is_found() -> None:
    over = noted("stage", "over", 60.0)
    assert faults(HANDOUT_CHECKS, "handed-in-time", PACE, over, _sent(1.0), _handed("ada", 12.0))
    assert faults(HANDOUT_CHECKS, "handed-in-time", PACE, over, _sent(1.0))
    after_a_fault = _fault("slow-answers", 2.0, 8.0), _sent(1.0), _handed("ada", 19.0)
    assert faults(HANDOUT_CHECKS, "handed-in-time", PACE, over, *after_a_fault)


def test_a_message_may_lie_while_something_is_wrong_or_a_dead_consumer_has_it() -> None:
    over = noted("stage", "over", 60.0)
    slow = _fault("slow-answers", 2.0, 12.0), _sent(1.0), _handed("ada", 19.0)
    assert faults(HANDOUT_CHECKS, "handed-in-time", PACE, over, *slow) == []
    killed = _fault("kill", 2.0, 3.0), _sent(1.0), _handed("ada", 30.0)
    assert faults(HANDOUT_CHECKS, "handed-in-time", PACE, over, *killed) == []
    repeated = _fault("duplicate", 2.0, 3.0), _sent(1.0), _handed("ada", 20.0)
    assert faults(HANDOUT_CHECKS, "handed-in-time", PACE, over, *repeated) == []
    late = _sent(1.0), _handed("ada", 30.0), noted("stage", "over", 5.0)
    assert faults(HANDOUT_CHECKS, "handed-in-time", PACE, *late) == []
