"""Metrics: what they tell after something was done is what was done."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest

from tests.jobs.steps.test_waits import suspended
from tests.support.jobs.job_desks import ControlledHandler, ended, idle, scheduled
from tests.support.jobs.jobs_in_hand import claim, found, lapse
from tests.support.messages.messaging import PATIENCE_S, bodies, change, next_of, write
from tests.support.messages.messaging import lapse as lapse_message
from tests.support.messages.relaying import TOKEN, assert_problem
from tests.support.nodes.scraping import Scrape, metrics_of, scraped, served
from tests.support.rhythm.grounds import BAR_MS, BEAT_MS, MovableClock, player
from tools.homes import FILE
from vox_mesh import Manual, Mesh, Script, Statement, TakeLeft
from vox_mesh.errors import NotHolder, StaleFence
from vox_mesh.http.access import Access
from vox_mesh.http.metrics.endpoint import CONTENT_TYPE, Metrics
from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.costs import PhraseEnd, PhraseOutcome
from vox_mesh.model.rhythm.reports import PROMISES, BarReport, ReportSource
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.node import MeshNode
from vox_mesh.store.schema.statements import named
from vox_mesh.views.jobs import job_counts

_OF_MESH: Final = "WHERE scope_id = ?1 AND repository_id = ?2"
_COUNT: Final = "vox_{}_seconds_count"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node in a file, which ticks only when it is asked to."""
    async with Mesh.open(FILE.settings(tmp_path, None, node_id="ann", tick="1h")) as node:
        yield node


@pytest.fixture
def metrics(node: MeshNode) -> Metrics:
    """Its metrics."""
    return metrics_of(node)


# --- jobs ----------------------------------------------------------------------------------------


async def test_jobs_are_reported_by_kind_and_state_and_how_long_they_took(
    node: MeshNode, metrics: Metrics
) -> None:
    desk = ControlledHandler(node)
    await scheduled(node, 2, "later")
    jobs = await scheduled(node, 3)
    async with node.worker.running(concurrency=2):
        for _ in range(2):
            await desk.next()
        during = await scraped(metrics)
        desk.may_end.set()
        await ended(node, *jobs)
        await idle(node)
    after = await scraped(metrics)
    assert (during.get("vox_jobs_in_hand"), during.get("vox_worker_places")) == (2, 2)
    assert during.get(_COUNT.format("job_queued_to_started")) == 2
    assert during.get(_COUNT.format("job_run")) == 0
    assert during.all("vox_jobs") == {
        (kind, state.value): {("work", "running"): 2, ("work", "pending"): 1, ("later", "pending"): 2}.get(
            (kind, state.value), 0
        )
        for kind in ("work", "later")
        for state in JobState
    }
    assert (after.get("vox_jobs_in_hand"), after.get("vox_worker_places")) == (0, 0)
    assert after.get("vox_jobs", kind="work", state="succeeded") == 3
    for name in ("job_queued_to_started", "job_run"):
        assert after.get(_COUNT.format(name)) == 3
        assert after.get(f"vox_{name}_seconds_bucket", le="+Inf") == 3
    assert after.get("vox_job_attempts_total", outcome="succeeded") == 3


async def test_jobs_are_ready_once_nothing_but_a_worker_is_missing(node: MeshNode, metrics: Metrics) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    await node.jobs.schedule("idle", run_at=later)
    first = await node.jobs.schedule("chain", run_at=later)
    await node.jobs.schedule("chain", after=[first.job_id])
    assert (await scraped(metrics)).all("vox_jobs_ready") == {("idle",): 0, ("chain",): 0}
    for priority in range(4):
        await node.jobs.schedule("work", priority=priority)
    await claim(node, await node.jobs.schedule("work"))
    await write(node, f"UPDATE jobs SET not_before_ms = 1 {_OF_MESH} AND kind = 'chain'")
    now = await scraped(metrics)
    assert now.all("vox_jobs_ready") == {("idle",): 0, ("chain",): 1, ("work",): 4}
    assert now.get("vox_jobs", kind="chain", state="pending") == 2


