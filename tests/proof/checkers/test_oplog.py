"""What the judges of the log find, and what they have nothing against."""

from __future__ import annotations

import json

import pytest

from proof.checkers.oplog import OPLOG_CHECKS
from proof.final_state import Row
from proof.history import Step
from proof.monitor import Monitor
from proof.workloads.oplog import LAST
from tests.proof.checkers import timed
from tests.proof.checkers.story import Story, faults
from vox_mesh.model.oplog.chain import NO_HASH, hash_of


def _chain(length: int) -> list[Row]:
    rows: list[Row] = []
    prev = NO_HASH
    for seq in range(1, length + 1):
        hashed = ("ada", seq, f"op{seq}", "proof.note", f"time{seq}", "[]", "{}", "default", prev)
        names = ("node_id", "seq", "op_id", "kind", "hlc", "causal_deps", "payload", "repository_id", "prev")
        row: Row = {
            **dict(zip(names, hashed, strict=True)),
            "id": seq,
            "accepted": 1,
            "hash": hash_of(*hashed),
        }
        rows.append(row)
        prev = row["hash"]
    return rows


def _story(rows: list[Row]) -> Story:
    story = Story()
    story.did("ada", "log.append", {"key": "op1"}, spooled=False)
    story.did("ada", "log.append", {"key": "op2"}, Step.UNKNOWN)
    story.did("ada", "log.append", {"key": "never"}, Step.UNKNOWN)
    story.did("ada", "log.append", {"key": "refused"}, Step.NO)
    story.did("bob", "log.verify", {}, problems=[])
    for row in rows[:2]:
        story.node("monitor").note("monitor.head", chain="ada", seq=row["seq"], hash=row["hash"])
    for row in rows:
        story.final("agent_oplog", **row)
    return story


@pytest.mark.parametrize("name", ["chains-whole", "chains-complete", "heads-kept"])
def test_a_log_that_grew_is_all_right(name: str) -> None:
    assert faults(OPLOG_CHECKS, name, _story(_chain(3))) == []


def test_a_gap_a_changed_entry_and_a_wrong_link_are_found() -> None:
    rows = _chain(4)
    assert "entry 2 is missing" in faults(OPLOG_CHECKS, "chains-whole", _story([rows[0], *rows[2:]]))[0]
    rows[1]["payload"] = '{"other":1}'
    rows[3]["prev"] = NO_HASH
    text = " ".join(faults(OPLOG_CHECKS, "chains-whole", _story(rows)))
    assert "entry 2 (proof.note) is not what it was" in text
    assert "entry 4 (proof.note) does not follow" in text


def test_what_others_found_or_did_to_the_log_is_found() -> None:
    story = _story(_chain(2))
    story.did("bob", "log.verify", {}, problems=["ada/2: broken"])
    story.final("proof_log_edits", node_id="ada", seq=1, deed="update", at_ms=5)
    text = " ".join(faults(OPLOG_CHECKS, "chains-whole", story))
    assert "ada/2: broken" in text
    assert "entry 1 saw an update" in text


def test_an_op_that_is_lost_doubled_or_there_against_its_word_is_found() -> None:
    rows = _chain(4)
    rows[2]["op_id"] = "op2"
    rows[3]["op_id"] = "refused"
    text = " ".join(faults(OPLOG_CHECKS, "chains-complete", _story(rows[1:])))
    assert "op op1 was appended and is not in the log" in text
    assert "op op2 is in the log 2 times" in text
    assert "op refused is in the log, and every append by ada was refused" in text


def test_a_head_that_is_gone_and_a_chain_that_shrank_are_found() -> None:
    rows = _chain(2)
    story = _story(rows)
    story.node("monitor").note("monitor.head", chain="ada", seq=1, hash=rows[0]["hash"])
    story.node("monitor").note("monitor.head", chain="bob", seq=7, hash="gone")
    text = " ".join(faults(OPLOG_CHECKS, "heads-kept", story))
    assert "ada ended at 1" in text
    assert "bob: entry 7 is another one" in text


def test_a_head_that_was_asked_for_before_a_rollback_and_noted_after_it_may_be_gone() -> None:
    lost = timed.noted("stage", "store.went_back", 3.0, kept_until=1.0, lost_at=2.0, back_at=3.0)
    before = timed.noted("monitor", "monitor.head", 3.1, chain="ada", seq=7, hash="gone", asked_at=1.9)
    after = timed.noted("monitor", "monitor.head", 3.3, chain="ada", seq=7, hash="gone", asked_at=3.2)
    assert "at 3.100" not in " ".join(timed.faults(OPLOG_CHECKS, "heads-kept", lost, before, after))
    assert timed.faults(OPLOG_CHECKS, "heads-kept", lost, after)


async def test_the_monitor_notes_each_head_and_each_expired_message_once() -> None:
    story = Story()
    heads = [{"node_id": "ada", "seq": 1, "hash": "a"}]

    async def ask(sql: str) -> list[Row]:
        return heads if "agent_oplog" in sql else [{"message_uuid": "m"}]

    monitor = Monitor(ask, story.node("monitor"))
    await monitor.observe()
    await monitor.observe()
    heads[0] = {"node_id": "ada", "seq": 2, "hash": "b"}
    await monitor.observe()
    history = story.history()
    assert [event.data["seq"] for event in history.notes("monitor.head")] == [1, 2]
    assert [event.data["key"] for event in history.notes("monitor.expired")] == ["m"]


def test_who_can_append_no_more_when_all_is_over_is_found() -> None:
    story = Story()
    story.node("stage").note("drained", player="ada")
    args = {"key": "op", "number": LAST}
    story.did("ada", "log.append", args, Step.NO)
    story.did("bob", "log.append", args, Step.NO)  # who did not live to the end
    (text,) = faults(OPLOG_CHECKS, "log-goes-on", story)
    assert text.startswith("ada")
    story.did("ada", "log.append", args, spooled=False)
    assert faults(OPLOG_CHECKS, "log-goes-on", story) == []


def _job_ops(*causes: str, start_id: int = 2) -> Story:
    story = Story()
    common = {"node_id": "ada", "accepted": 1}
    story.final("agent_oplog", **common, op_id="c", kind="ClaimWork", id=1, seq=1, causal_deps="[]")
    story.final("agent_oplog", **common, op_id="s", kind="StartWork", id=start_id, seq=2, causal_deps='["c"]')
    deps = json.dumps(causes)
    story.final("agent_oplog", **common, op_id="d", kind="CompleteJob", id=3, seq=3, causal_deps=deps)
    return story


def test_ops_without_their_causes_or_before_them_are_found() -> None:
    assert faults(OPLOG_CHECKS, "causes-first", _job_ops("s")) == []
    (unnamed,) = faults(OPLOG_CHECKS, "causes-first", _job_ops())
    assert "entry 3 (CompleteJob) names no StartWork" in unnamed
    (early,) = faults(OPLOG_CHECKS, "causes-first", _job_ops("s", start_id=4))
    assert "entry 3 (CompleteJob) comes before what led to it" in early
