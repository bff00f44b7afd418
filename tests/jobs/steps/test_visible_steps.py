"""What operators see of steps: metrics of the worker, and how far a job is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest

from tests.jobs.steps.test_waits import suspended
from tests.support.jobs.job_desks import ended, idle
from tests.support.nodes.scraping import metrics_of, scraped
from vox_mesh import JobContext, Question
from vox_mesh.cli.top.details import details
from vox_mesh.errors import StepTimedOut
from vox_mesh.node import MeshNode
from vox_mesh.testing import MeshHarness
from vox_mesh.views.job_steps import StepView, page_of_steps, step_progress, steps_of
from vox_mesh.views.overview import overview

_SOON: Final = timedelta(milliseconds=20)


async def _counted(node: MeshNode) -> dict[tuple[str, ...], float]:
    """Return the counters of steps that are not 0, by kind and state."""
    found = (await scraped(metrics_of(node))).all("vox_job_steps_total")
    assert len(found) == 7 * 3
    return {labels: count for labels, count in found.items() if count}


async def test_a_worker_counts_the_steps_that_it_stores_by_kind_and_state(local: MeshNode) -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("no")
        return len(calls)

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await context.now()
        for _ in range(2):
            await context.step("fetch", flaky, retries=1, backoff=_SOON)
        if context.attempt == 1:
            raise RuntimeError("again")

    assert await _counted(local) == {}
    job = await local.jobs.schedule("work", backoff=_SOON)
    async with local.worker.running():
        await ended(local, job)
    assert await _counted(local) == {("value", "done"): 1, ("call", "failed"): 1, ("call", "done"): 2}


async def test_a_wait_is_counted_once_it_is_stored(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await context.step("fetch", int)
        await context.ask(Question("Go on?"))

    job = await local.jobs.schedule("work")
    async with local.worker.running():
        await suspended(local, job.job_id)
        await idle(local)
    assert await _counted(local) == {("call", "done"): 1, ("ask", "waiting"): 1}


async def test_it_is_seen_how_far_a_suspended_job_is_and_what_it_waits_for(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        await context.step("fetch", int)
        await context.gather(
            context.sleep("1h", name="nap"),
            context.wait_message(thread="t1", msg_type="order", deadline="2d"),
            context.ask(Question("Go on?\x1b[2J")),
        )

    job = await local.jobs.schedule("work")
    async with local.worker.running():
        asleep = await suspended(local, job.job_id)
    seen = await step_progress(local, asleep)
    assert seen is not None
    assert (seen.count, seen.last) == (4, "ask (ask, waiting)")
    nap, message, question = seen.waits_for
    assert (nap[0], nap[1][:10]) == ("nap", "a time at ")
    assert message[0] == "message"
    assert message[1].startswith('a message with {"msg_type":"order","thread":"t1"}, until ')
    assert question == ("ask", "an answer to: Go on?\x1b[2J")
    lines = await details(
        local, next(line for line in (await overview(local)).jobs if line.job_id == job.job_id)
    )
    text = "\n".join(lines)
    assert "\x1b" not in text
    for words in ("an answer to: Go on?", "a time at 20", "last_step"):
        assert words in text


async def test_a_job_without_steps_has_no_progress_in_them(local: MeshNode) -> None:
    scheduled = await local.jobs.schedule("work")
    assert await step_progress(local, await local.jobs.find(scheduled.job_id)) is None


async def _states(node: MeshNode, job_id: str) -> dict[str, str]:
    """Return the states of the steps of a job by name, as all faces show them."""
    return {step.name: step.state for step in await steps_of(node, await node.jobs.find(job_id))}


async def test_a_sleep_that_is_over_is_done(harness: MeshHarness) -> None:
    node = await harness.node()
    is_awake, may_end = asyncio.Event(), asyncio.Event()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await context.sleep("1h")
        await context.step("next", int)
        is_awake.set()
        await may_end.wait()

    job = await node.jobs.schedule("work")
    async with node.worker.running():
        await harness.clock.advance("1s")
        asleep = await suspended(node, job.job_id)
        seen = await step_progress(node, asleep)
        assert (seen and seen.last, await _states(node, job.job_id)) == (
            "sleep (sleep, waiting)",
            {"sleep": "waiting"},
        )
        await harness.clock.advance("1h")
        await is_awake.wait()
        assert await _states(node, job.job_id) == {"sleep": "done", "next": "done"}
        may_end.set()
        await harness.clock.advance("1s")
        (finished,) = await ended(node, job)
    sleep = (await steps_of(node, finished))[0]
    assert (sleep.state, sleep.ended_ms - sleep.began_ms) == ("done", 3_600_000)


async def test_a_wait_that_its_job_did_not_wait_out_is_cancelled(kept: MeshNode) -> None:
    @kept.worker.handles("work")
    async def handle(context: JobContext) -> None:
        with suppress(StepTimedOut):
            await context.gather(
                context.wait_message(thread="t1", name="paid"),
                context.wait_message(thread="t2", name="late", deadline="1ms"),
            )
        await context.sleep("1ms", name="nap")
        await context.sleep("1h", name="long")

    job = await kept.jobs.schedule("work")
    async with kept.worker.running():
        async for found in kept.jobs.watch(job):
            if found.reason == "it sleeps" and (await _states(kept, job.job_id)).get("long"):
                break
        waiting = {"paid": "waiting", "late": "failed", "nap": "done", "long": "waiting"}
        assert await _states(kept, job.job_id) == waiting
        await kept.jobs.abort(job)
    assert await _states(kept, job.job_id) == {**waiting, "paid": "cancelled", "long": "cancelled"}


async def test_a_page_of_steps_reads_their_rows_only(node: MeshNode, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) % 5 == 0:
            raise RuntimeError("no")
        return len(calls)

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        for number in range(10):
            await context.step("one", flaky, retries=1, backoff=_SOON)
            await context.gather(*(context.step(f"of {each}", int) for each in range(number % 3)))

    job = await node.jobs.schedule("work")
    async with node.worker.running():
        (finished,) = await ended(node, job)
    steps = await steps_of(node, finished)
    assert [step.name for step in steps][:4] == ["one", "one#2", "of 0", "one#3"]
    assert sum(step.failures for step in steps) == 2
    read, sizes = node.store.read, list[int]()

    async def counting(*values: Any, **options: Any) -> Any:
        rows = await read(*values, **options)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(node.store, "read", counting)
    found: list[StepView] = []
    while page := await page_of_steps(node, finished, len(found), 4):
        found += page
        assert sum(sizes) < 20, "of more rows than the page has"
        sizes.clear()
    assert found == steps
