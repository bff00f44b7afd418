"""Reverb: every bar is reported once, and what no one saw is said to be missing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.messages.messaging import NodeGroup, write
from tests.support.oplog.authoring import RestartableNodes
from tests.support.rhythm.bar_reports import assert_tiled, bars, every, phrase, start, thread
from tests.support.rhythm.grounds import BAR_MS, BEAT_MS, ClockedReporter, MovableClock, player
from tests.support.running.schemas import assert_fits
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.reports import BarReport, Names
from vox_mesh.model.rhythm.tempo import window_id
from vox_mesh.rhythm import bar_reporter
from vox_mesh.rhythm.bar_reporter import CLAIM_RETENTION_MS, QUIET_BARS, REPORT_RETENTION_MS

_DAY_BARS = 86_400_000 // BAR_MS


# --- one bar -----------------------------------------------------------------------------------------


async def test_a_bar_is_reported_with_all_that_was_in_it(crowd: NodeGroup, hand: MovableClock) -> None:
    one = player(await crowd.node("one"), hand)
    await one.bar_reporter.roll_up_due()
    one.status.claim("a", "t", "planning")
    one.status.claim("b", "u", "executing")
    one.status.claim("c", "v", "waiting")
    for beat in (1, 2, 3):
        hand.to(0, beat, 100)
        if beat == 2:
            one.status.claim("a", "t", "executing", progress=0.5)
            one.status.claim("b", "u", "executing", overran=True)
        if beat == 3:
            one.status.claim("a", "t", "done")
            one.status.claim("b", "u", "failed")
            one.status.claim("c", "v", "done")
        await one.beat()
    await phrase(one, "x", start(0) + 7 * BEAT_MS)
    await thread(one, "kept", "kept", start(0) + 1)
    await thread(one, "broken", "broken", start(1) - 1)
    await thread(one, "next", "expired", start(1))
    hand.to(1, 1, 1)
    assert await one.bar_reporter.roll_up_due() == [], "what was said last is on its way"
    hand.to(1, 2)
    (report,) = await one.bar_reporter.roll_up_due()
    assert_fits("bar_report", report.document())
    assert report.window_id == window_id("default", start(0))
    assert (report.start_ms, report.end_ms, report.revision, report.bars) == (start(0), start(1), 1, 1)
    assert report.tasks == {"done": 2, "failed": 1}
    assert report.beats == {"planning": 1, "executing": 3, "waiting": 2, "done": 2, "failed": 1}
    assert (report.overruns, report.overruns_by_phase) == (1, {"work": 1})
    assert report.promises == {"kept": 1, "broken": 1, "expired": 0, "unanswered": 0}
    assert (report.phrases, report.cost, report.deliverables) == ({"done": 1}, 1.5, 3)
    assert (report.reporters, report.late, report.missing) == (3, Names(), Names())
    assert (report.tempo_bpm, report.tempo_drift_bpm) == (12, 0)
    kpis = report.kpis
    assert (kpis.tnt, kpis.bpd, kpis.wr, kpis.pmr, kpis.cpd) == (3 / 8, 3, 2 / 9, 0.5, 0.5)
    assert kpis.eta == pytest.approx(6 / 9)
    assert kpis.ttfu == 2.0  # of the task a 1, of the phrase 2, of the task c 2.02
    standing = report.standing
    assert (standing.queue_depth, standing.utilisation) == (0, None if not standing.places else 0.0)
    await one.node.store.synced()
    assert await one.bar_reporter.report(report.window_id) == report
    assert await one.bar_reporter.report("0123") is None
    assert await one.bar_reporter.roll_up_due() == []


async def test_who_had_something_to_do_and_fell_silent_is_missing(
    one: ClockedReporter, hand: MovableClock
) -> None:
    await one.say("a", "t", "executing")
    await one.say("b", "u", "executing")
    await one.say("c", "v", "done")
    hand.to(1, 2)
    await one.say("a", "t", "executing")
    await one.bar_reporter.roll_up_due()
    hand.to(2, 2)
    (second,) = await one.bar_reporter.roll_up_due()
    assert (second.missing, second.alarms) == (Names(1, ("b",)), ())
    hand.to(3, 2)
    (third,) = await one.bar_reporter.roll_up_due()
    assert third.missing == Names(1, ("a",))
    assert [alarm.name for alarm in third.alarms] == ["no_status_claims"]
    hand.to(4, 2)
    assert await one.bar_reporter.roll_up_due() == [], "that was said"


async def test_a_mesh_at_work_is_reported_on_though_no_agent_speaks(
    one: ClockedReporter, hand: MovableClock
) -> None:
    await write(
        one.node,
        "UPDATE mesh_heartbeats SET load = 1, capacity = 4 WHERE scope_id = ?1 AND repository_id = ?2",
    )
    await write(
        one.node, "UPDATE node_vitals SET cpu_utilisation = 0.7 WHERE scope_id = ?1 AND repository_id = ?2"
    )
    for kind, count in (("build", 2), ("test", 1)):
        for number in range(count):
            await one.node.jobs.schedule(kind, number)
    hand.to(1, 2)
    (report,) = await one.bar_reporter.roll_up_due()
    standing = report.standing
    assert (standing.places, standing.utilisation, report.reporters) == (4, 0.25, 0)
    assert (standing.queue_depth, standing.queue_by_kind) == (3, {"build": 2, "test": 1})
    assert (standing.cpu_utilisation, standing.gpu_utilisation) == (0.7, None)
    later = {**report.document(), "standing": {**report.document()["standing"], "of_a_later_version": 1}}
    assert BarReport.of_document(later) == report


# --- quiet and missing bars --------------------------------------------------------------------------


async def test_a_fresh_mesh_begins_with_the_bar_in_which_it_first_looks(
    one: ClockedReporter, hand: MovableClock
) -> None:
    for bar in range(1, 4):
        hand.to(bar, 2)
        assert await one.bar_reporter.roll_up_due() == []
    await one.say("a", "t", "done")
    hand.to(4, 2)
    assert bars(await one.bar_reporter.roll_up_due()) == [(0, 3, "quiet"), (3, 1, "reported")]


async def test_nothing_is_written_of_quiet_bars_until_there_are_many(
    there: RestartableNodes, one: ClockedReporter, hand: MovableClock
) -> None:
    written = len(there.gate.batches)
    for bar in range(1, QUIET_BARS):
        hand.to(bar, 2)
        await one.bar_reporter.roll_up_due()
    assert len(there.gate.batches) == written
    hand.to(QUIET_BARS, 2)
    assert bars(await one.bar_reporter.roll_up_due()) == [(0, QUIET_BARS, "quiet")]


async def test_who_leaves_vouches_for_the_quiet_bars_that_it_saw(
    there: RestartableNodes, one: ClockedReporter, hand: MovableClock
) -> None:
    for bar in (1, 2):
        hand.to(bar, 2)
        await one.bar_reporter.roll_up_due()
    await one.bar_reporter.close()
    async with there.node("two") as node:
        two = player(node, hand)
        hand.to(5, 2)
        assert bars(await two.bar_reporter.roll_up_due()) == [(2, 3, "missing")]
        assert bars(await every(two)) == [(0, 2, "quiet"), (2, 3, "missing")]


@pytest.mark.parametrize("is_told", [True, False], ids=["after-a-report", "before-the-first"])
async def test_quiet_bars_that_were_watched_stay_quiet_when_a_gap_follows(
    one: ClockedReporter, hand: MovableClock, is_told: bool
) -> None:
    if is_told:
        await one.say("a", "t", "done")
    for bar in range(1, 21):
        hand.to(bar, 2)
        await one.bar_reporter.roll_up_due()
    hand.to(25, 2)  # the database was away
    first = 1 if is_told else 0
    assert bars(await one.bar_reporter.roll_up_due()) == [(first, 20 - first, "quiet"), (20, 5, "missing")]
    assert one.bar_reporter.totals.missing_bars == 5
    for bar in range(26, 29):
        hand.to(bar, 2)
        assert await one.bar_reporter.roll_up_due() == []
    hand.to(28, 3)
    await one.say("a", "u", "done")
    hand.to(29, 2)
    assert bars(await one.bar_reporter.roll_up_due()) == [(25, 3, "quiet"), (28, 1, "reported")]
    assert_tiled(await every(one))


async def test_bars_that_one_has_missed_while_another_leads_are_reported_by_who_has_seen_them(
    there: RestartableNodes, one: ClockedReporter, hand: MovableClock
) -> None:
    async with there.node("two") as node:
        two = player(node, hand)
        await two.bar_reporter.roll_up_due()
        for bar in range(1, 9):
            hand.to(bar, 2)
            await one.bar_reporter.roll_up_due()
            if bar not in range(3, 8):  # the second is cut off
                assert await two.bar_reporter.roll_up_due(may_miss=False) == []
        await two.bar_reporter.close()
        assert bars(await every(one)) == [(0, 2, "quiet")], "as far as it has seen them"
        await one.bar_reporter.close()
        assert bars(await every(one)) == [(0, 2, "quiet"), (2, 6, "quiet")]
        hand.to(14, 2)
        await two.say("a", "t", "done")
        hand.to(15, 2)
        made = await two.bar_reporter.roll_up_due(may_miss=False)
        assert bars(made) == [(8, 6, "missing"), (14, 1, "reported")], (
            "what came after is reported by anybody"
        )


async def test_a_silent_bar_between_two_that_are_reported_at_once_is_no_quiet_one(
    one: ClockedReporter, hand: MovableClock
) -> None:
    await one.say("a", "t", "executing")
    await one.say("b", "u", "done")
    hand.to(2)
    await one.say("b", "v", "done")
    hand.to(2, 2)
    made = await one.bar_reporter.roll_up_due()
    assert bars(made) == [(0, 1, "reported"), (1, 1, "reported")]
    assert (made[1].reporters, made[1].missing) == (0, Names(1, ("a",)))
    assert [alarm.name for alarm in made[1].alarms] == ["no_status_claims"]


async def test_a_gap_is_one_report_however_long_and_bars_with_data_are_reported_late(
    one: ClockedReporter, hand: MovableClock
) -> None:
    await one.say("a", "t", "done")
    hand.to(1, 2)
    await one.bar_reporter.roll_up_due()
    year = 365 * _DAY_BARS
    hand.to(year - 20, 3)
    one.status.claim("a", "u", "done")  # and then the database was away
    await one.status.flush()
    await phrase(one, "x", start(year - 10) + 5)
    hand.to(year, 2)
    assert bars(await one.bar_reporter.roll_up_due()) == [
        *((1, year - 21, "missing"), (year - 20, 1, "reported"), (year - 19, 9, "missing")),
        *((year - 10, 1, "quiet"), (year - 9, 9, "missing")),
    ]
    reports = await every(one)
    assert_tiled(reports)
    assert reports[2].standing.queue_depth is None, "no one knows how it was then"
    assert reports[4].phrases == {"done": 1}


async def test_many_bars_that_were_left_behind_are_all_reported(
    one: ClockedReporter, hand: MovableClock
) -> None:
    for bar in range(150):
        hand.to(bar)
        one.status.claim("a", "t", "done")
    await one.status.flush()
    hand.to(150, 2)
    reports = await one.bar_reporter.roll_up_due()
    assert bars(reports) == [(bar, 1, "reported") for bar in range(150)]
    assert await one.bar_reporter.roll_up_due() == []


async def test_when_reports_are_not_wanted_there_are_none(
    there: RestartableNodes, hand: MovableClock
) -> None:
    policy = TempoPolicy.of_document(
        {"cluster_id": "c", "initial_bpm": 12.0, "observability": {"emit_bar_reports": False}}
    )
    async with there.node() as node:
        silent = player(node, hand, policy)
        await silent.say("a", "t", "done")
        hand.to(1, 2)
        assert await silent.bar_reporter.roll_up_due() == []


# --- several at once ---------------------------------------------------------------------------------


async def test_nodes_that_roll_up_at_the_same_time_report_each_bar_once(
    crowd: NodeGroup, hand: MovableClock
) -> None:
    players = [player(await crowd.node(name), hand) for name in ("one", "two", "three")]
    await asyncio.gather(*(each.bar_reporter.roll_up_due() for each in players))
    made: list[BarReport] = []
    for bar in range(1, 5):
        for number, each in enumerate(players):
            each.status.claim(f"agent-{number}", "t", "executing", progress=bar / 5)
        hand.to(bar, 1)
        # One of them is late by a bar, each time another.
        await asyncio.gather(*(each.status.flush() for n, each in enumerate(players) if n != bar % 3))
        hand.to(bar, 2)
        for reports in await asyncio.gather(*(each.bar_reporter.roll_up_due() for each in players)):
            made += reports
    await asyncio.gather(*(each.status.flush() for each in players))
    for reports in await asyncio.gather(*(each.bar_reporter.roll_up_due() for each in players)):
        made += reports
    written = [(report.start_ms, report.revision) for report in made]
    assert len(written) == len(set(written)), "no revision was written twice"
    newest = await every(players[0])
    assert_tiled(newest)
    assert [report.reporters for report in newest] == [3, 3, 3, 3]
    for each in players:
        await each.node.store.synced()
        assert await each.bar_reporter.reports(100) == newest[::-1], "they agree"


async def test_one_that_looks_at_an_old_copy_of_the_reports_loses_nothing(
    there: RestartableNodes, hand: MovableClock
) -> None:
    async with there.node("one") as node, there.node("two") as other:
        one, two = player(node, hand), player(other, hand)
        await one.bar_reporter.roll_up_due()
        await one.say("a", "t", "executing")
        hand.to(1, 2)
        await one.bar_reporter.roll_up_due()
        # Both have seen that something came late; the second to write has seen more of it.
        hand.to(0, 5)
        await two.say("b", "u", "executing")
        hand.to(1, 3)
        seen = await one.bar_reporter._read_due(hand.now_ms, fresh=True)
        late = await one.bar_reporter._draft_late(seen, fresh=True)
        hand.to(0, 6)
        await two.say("c", "v", "executing")
        hand.to(1, 4)
        (amended,) = await two.bar_reporter.roll_up_due()
        with pytest.raises(Exception, match="overtaken"):
            await one.bar_reporter._write(seen, late, [])
        assert amended.reporters == 3
        assert [(each.revision, each.reporters) for each in await every(one)] == [(2, 3)]


# --- what is kept ------------------------------------------------------------------------------------


async def test_old_claims_and_reports_are_forgotten_and_serials_go_on(
    one: ClockedReporter, hand: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bar_reporter, "_PRUNE_BATCH_SIZE", 2)
    for bar in range(5):
        hand.to(bar, 2)
        await one.say("a", "t", "done")
        await one.bar_reporter.roll_up_due()
    count = "SELECT count(*), max(serial), (SELECT count(*) FROM bar_reports) FROM status_claims"
    signatures = "SELECT count(*) FROM status_signatures"
    assert (await one.node.store.read(signatures)).value == 5
    hand.now_ms += CLAIM_RETENTION_MS
    await one.bar_reporter.roll_up_due()
    assert tuple((await one.node.store.read(count))[0]) == (1, 5, 5)
    assert (await one.node.store.read(signatures)).value == 0
    await one.say("b", "t", "done")
    hand.now_ms += REPORT_RETENTION_MS
    await one.bar_reporter.roll_up_due()
    claims, serial, reports = (await one.node.store.read(count))[0]
    assert (claims, serial) == (1, 6)
    assert reports <= 3
    last = (await one.bar_reporter.reports())[0]
    assert last.end_ms == one.ground.timeline.window_at(hand.now_ms).start_ms


async def test_a_report_is_the_same_for_anyone_who_reads_it(one: ClockedReporter, hand: MovableClock) -> None:
    await one.say("a", "t", "done")
    hand.to(1, 2)
    (report,) = await one.bar_reporter.roll_up_due()
    assert await one.bar_reporter.reports(5) == [report]
    assert report.node_id == "a"
    assert replace(report, revision=2) != report