async def test_suspended_jobs_are_counted_until_they_go_on(node: MeshNode, metrics: Metrics) -> None:
    waits: dict[str, Callable[[JobContext], Awaitable[Any]]] = {
        "sleeps": lambda context: context.sleep("1d"),
        "asks": lambda context: context.ask("Which?"),
        "listens": lambda context: context.wait_message(thread="t"),
    }

    def fail() -> None:
        raise RuntimeError("later")

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await waits[context.payload](context) if context.payload else fail()

    jobs = [await node.jobs.schedule("work", name, backoff="1d") for name in (*waits, None)]
    await node.jobs.schedule("work", run_at=datetime.now(UTC) + timedelta(days=1))
    async with node.worker.running():
        for job in jobs:
            await suspended(node, job.job_id)
    now = await scraped(metrics)
    assert now.all("vox_jobs_suspended") == {("work",): 3}
    assert now.get("vox_jobs", kind="work", state="pending") == 5
    (counts,) = await job_counts(node)
    assert (counts.pending, counts.suspended) == (5, 3)
    await node.jobs.wakes.wake(jobs[0])
    assert (await scraped(metrics)).all("vox_jobs_suspended") == {("work",): 2}


async def test_jobs_for_later_cost_a_scrape_nothing(node: MeshNode) -> None:
    plan = await node.store.read(f"EXPLAIN QUERY PLAN {named('census')['take']}", ["[]"] * 8)
    (ready,) = (row[3] for row in plan if "jobs_ready" in row[3])
    assert "kind=? AND priority=? AND not_before_ms<?" in ready


async def test_an_attempt_that_failed_is_reported_as_such(node: MeshNode, metrics: Metrics) -> None:
    @node.worker.handles("work")
    async def fail(_: JobContext) -> None:
        raise ValueError("no")

    async with node.worker.running():
        await ended(node, await node.jobs.schedule("work", max_attempts=1))
        await idle(node)
    now = await scraped(metrics)
    assert now.get("vox_job_attempts_total", outcome="failed") == 1
    assert now.get("vox_jobs", kind="work", state="failed") == 1


async def test_a_wait_before_a_job_could_be_claimed_does_not_count(node: MeshNode, metrics: Metrics) -> None:
    ControlledHandler(node).may_end.set()
    job = await node.jobs.schedule("work")
    await write(node, f"UPDATE jobs SET not_before_ms = not_before_ms - 20000, created_ms = 1 {_OF_MESH}")
    async with node.worker.running():
        await ended(node, job)
    now = await scraped(metrics)
    assert now.get("vox_job_queued_to_started_seconds_bucket", le="15.0") == 0
    assert now.get("vox_job_queued_to_started_seconds_bucket", le="3600.0") == 1


async def test_leases_that_this_node_found_expired_are_counted(node: MeshNode, metrics: Metrics) -> None:
    jobs = await scheduled(node, 3)
    await claim(node, *jobs)
    await lapse(node, *jobs[:2])
    await node.jobs.expire(await node.jobs.queries.overdue())
    assert (await scraped(metrics)).get("vox_lease_expired_total") == 2


# --- tokens --------------------------------------------------------------------------------------


async def test_one_that_comes_with_a_stale_token_is_counted(node: MeshNode, metrics: Metrics) -> None:
    lock = await node.locks.acquire("a")
    await node.locks.break_lock("a", "for this test")
    with pytest.raises(StaleFence):
        await node.locks.renew(lock)
    with pytest.raises(StaleFence):
        await node.store.write(Script(node.locks.guard(lock)))
    job = await node.jobs.schedule("work")
    await claim(node, job)
    (before,) = await found(node, job)
    await lapse(node, job)
    await node.jobs.expire([before])
    assert await node.worker._finisher.finish(AttemptResult(before, JobState.SUCCEEDED)) is None
    await node.messages.send("bob", 1)
    (message,) = await node.messages.inbox("bob")
    await lapse_message(node, message)
    assert await node.messages.inbox("bob")
    with pytest.raises(NotHolder):
        await node.messages.ack(message)
    now = await scraped(metrics)
    assert now.all("vox_fence_rejected_total") == {("lock",): 2, ("job",): 1, ("message",): 1}


# --- locks ---------------------------------------------------------------------------------------


