"""Jobs with a score take part in the rhythm: their phases, waits and claims, by clocks of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.rhythm.orchestra import START_MS, SkewedNodes, orchestra
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.records import COMPLETE, YIELD
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.node import MeshNode

_BEAT_MS: Final = 1_000
_BAR_MS: Final = 8 * _BEAT_MS
_POLICY: Final = "{cluster_id: east, initial_bpm: 60, bar_len_beats: 8}"
_SCORE: Final = {
    "phases": {"plan": 2, "work": 4, "review": 2},
    "retry": {"max_phrases": 3, "backoff": "none"},
}


class SteppedHandler:
    """A handler that goes through the phases of its phrase, each as long as the test says."""

    def __init__(self, node: MeshNode) -> None:
        self.reached = asyncio.Queue[str]()
        self.may_go = asyncio.Semaphore(0)
        node.worker.handles("work")(self.handle)

    async def handle(self, context: JobContext) -> str:
        """Work on a job."""
        phrase = context.phrase
        assert phrase is not None
        for phase in (phrase.plan(), phrase.work(), phrase.review()):
            async with phase:
                self.reached.put_nowait(phase.name)
                await self.may_go.acquire()
        return "done"

    async def next(self) -> str:
        """Return the phase that is entered next."""
        return await asyncio.wait_for(self.reached.get(), PATIENCE_S)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SkewedNodes]:
    """Two nodes that have seen a bar, on the downbeat of another, in a mesh with a beat a second."""
    (tmp_path / "tempo.yaml").write_text(_POLICY)
    async with (
        asyncio.timeout(PATIENCE_S),
        orchestra(tmp_path, tempo_policy=tmp_path / "tempo.yaml", tick="1s") as nodes,
    ):
        for name in ("a", "b"):
            assert await nodes.begin(name)
        await beats(nodes, 16)
        yield nodes


async def beats(nodes: SkewedNodes, count: int) -> None:
    """Have beats pass, one after the other."""
    for _ in range(count):
        await nodes.turn(_BEAT_MS)


def beat_of(nodes: SkewedNodes) -> int:
    """Return the current beat, counted from the first one of all, from 0."""
    return (nodes.now_ms - START_MS) // _BEAT_MS


async def claims_of(node: MeshNode, agent: str) -> list[tuple[int, str]]:
    """Return the claims of an agent: the beat, counted from the first one of all, and the state."""
    sql = "SELECT epoch_ms, state FROM status_claims WHERE agent_id = ?1 ORDER BY epoch_ms"
    rows = await node.store.read(sql, (agent,), fresh=True)
    return [((row["epoch_ms"] - START_MS) // _BEAT_MS, row["state"]) for row in rows]


async def phrases_in_log(node: MeshNode) -> list[dict[str, Any]]:
    """Return the ends of phrases, as the op log has them: each with its job's completion or yield."""
    sql = "SELECT payload FROM agent_oplog WHERE kind IN (?1, ?2) AND accepted = 1 ORDER BY id"
    rows = await node.store.read(sql, (COMPLETE, YIELD), fresh=True)
    items = [item for row in rows for item in orjson.loads(row["payload"])["jobs"]]
    return [{**item["phrase"], "job": item["job_id"]} for item in items if "phrase" in item]


