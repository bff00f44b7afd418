"""Budgets of jobs, accounts and agents: the worker stops what exceeds them, and records what it cost."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.jobs.bounded_jobs import (
    BEAT_MS,
    FOR_EVER,
    ONCE,
    SCORE,
    command,
    ends_of,
    logged,
    node,
    settings,
    work,
)
from tests.support.jobs.job_desks import ControlledHandler, ended
from tests.support.jobs.job_runs import settings_of
from tests.support.messages.messaging import PATIENCE_S
from tests.support.nodes.virtual_time import dependencies, in_virtual_time
from tools.fork_server import Program
from tools.forked import AsyncProcess
from tools.homes import environment
from vox_mesh import Mesh, Settings
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.metering import Meter, Share, Shares
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.costs import Resources
from vox_mesh.model.rhythm.usage import Usage
from vox_mesh.node import MeshNode

__all__ = ["node", "settings"]

_DOOMED: Final = """
import asyncio, os
from vox_mesh import Mesh

async def main():
    begun = asyncio.Barrier(3)
    async with Mesh.open() as mesh:
        @mesh.worker.handles("work")
        async def handle(context):
            await begun.wait()
            os._exit(9)

        async with mesh.worker.running(concurrency=3):
            await asyncio.Event().wait()

asyncio.run(main())
"""


# --- budgets -------------------------------------------------------------------------------------


async def test_a_job_over_its_budget_is_warned_then_stopped_and_its_cost_recorded(node: MeshNode) -> None:
    job = await command(node, *FOR_EVER, budget={"max_bu": 8, "charge_to": "acme"}, max_attempts=9)
    (end,) = await ends_of(node, job)
    assert job.state == "failed"
    assert job.attempts == 1
    assert "of 8 beats of the budget of the job are used" in (job.reason or "")
    assert (end.outcome, end.account) == ("failed", "acme")
    assert end.bu >= 10
    assert end.cost >= 10 * end.bu  # the rate of commands, and processor time
    said = await logged(node, job)
    assert said.index("are used\n") < said.index("cut off:")
    found = {each.subject: each.bu for each in await node.rhythm.budgets.report()}
    assert found == {"account:acme": pytest.approx(end.bu), "agent:worker": pytest.approx(end.bu)}


async def test_a_hard_end_stops_the_work(node: MeshNode) -> None:
    ControlledHandler(node)
    job = await work(node, budget={"hard_end": "bar+0"})
    async with node.worker.running():
        (found,) = await ended(node, job)
    (end,) = await ends_of(node, job)
    assert (found.state, found.reason) == ("failed", "the budget of the job has its hard end: bar+0")
    assert end.overruns == 0


async def test_a_phase_cap_bounds_work_that_has_no_score(node: MeshNode) -> None:
    ControlledHandler(node)
    job = await work(node, budget={"phase_caps": {"work": 1.5}})
    async with node.worker.running():
        (found,) = await ended(node, job)
    assert (found.attempts, found.reason) == (
        1,
        "the 1.5 beats that the budget of the job has for work are used",
    )


async def test_what_a_killed_worker_used_is_charged_and_no_bound_begins_again(
    node: MeshNode, settings: Settings, tmp_path: Path
) -> None:
    bounded: list[dict[str, Any]] = [
        {"budget": {"max_bu": 2, "charge_to": "acme"}},
        {"budget": {"hard_end": "bar+0"}},
        {"score": SCORE | {"retry": {"max_phrases": 1}}},
    ]
    jobs = [await work(node, payload=n, lease="1s", **fields) for n, fields in enumerate(bounded)]
    await node.rhythm.budgets.set("account:acme", Budget(max_bu=1_000))
    variables = {**os.environ, **environment(settings_of(settings, tmp_path, "doomed"))}
    doomed = await AsyncProcess.start(Program((), variables, code=_DOOMED))
    await asyncio.wait_for(doomed.communicate(), PATIENCE_S)
    assert doomed.returncode == 9
    leases = [(await node.jobs.find(job)).lease_until_ms or 0 for job in jobs]
    await node.rhythm.times.until(max(leases) + 2)
    await node.catch_up()
    desk = ControlledHandler(node)
    desk.may_end.set()
    async with node.worker.running():
        found = await ended(node, *jobs)
    assert [(job.state, job.attempts) for job in found] == [("failed", 2)] * 3
    reasons = [job.reason or "" for job in found]
    assert "of 2 beats of its budget were used before" in reasons[0]
    assert reasons[1:] == [
        "the budget of the job has its hard end: bar+0",
        "all phrases of its score (1) were played before",
    ]
    assert desk.order == []
    for job in jobs:
        (end,) = await ends_of(node, job)
        assert (end.outcome, end.note, end.agent_id) == ("failed", "its worker was gone", "doomed")
        assert 2 <= end.bu <= 1_000 / BEAT_MS + 1  # no longer than its lease
    (end,) = await ends_of(node, jobs[0])
    (account,) = await node.rhythm.budgets.report("account:acme")
    assert account.phrases == 1
    assert account.bu == pytest.approx(end.bu)


async def test_the_lowest_cap_of_job_agent_and_account_holds(node: MeshNode) -> None:
    await node.rhythm.budgets.set("agent:worker", Budget(phase_caps={"plan": 0.5, "review": 0.5}))
    await node.rhythm.budgets.set("account:acme", Budget(phase_caps={"work": 1}))
    seen: dict[Any, float | None] = {}

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        seen[context.payload] = context.phrase_beats
        await asyncio.Event().wait()

    own = {"charge_to": "acme", "phase_caps": {"work": 1.5}}
    jobs = [
        await work(node, payload="scored", score=ONCE, budget=own),
        await work(node, payload="not", budget=own),
    ]
    async with node.worker.running():
        found = await ended(node, *jobs)
    assert seen == {"scored": 2, "not": 1}
    assert [job.reason for job in found] == [
        "its phrase of 2 beats is over",
        "the 1 beats that the budget of account:acme has for work are used",
    ]


@in_virtual_time
async def test_a_ceiling_of_an_agent_is_for_all_its_jobs_together(settings: Settings) -> None:
    """In virtual time: on a busy machine, late jobs charge less in a beat."""
    in_memory = settings.model_copy(update={"enabled": False})
    async with Mesh.open(in_memory, dependencies()) as node:
        await node.rhythm.budgets.set("agent:worker", Budget(per_beat={"gpu_sec": {"A100": 1}}))

        @node.worker.handles("work")
        async def handle(context: JobContext) -> None:
            for _ in range(150):  # 0.6 in each beat
                context.charge(gpu_sec={"A100": 0.06})
                await node.rhythm.times.until(node.rhythm.times.now_ms + BEAT_MS // 10)

        jobs = [await work(node, payload=n) for n in range(3)]
        async with node.worker.running(concurrency=3):
            found = await ended(node, *jobs)
    assert sorted(job.state for job in found) == ["failed", "failed", "succeeded"]
    assert all("the budget of agent:worker" in (job.reason or "") for job in found if job.state == "failed")


def test_of_the_ones_that_exceed_a_ceiling_together_one_is_stopped_in_a_beat() -> None:
    shares, stopped, budget = Shares(), list[int](), Budget(per_beat={"cpu_sec": 3})
    meters = [Meter() for _ in range(4)]
    all_of_them = [
        Share(meter, ["agent:ann"] if n else ["agent:bob"], 0, lambda _, n=n: stopped.append(n))  # type: ignore[misc]
        for n, meter in enumerate(meters)
    ]
    for n, (meter, share) in enumerate(zip(meters, all_of_them, strict=True)):
        shares.join(share)
        meter.report(Usage(Resources(cpu_sec=9 if n == 0 else n)))
    _, one, two, three = all_of_them
    shares.leave(one)  # it was over in the beat, and has used what it has
    found = shares.excess(two, "agent:ann", budget, 1)
    assert found is not None
    assert (str(found.excess), found.by) == ("6 cpu_sec in a beat, where 3 are allowed", three)
    assert shares.excess(two, "agent:ann", budget, 1) is None
    for share in (two, three):
        share.count_from(5_000)
    meters[2].report(Usage(Resources(cpu_sec=3)))
    assert shares.excess(two, "agent:ann", budget, 1) is None
    meters[3].report(Usage(Resources(cpu_sec=1)))
    assert shares.excess(two, "agent:ann", budget, 2) is None
    found = shares.excess(three, "agent:ann", budget, 1)
    assert found is not None
    assert found.by is two


async def test_more_processor_time_than_a_beat_may_use_stops_a_command(node: MeshNode) -> None:
    burn = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    job = await command(node, sys.executable, "-c", burn, budget={"per_beat": {"cpu_sec": 0.001}})
    (end,) = await ends_of(node, job)
    assert job.state == "failed"
    assert "cpu_sec in a beat, where 0.001 are allowed" in (job.reason or "")
    assert end.resources.cpu_sec is not None
    assert end.resources.cpu_sec > 0.001


async def test_what_a_handler_reports_counts_as_what_is_measured(node: MeshNode) -> None:
    begun = asyncio.Event()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        context.charge(gpu_sec={"A100": 3.2}, net_egress_mb=7)
        begun.set()
        await asyncio.Event().wait()

    job = await work(node, budget={"per_beat": {"gpu_sec": {"A100": 1}}})
    async with node.worker.running():
        (found,) = await ended(node, job)
    (end,) = await ends_of(node, job)
    assert "3.2 gpu_sec[A100] in a beat" in (found.reason or "")
    assert (end.resources.net_egress_mb, end.resources.gpu_sec) == (7, {"A100": 3.2})
    assert (end.resources.storage_gbh, end.resources.accel_sec) == (None, {})  # nothing by guess
    assert end.cost == pytest.approx(end.bu + 5 * 3.2 + 100 * (end.resources.cpu_sec or 0))


async def test_the_processor_time_of_a_handler_in_a_thread_is_measured(node: MeshNode) -> None:
    @node.worker.handles("work")
    def handle(context: JobContext) -> None:
        while time.thread_time() < 0.05:
            pass

    job = await work(node, budget={"max_bu": 1_000})
    async with node.worker.running():
        await ended(node, job)
    (end,) = await ends_of(node, job)
    assert end.outcome == "done"
    assert end.resources.cpu_sec is not None
    assert 0.04 <= end.resources.cpu_sec < 5


async def test_a_command_that_has_ended_long_ago_has_still_used_what_it_has(node: MeshNode) -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    job = await command(node, "/bin/sh", "-c", f'{sys.executable} -c "{burn}"', budget={"max_bu": 1_000})
    (end,) = await ends_of(node, job)
    assert job.state == "succeeded"
    assert end.resources.cpu_sec is not None
    assert end.resources.cpu_sec >= 0.2


async def test_nothing_more_is_begun_of_a_job_that_has_used_its_budget(node: MeshNode) -> None:
    tries = 0

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        nonlocal tries
        tries += 1
        await node.rhythm.times.until(node.rhythm.times.now_ms + 2 * BEAT_MS)
        raise OSError("no luck")

    job = await work(node, budget={"max_bu": 2}, max_attempts=9)
    async with node.worker.running():
        (found,) = await ended(node, job)
    assert (found.state, tries) == ("failed", 1)


# --- accounts and agents -------------------------------------------------------------------------


async def test_jobs_of_an_exhausted_account_are_left_alone_while_others_are_done(node: MeshNode) -> None:
    desk = ControlledHandler(node)
    desk.may_end.set()
    await node.rhythm.budgets.set("account:poor", Budget(max_bu=0))
    left = [await work(node, payload=n, budget={"charge_to": "poor"}, priority=3) for n in range(40)]
    others = [await work(node, payload="rich", budget={"charge_to": "rich"}), await work(node, payload="no")]
    async with node.worker.running(concurrency=1):
        await ended(node, *others)
        assert {(await node.jobs.find(job)).state for job in left} == {"pending"}
        await node.rhythm.budgets.set("account:poor", Budget(max_bu=1_000))
        assert {job.state for job in await ended(node, *left)} == {"succeeded"}
    assert sorted(desk.order[:2]) == ["no", "rich"]


async def test_work_in_hand_is_stopped_when_its_account_has_spent_too_much(node: MeshNode) -> None:
    desk = ControlledHandler(node)
    await node.rhythm.budgets.set("account:acme", Budget(max_bu=1_000))
    job = await work(node, budget={"charge_to": "acme"})
    async with node.worker.running():
        await desk.next()
        await node.rhythm.budgets.set("account:acme", Budget(max_bu=0))
        (found,) = await ended(node, job)
    assert "of the budget of account:acme are used" in (found.reason or "")


async def test_a_worker_whose_agent_has_spent_its_budget_takes_nothing_until_it_is_raised(
    node: MeshNode,
) -> None:
    desk = ControlledHandler(node)
    desk.may_end.set()
    budgets = node.rhythm.budgets
    await budgets.set("agent:worker", Budget(max_bu=0))
    job = await work(node)
    async with node.worker.running():
        while budgets.next_check_ms is not None or not await budgets.standings():
            await node.rhythm.times.until(node.rhythm.context.beat().ends_ms)
        assert (await node.jobs.find(job)).state == "pending"
        await budgets.set("agent:worker", Budget(max_bu=1_000))
        (found,) = await ended(node, job)
    assert found.state == "succeeded"
    (end,) = await ends_of(node, job)
    assert end.outcome == "done"  # its agent has a budget, so it is metered


async def test_what_was_used_is_recorded_when_the_worker_stops(node: MeshNode) -> None:
    desk = ControlledHandler(node)
    job = await work(node, budget={"max_bu": 1_000})
    async with node.worker.running(grace=0.01):
        await desk.next()
    await asyncio.wait_for(desk.next_stopped(), PATIENCE_S)
    (end,) = await ends_of(node, job)
    assert (end.outcome, end.note) == ("deferred", "it was stopped")
    assert (await node.jobs.find(job)).state == "pending"