async def test_locks_tell_who_holds_who_waits_and_for_how_long(node: MeshNode, metrics: Metrics) -> None:
    first = await node.locks.acquire("a")
    await node.locks.acquire("b")
    waiting = asyncio.create_task(node.locks.acquire("a", agent="other", wait=PATIENCE_S))
    async with asyncio.timeout(PATIENCE_S):
        async for holders in node.locks.watch():
            if any(each.waiting for each in holders):
                break
    during = await scraped(metrics)
    await node.locks.release(first)
    await waiting
    after = await scraped(metrics)
    held = [(each.get("vox_locks_held"), each.get("vox_lock_waiters")) for each in (during, after)]
    assert held == [(2, 1), (2, 0)]
    counts = [each.get(_COUNT.format("lock_wait")) for each in (during, after)]
    assert counts == [2, 3]


async def test_a_lock_that_was_not_had_has_no_waiting_time(node: MeshNode, metrics: Metrics) -> None:
    await node.locks.acquire("a")
    with pytest.raises(Exception, match="was not acquired"):
        await node.locks.acquire("a", agent="other")
    assert (await scraped(metrics)).get(_COUNT.format("lock_wait")) == 1


# --- nodes ---------------------------------------------------------------------------------------


async def test_nodes_tell_their_silence_and_the_ones_that_left_are_only_counted(
    node: MeshNode, metrics: Metrics, tmp_path: Path
) -> None:
    async with Mesh.open(
        FILE.settings(
            tmp_path / "b",
            None,
            node_id="bob",
            tick="1h",
            db_path=tmp_path / "vox" / "local.db",
            scope_id=node.store.writer_id.scope_id,
        )
    ):
        ago = "last_seen_ms = last_seen_ms - 7230000"  # more than asserted: the clock moves by steps
        await write(node, f"UPDATE mesh_heartbeats SET {ago} {_OF_MESH} AND node_id = 'bob'")
        during = await scraped(metrics)
    after = await scraped(metrics)
    ages = during.all("vox_heartbeat_age_seconds")
    assert ages.keys() == {("ann",), ("bob",)}
    assert ages[("bob",)] >= 7_200
    assert ages[("ann",)] < 3_600
    assert during.all("vox_heartbeat_missed_ticks") == {("ann",): 0, ("bob",): 1}
    assert during.all("vox_nodes") == {
        (state,): float(state in ("alive", "warn"))
        for state in ("alive", "warn", "alert", "critical", "dead", "left")
    }
    assert after.all("vox_heartbeat_age_seconds").keys() == {("ann",)}
    assert after.get("vox_nodes", state="left") == 1


async def test_a_node_says_who_it_is_and_how_it_stands(node: MeshNode, metrics: Metrics) -> None:
    now = await scraped(metrics)
    (info,) = (family for family in now.families if family.name == "vox_node_info")
    assert info.samples[0].labels.keys() == {"node", "version", "home"}
    assert (info.samples[0].labels["node"], info.samples[0].labels["home"]) == ("ann", "file")
    assert now.get("vox_ready") == 1
    assert (await scraped(Metrics(node, Access(TOKEN), is_ready=lambda: False))).get("vox_ready") == 0
    assert (await scraped(Metrics(node, Access(TOKEN)))).get("vox_ready") is None
    assert now.get("vox_clock_skew_seconds") is not None
    assert now.get("vox_circuit_state", state="off") == 1
    assert now.get("vox_replica_lag_seconds") is None
    assert sum(now.all("vox_primary_requests_total").values()) == 0


async def test_parts_that_were_begun_again_are_reported(node: MeshNode, metrics: Metrics) -> None:
    node.supervisor.parts["message-maintenance"].restarts = 3
    restarts = (await scraped(metrics)).all("vox_part_restarts_total")
    assert (restarts[("message-maintenance",)], restarts[("heartbeat",)]) == (3, 0)


# --- messages ------------------------------------------------------------------------------------