async def beats_in_log(node: MeshNode, kind: str) -> list[int]:
    """Return the beats of the ops of a kind about jobs, counted from the first one of all."""
    sql = "SELECT payload FROM agent_oplog WHERE kind = ?1 AND accepted = 1 ORDER BY id"
    payloads = [orjson.loads(row["payload"]) for row in await node.store.read(sql, (kind,), fresh=True)]
    return [(each["at_ms"] - START_MS) // _BEAT_MS for each in payloads]


async def all_reports(node: MeshNode) -> list[BarReport]:
    """Return all reports, the earliest first."""
    return (await node.rhythm.bar_reporter.reports(1_000, fresh=True))[::-1]


async def killed(nodes: SkewedNodes, name: str) -> None:
    """Have a node and its worker end without a word."""
    node = nodes.players[name].playing
    await node.store.close()
    await node.worker.stop(grace=0.0)
    await nodes.kill(name)


async def is_claimable(nodes: SkewedNodes, node: MeshNode, job: Scheduled) -> bool:
    """Return whether a job waits for a worker, and for no other one than of this node."""
    found, live = await node.jobs.find(job), await node.nodes.live_nodes_from_db()
    return found.state == "pending" and found.not_before_ms <= nodes.now_ms and len(live) == 1


async def ended(nodes: SkewedNodes, node: MeshNode, job: Scheduled) -> str:
    """Wait until a job has ended, and return its state."""
    return (await node.jobs.wait(job, timeout=PATIENCE_S)).state


async def test_claims_reports_and_costs_of_a_job_that_was_taken_over_agree_with_the_log(
    nodes: SkewedNodes,
) -> None:
    one, two = (nodes.players[name].playing for name in "ab")
    first, second = SteppedHandler(one), SteppedHandler(two)
    await one.worker.start()
    job = await two.jobs.schedule("work", score=_SCORE, lease="4s")
    assert await first.next() == "plan"
    began = beat_of(nodes)
    await beats(nodes, 1)
    first.may_go.release()
    assert await first.next() == "work"
    await beats(nodes, 2)
    await killed(nodes, "a")
    await two.worker.start()
    while not await is_claimable(nodes, two, job) or beat_of(nodes) % 8:
        await beats(nodes, 1)
    resumed = beat_of(nodes)
    for phase, count in (("plan", 1), ("work", 3), ("review", 1)):
        assert await second.next() == phase
        await beats(nodes, count)
        second.may_go.release()
    assert await ended(nodes, two, job) == "succeeded"
    await beats(nodes, 16)
    assert await claims_of(two, "a") == [
        (began, "planning"),
        (began + 1, "executing"),
        (began + 2, "executing"),
    ]
    states = ["planning", *["executing"] * 3, "review", "done"]
    assert await claims_of(two, "b") == [(resumed + n, state) for n, state in enumerate(states)]
    (end,) = await phrases_in_log(two)
    assert (end["outcome"], end["job"], end["agent"]) == ("done", job.job_id, "b")
    assert end["beats"] == {"plan": 1.0, "work": 3.0, "review": 1.0}
    assert await beats_in_log(two, "StartWork") == [began, resumed]
    assert [beat % 8 for beat in (began, resumed)] == [0, 0]  # both attempts begin with a bar
    assert await beats_in_log(two, "CompleteJob") == [resumed + sum(end["beats"].values())]
    (lost,) = await two.store.read("SELECT * FROM phrase_ends WHERE agent_id = 'a'", fresh=True)
    (expired,) = await beats_in_log(two, "ExpireWork")
    assert began + 3 <= (lost["ended_ms"] - START_MS) / _BEAT_MS <= expired < resumed
    assert (lost["outcome"], lost["began_ms"]) == ("failed", START_MS + began * _BEAT_MS)
    reports = await all_reports(two)
    assert sum(report.deliverables for report in reports) == 1
    assert sum(sum(report.beats.values()) for report in reports) == 3 + len(states)
    rows = await two.store.read("SELECT sum(cost) AS cost, sum(bu) AS bu FROM phrase_ends", fresh=True)
    assert sum(report.cost for report in reports) == pytest.approx(rows[0]["cost"])
    assert rows[0]["cost"] == pytest.approx(rows[0]["bu"])
    (delivering,) = (report for report in reports if report.deliverables)
    assert delivering.kpis.bpd == sum(delivering.beats.values())
    assert delivering.kpis.cpd == pytest.approx(delivering.cost)


async def test_every_job_that_is_done_is_a_deliverable_with_or_without_a_score(nodes: SkewedNodes) -> None:
    node = nodes.players["a"].playing

    @node.worker.handles("work")
    async def handle(context: JobContext) -> str:
        if context.payload == "fail":
            raise ValueError("no luck")
        return "done"

    scored = await node.jobs.schedule("work", "scored", score=_SCORE | {"start": "now"})
    plain = [await node.jobs.schedule("work", n, max_attempts=1) for n in (1, 2, "fail")]
    await node.worker.start()
    states = [await ended(nodes, node, job) for job in (scored, *plain)]
    assert states == ["succeeded", "succeeded", "succeeded", "failed"]
    await beats(nodes, 17)
    (report,) = [each for each in await all_reports(node) if each.deliverables]
    assert (report.deliverables, report.beats, report.reporters) == (3, {"done": 3, "failed": 1}, 1)
    assert (report.tasks, report.phrases) == ({"done": 1}, {"done": 1})  # those without a score are no tasks
    assert (report.kpis.tnt, report.kpis.bpd, report.kpis.eta) == (3 / 8, 4 / 3, 3 / 4)
    assert report.kpis.ttfu == pytest.approx(0.0, abs=0.01)
    (end,) = await phrases_in_log(node)  # its claims would all be in one beat: only the log has it by itself
    assert (end["job"], end["agent"], end["outcome"]) == (scored.job_id, "a", "done")
    assert await claims_of(node, "a") == []
    rows = await node.store.read("SELECT sum(cost) AS cost FROM job_tallies", fresh=True)
    assert report.kpis.cpd == pytest.approx(rows[0]["cost"] / 3)
    (spent,) = await node.rhythm.budgets.report("agent:a")
    assert spent.phrases == 1
    assert spent.cost == pytest.approx(end["cost"])


async def test_a_wait_that_never_ends_is_exhausted_and_the_fallback_is_the_result(nodes: SkewedNodes) -> None:
    node, begun = nodes.players["a"].playing, asyncio.Event()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        phrase = context.phrase
        assert phrase is not None
        phrase.fallbacks["coarse-answer"] = lambda: "about forty"
        begun.set()
        await phrase.wait_for(asyncio.Event().wait(), budget="help", wait_for=["hmmm://thread/abc"])

    steps = {"on_wait_exhausted": ["emit:needs-attention", "fallback:coarse-answer"]}
    job = await node.jobs.schedule("work", score={"escalation": steps})
    await node.worker.start()
    await begun.wait()
    began = beat_of(nodes)
    await beats(nodes, 2)
    found = await node.jobs.wait(job, timeout=PATIENCE_S)
    await beats(nodes, 1)
    assert (found.state, await node.jobs.result(job)) == ("succeeded", "about forty")
    assert await claims_of(node, "a") == [(began, "waiting"), (began + 1, "waiting"), (began + 2, "done")]
    (end,) = await phrases_in_log(node)
    assert (end["outcome"], end["waited"]["help"], sum(end["beats"].values())) == ("degraded", 2.0, 2.0)
    (message,) = await node.messages.inbox("needs-attention")
    assert (message.body["task"], message.body["budget"]) == (job.job_id, "help")


@pytest.mark.parametrize("is_async", [True, False])
async def test_phases_that_a_handler_does_not_enter_follow_the_score(
    nodes: SkewedNodes, is_async: bool
) -> None:
    node, begun = nodes.players["a"].playing, asyncio.Event()

    async def hang(context: JobContext) -> None:
        context.progress(0.5, "half way")
        begun.set()
        await asyncio.Event().wait()

    def wait(context: JobContext) -> None:
        context.run(_set(begun))
        context.wait_cancelled(PATIENCE_S)

    node.worker.handles("work")(hang if is_async else wait)
    job = await node.jobs.schedule("work", score={**_SCORE, "retry": {"max_phrases": 1}})
    await node.worker.start()
    await begun.wait()
    began = beat_of(nodes)
    await beats(nodes, 8)
    assert await ended(nodes, node, job) == "failed"
    await beats(nodes, 1)
    states = [*["planning"] * 2, *["executing"] * 4, *["review"] * 2, "failed"]
    assert await claims_of(node, "a") == [(began + n, state) for n, state in enumerate(states)]
    (end,) = await phrases_in_log(node)
    assert end["beats"] == {"plan": 2.0, "work": 4.0, "review": 2.0}
    assert (end["outcome"], end["overruns"]) == ("failed", 1)


async def _set(event: asyncio.Event) -> None:
    event.set()
