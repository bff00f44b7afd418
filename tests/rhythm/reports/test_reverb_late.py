"""Reverb: what comes late amends the report of its bar, once, and takes quiet and missing bars apart."""

from __future__ import annotations

import pytest

from tests.support.messages.messaging import NodeGroup
from tests.support.oplog.authoring import RestartableNodes
from tests.support.rhythm.bar_reports import assert_tiled, bars, every, phrase, start, thread
from tests.support.rhythm.grounds import ClockedReporter, MovableClock, player
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.reports import Names
from vox_mesh.rhythm import bar_reporter
from vox_mesh.rhythm.bar_reporter import LATE_END_PERIOD_MS


async def test_claims_that_come_late_amend_the_report_of_their_bar(
    crowd: NodeGroup, hand: MovableClock
) -> None:
    one, two = player(await crowd.node("one"), hand), player(await crowd.node("two"), hand)
    await one.bar_reporter.roll_up_due()
    await one.say("a", "t", "done")
    two.status.claim("b", "u", "executing")  # and then it was cut off
    hand.to(1, 2)
    (first,) = await one.bar_reporter.roll_up_due()
    hand.to(2, 2)
    two.status.claim("b", "u", "done")
    await two.status.flush()
    hand.to(3, 2)
    await one.node.store.synced()
    amended, second, third = await one.bar_reporter.roll_up_due()
    assert bars([amended, second, third]) == [(0, 1, "reported"), (1, 1, "quiet"), (2, 1, "reported")]
    assert (amended.revision, amended.reporters, amended.late) == (2, 2, Names(1, ("b",)))
    assert amended.hlc > first.hlc
    assert amended.standing == first.standing
    assert amended.tasks == {"done": 1, "executing": 1}
    assert_tiled(await every(one))
    assert await one.bar_reporter.report(first.window_id, fresh=True) == amended
    await two.node.store.synced()
    assert await two.bar_reporter.roll_up_due() == []


async def test_a_gap_comes_apart_when_something_of_it_comes_late(
    one: ClockedReporter, hand: MovableClock
) -> None:
    await one.say("a", "t", "done")
    hand.to(1, 2)
    await one.bar_reporter.roll_up_due()
    hand.to(4)
    one.status.claim("b", "u", "done")
    hand.to(6)
    one.status.claim("b", "v", "done")
    hand.to(10, 2)
    assert bars(await one.bar_reporter.roll_up_due()) == [(1, 9, "missing")]
    await one.status.flush()
    hand.to(11, 2)
    await one.bar_reporter.roll_up_due()
    reports = await every(one)
    assert bars(reports) == [
        *(
            (0, 1, "reported"),
            (1, 3, "missing"),
            (4, 1, "reported"),
            (5, 1, "missing"),
            (6, 1, "reported"),
        ),
        (7, 3, "missing"),
    ]
    assert_tiled(reports)
    assert [report.revision for report in reports] == [1, 2, 1, 1, 1, 1]
    assert reports[2].late == Names(1, ("b",))


async def test_phrases_that_come_late_amend_the_report_of_their_bar_once(
    one: ClockedReporter, hand: MovableClock
) -> None:
    await phrase(one, "x", start(0) + 1)
    hand.to(1, 2)
    (first,) = await one.bar_reporter.roll_up_due()
    await phrase(one, "y", start(0) + 2, outcome="failed")
    (amended,) = await one.bar_reporter.roll_up_due()
    assert (amended.phrases, amended.revision) == ({"done": 1, "failed": 1}, 2)
    assert amended.cost == first.cost + 1.5
    assert await one.bar_reporter.roll_up_due() == []


async def test_phrases_of_a_bar_of_hours_come_late_too(there: RestartableNodes, hand: MovableClock) -> None:
    slow = TempoPolicy.of_document({"cluster_id": "c", "initial_bpm": 1 / 60})
    async with there.node() as node:
        one = player(node, hand, slow)
        await one.bar_reporter.roll_up_due()
        window = one.ground.timeline.window_at(hand.now_ms)
        await phrase(one, "x", hand.now_ms)
        hand.now_ms = window.end_ms + one.bar_reporter.grace_ms
        await one.bar_reporter.roll_up_due()
        await phrase(one, "y", window.start_ms + 1)
        hand.now_ms = window.end_ms + LATE_END_PERIOD_MS - 1
        (amended,) = await one.bar_reporter.roll_up_due()
        assert (amended.start_ms, amended.revision, amended.phrases) == (window.start_ms, 2, {"done": 2})
        await phrase(one, "z", window.start_ms + 2)
        hand.now_ms += 1
        assert await one.bar_reporter.roll_up_due() == []