async def test_messages_tell_what_waits_what_is_late_and_how_long_they_took(
    node: MeshNode, metrics: Metrics
) -> None:
    for number in range(2):
        await node.messages.send("bob", number, ack_within=60)
    await change(node, [await node.messages.send("dave", 3, ack_within=60)], ack_by_ms=1)
    await node.messages.send("carol", 4, max_attempts=1)
    (last,) = await node.messages.inbox("carol")
    await node.messages.nack(last)
    receiving = node.messages.receive("bob")
    first = await next_of(receiving)
    await node.messages.ack(first, durable=True)
    now = await scraped(metrics)
    await receiving.aclose()
    assert bodies([first]) == [0]
    counted = [now.get(f"vox_messages_{what}") for what in ("unacked", "overdue", "dead")]
    assert counted == [2, 1, 1]
    assert now.get(_COUNT.format("message_delivery")) == 2


async def test_a_forged_message_is_counted(node: MeshNode, metrics: Metrics) -> None:
    message = await node.messages.send("bob", 1)
    await change(node, [message], payload="2")
    assert await node.messages.inbox("bob") == []
    assert (await scraped(metrics)).get("vox_messages_forged_total") == 1


# --- writes, conflicts and the log ---------------------------------------------------------------


async def test_writes_tell_how_many_went_together_and_how_many_were_refused(
    node: MeshNode, metrics: Metrics
) -> None:
    before = await scraped(metrics)
    lock = await node.locks.acquire("a")
    await node.locks.release(lock)
    harmless = Statement("DELETE FROM memories WHERE 0")
    await node.store.write_all([Script(node.locks.guard(lock)), Script(harmless), Script(harmless)])
    after = await scraped(metrics)

    def more(name: str, **labels: str) -> float:
        new, old = after.get(name, **labels), before.get(name, **labels)
        assert new is not None
        assert old is not None
        return new - old

    requests = more("vox_write_batch_scripts_count")
    # A heartbeat may be under way in either look: its request is counted before its write.
    assert abs(more("vox_writes_total") - more("vox_write_batch_scripts_sum")) <= 1
    assert more("vox_writes_total") >= requests + 2  # a heartbeat may go with one of them
    assert more("vox_write_batch_scripts_bucket", le="2.0") == requests - 1
    assert more("vox_writes_refused_total") == 1
    assert more("vox_write_failures_total") == 0
    assert after.get("vox_write_buffer_depth") == 0


async def test_conflicts_are_reported_by_what_became_of_them(node: MeshNode, metrics: Metrics) -> None:
    key = {"memory_key": "a"}
    await node.occ.write("memories", key, {"content": "one"}, None)
    await node.occ.write("memories", key, {"content": "two"}, None, strategy=Manual())
    await node.occ.write("memories", key, {"content": "two"}, None, strategy=TakeLeft())
    now = await scraped(metrics)
    outcomes = now.all("vox_occ_conflicts_total")
    assert {label for (label,), count in outcomes.items() if count} == {"recorded", "overwritten"}
    assert len(outcomes) == 6
    assert now.get("vox_conflicts_open") == 1


async def test_a_chain_that_is_found_broken_is_counted_each_time(node: MeshNode, metrics: Metrics) -> None:
    await node.jobs.schedule("work")
    await node.oplog.verify()
    before = await scraped(metrics)
    await write(node, f"UPDATE agent_oplog SET payload = '{{}}' {_OF_MESH} AND kind = 'ScheduleJob'")
    for _ in range(2):
        await node.oplog.verify()
    after = await scraped(metrics)
    failures = [each.get("vox_chain_verify_failures_total") for each in (before, after)]
    assert failures == [0, 2]


# --- the rhythm ----------------------------------------------------------------------------------


async def test_where_no_one_works_the_rhythm_tells_its_beat_alone(node: MeshNode, metrics: Metrics) -> None:
    now = await scraped(metrics)
    assert (now.get("vox_tempo_bpm"), now.get("vox_rhythm_degraded")) == (12, 0)
    assert now.get("vox_beat_index") in range(1, 9)
    assert (now.all("vox_kpi"), now.all("vox_budget_spent_ratio")) == ({}, {})
    assert set(now.all("vox_rhythm_alarm").values()) == {0}
    assert set(now.all("vox_promises_total").values()) == {0}


