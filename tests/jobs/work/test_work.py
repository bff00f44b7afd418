"""The work API: agents take jobs and report them; all rules of workers hold, and proofs name the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import PATIENCE_S
from tests.support.oplog.authoring import assert_sound
from vox_mesh.errors import BadValue, OverBudget, PhaseOverrun, StaleClaim, TakenElsewhere
from vox_mesh.jobs.proof.job_log import DatabaseJobLog
from vox_mesh.jobs.proof.verify import Verifier
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.jobs.work.reports import failed, succeeded, yielded
from vox_mesh.jobs.work.work import TakenJob
from vox_mesh.model.jobs.bundle import check_bundle
from vox_mesh.model.jobs.records import CLAIM, COMPLETE, EXPIRE, YIELD
from vox_mesh.node import MeshNode
from vox_mesh.testing.harness import MeshHarness


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness


async def take_one(node: MeshNode, agent: str = "coder", **options: Any) -> TakenJob:
    (taken,) = await node.work.take(agent, **options)
    return taken


async def takes(node: MeshNode) -> int:
    """How many rows are kept about what agents hold."""
    sql = "SELECT count(*) FROM job_takes WHERE scope_id = ?1 AND repository_id = ?2"
    count: int = (await node.store.read(sql, node.store.mesh_id, fresh=True)).value
    return count


async def test_an_agent_takes_a_job_and_its_proof_names_it(node: MeshNode) -> None:
    job = await node.jobs.schedule("build", {"target": "all"})
    assert await node.work.take("coder", ["notes.*"]) == []
    taken = await take_one(node, kinds=["build"])
    assert (taken.job.job_id, taken.payload, taken.agent) == (job.job_id, {"target": "all"}, "coder")
    assert (await node.jobs.find(job)).state == "running"
    await node.work.progress(job, taken.claim_token, 0.5, "half")
    await node.work.log(job, taken.claim_token, "compiling")
    await node.work.keep(job, taken.claim_token, "out", b"first", "text/plain")
    await node.work.keep(job, taken.claim_token, "out", b"x" * 20_000, "text/plain")
    renewed = await node.work.renew(job, taken.claim_token, lease=120)
    assert renewed.lease_ms == 120_000
    done = await node.work.report(job, taken.claim_token, succeeded({"ok": True}))
    assert (done.state, [each["name"] for each in done.outputs]) == ("succeeded", ["out", "result"])
    assert await node.jobs.result(job) == {"ok": True}
    assert (await node.jobs.notes.of(job.job_id)).message == "half"
    assert [piece.text for piece in await node.jobs.notes.logged(job.job_id)] == ["compiling\n"]
    verifier = Verifier(DatabaseJobLog(node.oplog, node.jobs.authorship), node.artifacts)
    checked = await verifier.check(done)
    assert checked.faults == []
    assert checked.proof is not None
    envelope = checked.proof.envelope
    said = {name: envelope[name] for name in ("agent", "grant", "attested_by")}
    assert said == {"agent": "coder", "grant": None, "attested_by": node.identity.node_id}
    assert check_bundle(await verifier.bundle(done, checked.proof)).faults == []
    assert [entry.agent for kind in (CLAIM, COMPLETE) for entry in await ops(node, kind)] == ["coder"] * 3
    assert await takes(node) == 0
    rebuild = Rebuild(node.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])
    await assert_sound(node)


async def test_a_waiting_agent_gets_a_job_as_soon_as_there_is_one(node: MeshNode) -> None:
    waiting = [asyncio.create_task(node.work.take(f"agent-{n}", wait=PATIENCE_S)) for n in range(4)]
    await asyncio.sleep(0)
    jobs = [await node.jobs.schedule("work", n) for n in range(4)]
    async with asyncio.timeout(PATIENCE_S):
        taken = [each for one in await asyncio.gather(*waiting) for each in one]
    assert {each.job.job_id for each in taken} == {job.job_id for job in jobs}
    assert {each.agent for each in taken} == {f"agent-{n}" for n in range(4)}
    for each in taken:
        await node.work.report(each.job, each.claim_token, failed("no", retry=False))
    assert {job.state for job in [await node.jobs.find(job) for job in jobs]} == {"failed"}


async def test_a_report_is_answered_as_the_database_has_the_job(node: MeshNode) -> None:
    reports = (succeeded([1], exit_code=0), failed("no\nway", retry=False), yielded(delay=0))
    for report in reports:
        await node.jobs.schedule("work", new=True)
        taken = await take_one(node)
        reported = await node.work.report(taken.job, taken.claim_token, report)
        assert reported == await node.jobs.queries.find(taken.job.job_id, fresh=True)


async def test_an_error_of_one_agents_claim_concerns_no_other(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*(local.jobs.schedule("work", n) for n in range(2)))
    claimer = local.work._taker._round._claimer
    claim = claimer.claim

    async def refuse_one(jobs: Any, lease_ms: int, attested: Any, *more: Any) -> Any:
        if attested.agent == "wrong":
            raise BadValue("not this one")
        return await claim(jobs, lease_ms, attested, *more)

    monkeypatch.setattr(claimer, "claim", refuse_one)
    asked = (local.work.take(name, wait=PATIENCE_S) for name in ("wrong", "right"))
    wrong, right = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(wrong, BadValue)
    assert isinstance(right, list)
    assert [each.agent for each in right] == ["right"]


async def test_a_repeated_request_gets_the_same_jobs(local: MeshNode) -> None:
    assert await local.work.take("coder", request_id="1") == []
    await asyncio.gather(*(local.jobs.schedule("work", n) for n in range(3)))
    asked = (local.work.take("coder", request_id="1") for _ in range(2))
    first, same = await asyncio.gather(*asked)
    assert [*map(len, (first, same))] == [1, 1]
    assert first == same == await local.work.take("coder", request_id="1")
    others = [await take_one(local, agent, request_id=key) for agent, key in (("coder", "2"), ("other", "1"))]
    assert len({each.job.job_id for each in (*first, *others)}) == 3
    await local.work.return_unreceived("coder", {first[0].job.job_id: first[0].claim_token})
    again = await take_one(local, request_id="1", wait=PATIENCE_S)
    assert (again.job.job_id, again.job.attempts) == (first[0].job.job_id, 2)


async def test_the_job_of_a_killed_agent_is_back_after_one_lease(harness: MeshHarness) -> None:
    node = await harness.node("a")
    job = await node.jobs.schedule("work")
    first = await take_one(node, "slow", lease="30s")
    await harness.clock.advance("29s")
    assert (await node.jobs.find(job)).state == "running"
    await harness.clock.advance("2s")  # the node has not renewed: only the agent may
    assert (await node.jobs.find(job)).state == "pending"
    assert len(await ops(node, EXPIRE)) == 1
    second = await take_one(node, "quick")
    assert (await node.work.report(job, second.claim_token, succeeded("quick"))).state == "succeeded"
    for late in (
        node.work.report(job, first.claim_token, succeeded("slow")),
        node.work.renew(job, first.claim_token),
    ):
        with pytest.raises(StaleClaim) as refused:
            await late
        assert refused.value.code == "stale_claim"
        assert "take another" in refused.value.hint
    assert await node.jobs.result(job) == "quick"


async def test_renewals_keep_a_job_and_a_restart_of_the_node_does_not_lose_it(harness: MeshHarness) -> None:
    node = await harness.node("a")
    node.worker.handles("other")(lambda context: None)
    job = await node.jobs.schedule("work")
    taken = await take_one(node, lease="30s")
    for _ in range(3):
        await harness.clock.advance("20s")
        await node.work.renew(job, taken.claim_token)
    await harness.leave("a")
    node = await harness.node("a")
    node.worker.handles("other")(lambda context: None)
    async with node.worker.running():  # its first look releases what its previous incarnation ran
        other = await node.jobs.schedule("other")
        await node.jobs.wait(other, timeout=PATIENCE_S)
    assert (await node.work.report(job, taken.claim_token, succeeded())).state == "succeeded"
    assert await ops(node, EXPIRE) == []


async def test_only_the_claiming_node_can_sign(harness: MeshHarness) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    job = await one.jobs.schedule("work")
    taken = await take_one(one)
    with pytest.raises(TakenElsewhere) as refused:
        await two.work.report(job, taken.claim_token, succeeded())
    assert (refused.value.node_id, refused.value.code) == ("one", "taken_elsewhere")
    assert (await one.work.report(job, taken.claim_token, succeeded())).state == "succeeded"


async def test_a_repeated_report_is_answered_and_another_one_is_refused(harness: MeshHarness) -> None:
    node = await harness.node()
    job = await node.jobs.schedule("work", max_attempts=2, backoff=0)
    for report in (yielded("later", delay=0), failed("broken"), succeeded()):
        taken = await take_one(node, wait=PATIENCE_S)
        once = await node.work.report(job, taken.claim_token, report)
        assert await node.work.report(job, taken.claim_token, report) == once
        other = failed("other") if report.outcome == "succeeded" else succeeded()
        with pytest.raises(StaleClaim):
            await node.work.report(job, taken.claim_token, other)
        await harness.clock.advance("1s")
    assert (once.state, once.failures) == ("succeeded", 1)
    assert len(await ops(node, YIELD)) == 2


async def test_kinds_pauses_and_limits_hold_for_agents(local: MeshNode) -> None:
    await local.job_kinds.limit("work", max_running=1)
    await local.job_kinds.pause("paused")
    jobs = [await local.jobs.schedule("work", n) for n in range(2)]
    await local.jobs.schedule("paused")
    (first,) = await local.work.take("coder", count=5)
    assert await local.work.take("other", count=5) == []
    await local.work.report(first.job, first.claim_token, succeeded())
    (second,) = await local.work.take("other", count=5, wait=PATIENCE_S)
    assert {first.job.job_id, second.job.job_id} == {job.job_id for job in jobs}


async def test_a_job_for_an_agent_that_went_away_goes_back(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await local.jobs.schedule("work")
    waiting = asyncio.create_task(local.work.take("gone", wait=PATIENCE_S))
    claim = local.work._taker._round._claimer.claim

    async def claim_and_lose(*arguments: Any) -> Any:
        claimed = await claim(*arguments)
        waiting.cancel()
        await asyncio.sleep(0)
        return claimed

    monkeypatch.setattr(local.work._taker._round._claimer, "claim", claim_and_lose)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    monkeypatch.undo()
    taken = await take_one(local, wait=PATIENCE_S)
    assert (taken.job.job_id, taken.job.attempts) == (job.job_id, 2)
    (yielding,) = await ops(local, YIELD)
    assert orjson.loads(yielding.payload)["jobs"][0]["reason"] == "its agent had gone"


async def test_budgets_and_time_limits_end_an_agents_attempt(harness: MeshHarness) -> None:
    node = await harness.node()
    await node.rhythm.refresh()
    limited = await node.jobs.schedule("limited", budget={"max_bu": 2.0}, max_attempts=1)
    timed = await node.jobs.schedule("timed", timeout=60, max_attempts=1)
    for job, kind, error in ((limited, "limited", OverBudget), (timed, "timed", PhaseOverrun)):
        taken = await take_one(node, kinds=[kind], lease="1h")
        await harness.clock.advance("10m")
        with pytest.raises(error):
            await node.work.renew(job, taken.claim_token)
        ended = await node.jobs.find(job)
        assert ended.state == "failed"
        with pytest.raises(StaleClaim):
            await node.work.report(job, taken.claim_token, succeeded())
    (spending,) = [each for each in await node.rhythm.budgets.report() if each.subject == "agent:coder"]
    assert spending.phrases == 1


@pytest.mark.parametrize(
    "wrong", [{"kinds": []}, {"kinds": ["Not a kind"]}, {"count": 0}, {"count": 101}, {"lease": 0.5}]
)
async def test_requests_that_ask_for_nonsense_are_refused(local: MeshNode, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        await local.work.take("coder", **wrong)