async def test_threads_that_are_closed_after_their_bar_was_reported_amend_it_once(
    one: ClockedReporter, hand: MovableClock
) -> None:
    await thread(one, "kept", "kept", start(0) + 1)
    await one.say("a", "t", "done")
    hand.to(1, 2)
    (first,) = await one.bar_reporter.roll_up_due()
    await thread(one, "late", "unanswered", start(0) + 2)
    await thread(one, "last", "unanswered", start(1) - 1)
    (amended,) = await one.bar_reporter.roll_up_due()
    assert (amended.revision, amended.window_id, amended.tasks) == (2, first.window_id, {"done": 1})
    assert amended.promises == {"kept": 1, "broken": 0, "expired": 0, "unanswered": 2}
    assert one.bar_reporter.totals.promises == amended.promises, "each was counted once"
    assert await one.bar_reporter.roll_up_due() == []


async def test_quiet_and_missing_bars_come_apart_when_threads_of_theirs_are_closed(
    one: ClockedReporter, hand: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bar_reporter, "_BATCH_SIZE", 2)
    for bar in range(1, 6):
        hand.to(bar, 2)
        await one.bar_reporter.roll_up_due()
    hand.to(10, 2)
    assert bars(await one.bar_reporter.roll_up_due()) == [(0, 5, "quiet"), (5, 5, "missing")]
    for bar in (1, 3, 4, 7):
        for number in range(3):
            await thread(one, f"{bar}-{number}", "expired", start(bar) + number)
    await one.bar_reporter.roll_up_due()
    reports = await every(one)
    assert_tiled(reports)
    assert [report.promises.get("expired", 0) for report in reports] == [0, 3, 0, 3, 3, 0, 3, 0]
    assert [report.is_missing for report in reports] == [*([False] * 5), True, False, True]
    assert await one.bar_reporter.roll_up_due() == []


async def test_a_bar_in_which_more_threads_end_than_are_looked_at_at_once_is_reported(
    one: ClockedReporter, hand: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bar_reporter, "_BATCH_SIZE", 4)
    for number in range(9):
        await thread(one, f"{number}", "unanswered", start(1) + number)
    await thread(one, "next", "kept", start(2))
    hand.to(1, 2)
    await one.bar_reporter.roll_up_due()
    hand.to(3, 2)
    await one.bar_reporter.roll_up_due()
    made = {report.start_ms: sum(report.promises.values()) for report in await every(one)}
    assert made == {start(0): 0, start(1): 9, start(2): 1}


async def test_what_comes_late_for_many_bars_is_taken_in_whole(
    one: ClockedReporter, hand: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bar_reporter, "_BATCH_SIZE", 4)
    late = player(one.node, hand)
    for bar in range(10):
        hand.to(bar, 2)
        await one.bar_reporter.roll_up_due()
        late.status.claim("b", "u", "done")
        await one.say("a", "t", "done")
    hand.to(10, 2)
    await one.bar_reporter.roll_up_due()
    await late.status.flush()
    hand.to(10, 3)
    amended = await one.bar_reporter.roll_up_due()
    assert bars(amended) == [(bar, 1, "reported") for bar in range(10)]
    assert {(report.revision, report.reporters, report.late.names) for report in amended} == {(2, 2, ("b",))}
    assert await one.bar_reporter.roll_up_due() == []


async def test_claims_from_before_the_first_report_are_reported_and_leave_no_bar_out(
    there: RestartableNodes, hand: MovableClock
) -> None:
    async with there.node() as node, there.node("two") as other:
        one, two = player(node, hand), player(other, hand)
        two.status.claim("b", "u", "done")
        hand.to(5)
        await one.bar_reporter.roll_up_due()
        await one.say("a", "t", "done")
        hand.to(6, 2)
        await one.bar_reporter.roll_up_due()
        await two.status.flush()
        assert bars(await one.bar_reporter.roll_up_due()) == [(0, 1, "reported"), (1, 4, "missing")]
        assert_tiled(await every(one))
        assert await one.bar_reporter.roll_up_due() == []