async def test_the_rhythm_tells_of_its_last_bar_and_what_was_spent(node: MeshNode, metrics: Metrics) -> None:
    rhythm = node.rhythm
    await rhythm.budgets.set("agent:ada", Budget(max_bu=4))
    now_ms = rhythm.times.now_ms
    spent = PhraseEnd("p", "ada", "write", PhraseOutcome.DONE, now_ms, now_ms + BEAT_MS, beats={"work": 3.0})
    await node.store.write(Script(rhythm.budgets.record(spent)))
    hand = MovableClock(rhythm.timeline.window_at(now_ms).start_ms - BAR_MS)  # the bar before this one
    ann = player(node, hand)
    for agent in ("ada", "bob"):
        await ann.say(agent, "write", "executing", overran=True)
    hand.now_ms += BAR_MS + 2 * BEAT_MS
    await ann.bar_reporter.roll_up_due()
    assert (ann.bar_reporter.latency.count, ann.bar_reporter.latency.sum) == (1, 2 * BEAT_MS / 1_000)
    rhythm.bar_reporter.latency.observe(0.3)
    rhythm.status.claim("ada", "more", "planning")
    await rhythm.status.flush()
    plan = rhythm.context.plan
    source, bars = ReportSource(plan.timeline, plan.head), Window(0, 5 * BAR_MS)
    rhythm.bar_reporter.totals.add(BarReport.of_bars(source, bars, is_missing=True), None)
    after = await scraped(metrics)
    assert after.get("vox_kpi", name="eta") == 1
    assert after.get("vox_kpi", name="pmr") is None
    assert (
        after.get("vox_bar_tasks", state="executing") == after.get("vox_bar_claims", state="executing") == 2
    )
    assert after.get("vox_bar_tasks", state="done") == after.get("vox_bar_queue_depth") == 0
    assert after.get("vox_bar_utilisation_ratio", resource="gpu") is None
    assert {name for (name,), value in after.all("vox_rhythm_alarm").items() if value} == {"overrun_rate"}
    assert after.get("vox_budget_spent_ratio", subject="agent:ada") == 0.75
    assert after.get("vox_status_claims_live") == after.get("vox_status_claims_total") == 1
    assert after.get("vox_bar_report_latency_seconds_bucket", le="0.25") == 0
    assert after.get("vox_bar_report_latency_seconds_count") == 1
    assert after.get("vox_rhythm_windows_missing_total") == 5
    assert after.all("vox_promises_total").keys() == {(name,) for name in PROMISES}
    assert ann.bar_reporter.totals.overruns == 2


async def test_what_a_report_tells_is_counted_once_however_often_it_is_amended(node: MeshNode) -> None:
    hand = MovableClock()
    ann = player(node, hand)
    tally = ann.bar_reporter.totals
    await ann.say("ada", "write", "executing", overran=True)
    hand.to(1, 3)
    await ann.bar_reporter.roll_up_due()
    assert tally.overruns == 1
    hand.to(0, 5)
    await ann.say("bob", "read", "executing", overran=True)
    hand.to(2, 3)
    amended = [each for each in await ann.bar_reporter.roll_up_due() if each.revision == 2]
    assert [each.overruns for each in amended] == [2]
    assert tally.overruns == 2


async def test_a_figure_of_long_ago_is_none_of_the_last_bar(node: MeshNode, metrics: Metrics) -> None:
    hand = MovableClock(node.rhythm.timeline.window_at(node.rhythm.times.now_ms).start_ms - 9 * BAR_MS)
    ann = player(node, hand)
    await ann.say("ada", "write", "executing", overran=True)
    hand.now_ms += BAR_MS + 2 * BEAT_MS
    assert await ann.bar_reporter.roll_up_due()
    now = await scraped(metrics)
    assert (now.all("vox_kpi"), set(now.all("vox_rhythm_alarm").values())) == ({}, {0})


async def test_beats_tell_how_late_they_are(tmp_path: Path) -> None:
    tempo = tmp_path / "tempo.yaml"
    tempo.write_text("{cluster_id: east, initial_bpm: 600}")
    async with Mesh.open(FILE.settings(tmp_path, None, tempo_policy=tempo)) as node:
        async with asyncio.timeout(PATIENCE_S):
            beats = node.rhythm.beats()
            for _ in range(3):
                await anext(beats)
            await beats.aclose()
        now = await scraped(metrics_of(node))
    document = now.get("vox_beat_lateness_seconds_count")
    assert document is not None
    assert document >= 3
    assert now.get("vox_tempo_bpm") == 600


async def test_however_many_budgets_there_are_the_answer_is_bounded(node: MeshNode, metrics: Metrics) -> None:
    numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 60)"
    await write(
        node,
        f"{numbers} INSERT INTO budgets SELECT ?1, ?2, 'agent:' || n, '{{\"max_bu\": 1}}', 0, '', 0 FROM n",
    )
    assert len((await scraped(metrics)).all("vox_budget_spent_ratio")) == 50


# --- bounds --------------------------------------------------------------------------------------


async def test_however_many_kinds_and_nodes_there_are_the_answer_is_bounded(
    node: MeshNode, metrics: Metrics
) -> None:
    numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 300)"
    await write(node, f"{numbers} INSERT INTO job_counts SELECT ?1, ?2, 'kind-' || n, 'pending', n FROM n")
    ann = await node.store.read(f"SELECT * FROM mesh_heartbeats {_OF_MESH}", node.store.mesh_id)
    given = {"node_id": "'node-' || n", "last_seen_ms": "1000000 * n"}
    values = ", ".join(given.get(name, name) for name in ann.columns)
    await write(
        node, f"{numbers} INSERT INTO mesh_heartbeats SELECT {values} FROM n, mesh_heartbeats {_OF_MESH}"
    )
    now = await scraped(metrics)
    pending = {kind: count for (kind, state), count in now.all("vox_jobs").items() if state == "pending"}
    assert len(pending) == 51
    assert sum(pending.values()) == sum(range(301))
    assert pending["kind-300"] == 300
    assert pending["other"] == sum(range(251))
    ages = now.all("vox_heartbeat_age_seconds")
    assert len(ages) == 201
    assert ("ann",) in ages
    assert ages[("other",)] == max(ages.values())
    missed = now.all("vox_heartbeat_missed_ticks")
    assert missed.keys() == ages.keys()
    assert missed[("other",)] == max(missed.values()) > 0
    assert len(now.all("vox_jobs_ready")) == 51
    assert sum(now.all("vox_nodes").values()) == 301
    assert len(now.text) < 100_000


# --- the service ---------------------------------------------------------------------------------


async def test_a_scrape_over_http_is_answered_and_counted_by_its_route(metrics: Metrics) -> None:
    async with served(metrics) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        for path in ("/metrics", "/metrics?x=1", "/secret/1", "/secret/2"):
            answer = await client.get(path)
        assert answer.status_code == HTTPStatus.NOT_FOUND
        await client.request("PROPFIND", "/metrics")
        answer = await client.get("/metrics")
    assert (answer.status_code, answer.headers["Content-Type"]) == (HTTPStatus.OK, CONTENT_TYPE)
    now = Scrape(answer.text)
    assert now.all("vox_http_requests_total") == {
        ("GET", "/metrics", "200"): 2,
        ("GET", "other", "404"): 2,
        ("other", "other", "405"): 1,
    }
    assert now.get(_COUNT.format("http_request")) == 5
    assert "secret" not in answer.text


async def test_only_one_who_may_read_is_notified(node: MeshNode) -> None:
    async with served(Metrics(node, Access(TOKEN, "for-reading"))) as client:
        refused = await client.get("/metrics")
        answer = await client.get("/metrics", headers={"Authorization": "Bearer for-reading"})
    assert_problem(refused, HTTPStatus.UNAUTHORIZED, "token_missing")
    assert answer.status_code == HTTPStatus.OK
    assert (
        Scrape(answer.text).get("vox_http_requests_total", method="GET", route="/metrics", status="401") == 1
    )


async def test_names_and_units_are_as_prometheus_wants_them(metrics: Metrics) -> None:
    text = (await metrics.exposition()).decode()
    document = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert document.keys() == kinds.keys()
    assert len(re.findall(r"^# TYPE", text, re.MULTILINE)) == len(kinds)
    for name, kind in kinds.items():
        assert re.fullmatch(r"(vox|process)_[a-z_]*[a-z]", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|count|sum|bucket)(_total)?$", name), name
        assert document[name].endswith("."), name
