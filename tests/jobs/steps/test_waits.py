"""Suspension: a job that sleeps, asks or waits for other jobs has no worker meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.support.jobs.job_desks import ended
from tests.support.messages.messaging import PATIENCE_S
from tests.support.running.lengths import CHILDREN
from vox_mesh import JobContext, Question
from vox_mesh.errors import JobNotSucceeded
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.node import MeshNode
from vox_mesh.testing import MeshHarness

_FAN_IN_S: Final = 240.0


async def done(node: MeshNode, payload: Any = None, **options: Any) -> Job:
    """Have the node's worker do a job to its end."""
    job = await node.jobs.schedule("work", payload, **options)
    async with node.worker.running():
        return (await ended(node, job))[0]


async def suspended(node: MeshNode, job_id: str) -> Job:
    """Wait until a job is suspended."""
    async for job in node.jobs.watch(job_id):
        if job.state == JobState.PENDING and job.attempts:
            return job
    raise AssertionError("the job has ended")


async def test_a_sleeping_job_goes_on_after_a_week_on_another_node(harness: MeshHarness) -> None:
    began: list[Any] = []

    async def handle(context: JobContext) -> str:
        began.append(await context.now())
        await context.sleep("7d")
        return f"slept {(context.now_ms - began[0].timestamp() * 1_000) // 86_400_000:.0f} days"

    first = await harness.node()
    first.worker.handles("work")(handle)
    job = await first.jobs.schedule("work")
    async with first.worker.running():
        await harness.clock.advance("1s")
        asleep = await suspended(first, job.job_id)
    assert (asleep.claimer, asleep.reason) == (None, "it sleeps")
    second = await harness.node("second")
    second.worker.handles("work")(handle)
    await harness.clock.advance("7d")
    async with second.worker.running():
        await harness.clock.advance("1s")
        (finished,) = await ended(second, job)
    assert (finished.failures, finished.attempts) == (0, 2)
    assert await second.jobs.result(job) == "slept 7 days"
    assert began[0] == began[1]


async def test_a_job_has_the_answers_to_all_its_questions(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> list[Any]:
        colour = await context.ask(Question("Which colour?", choices=["red", "blue"]))
        both = await context.gather(context.ask("How many?"), context.ask("For whom?"))
        return [colour, *both]

    job = await local.jobs.schedule("work")
    async with local.worker.running():
        for answer in ("blue", 3, "ada"):
            asked = None
            async for found in local.jobs.watch(job):
                asked = await local.jobs.questions.of(found.job_id)
                if asked is not None and asked.answered_by is None and found.state == JobState.PENDING:
                    break
            await local.jobs.questions.answer(await local.jobs.find(job), answer)
        assert await local.jobs.result(job, timeout=PATIENCE_S) == ["blue", 3, "ada"]


async def test_a_job_waits_for_the_jobs_that_it_has_scheduled(node: MeshNode) -> None:
    runs: list[int] = []

    @node.worker.handles("child")
    async def child(context: JobContext) -> int:
        runs.append(context.payload)
        return int(context.payload) ** 2

    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        first = await context.run_job("child", 2)
        others = await context.gather(*(context.run_job("child", each) for each in range(3, 13)))
        return [first, *others]

    job = await done(node)
    assert (job.state, job.failures) == ("succeeded", 0)
    assert await node.jobs.result(job) == [each**2 for each in range(2, 13)]
    assert sorted(runs) == list(range(2, 13))
    await node.store.synced()
    rebuild = Rebuild(node.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_job_has_the_results_of_all_the_jobs_that_it_has_fanned_out(local: MeshNode) -> None:
    runs: list[int] = []
    may_end = asyncio.Event()

    @local.worker.handles("child")
    async def child(context: JobContext) -> int:
        await may_end.wait()
        runs.append(context.payload)
        return int(context.payload) ** 2

    @local.worker.handles("work")
    async def handle(context: JobContext) -> int:
        children = (context.run_job("child", number) for number in range(CHILDREN))
        squares = await context.gather(*children)
        assert squares == [number**2 for number in range(CHILDREN)]
        return sum(squares)

    job = await local.jobs.schedule("work", lease="5m")
    async with local.worker.running():
        waiting = await suspended(local, job.job_id)
        may_end.set()
        result = await local.jobs.result(job, timeout=_FAN_IN_S)
    assert waiting.reason == f"it waits for {CHILDREN} jobs"
    assert result == sum(number**2 for number in range(CHILDREN))
    assert sorted(runs) == [*range(CHILDREN)]
    finished = await local.jobs.find(job)
    assert (finished.attempts, finished.failures) == (2, 0)


async def test_an_answer_counts_though_the_node_that_asked_is_gone(harness: MeshHarness) -> None:
    seen: list[tuple[str, Any]] = []

    def handler(name: str) -> Any:
        async def handle(context: JobContext) -> Any:
            first = await context.step("first", lambda: name)
            seen.append((first, answer := await context.ask("Which?")))
            return answer

        return handle

    asker = await harness.node("asker")
    asker.worker.handles("work")(handler("asker"))
    job = await asker.jobs.schedule("work")
    async with asker.worker.running():
        await harness.clock.advance("1s")
        await suspended(asker, job.job_id)
        await harness.kill("asker")
    other = await harness.node("other")
    other.worker.handles("work")(handler("other"))
    await harness.clock.advance("1d")
    (asked,) = await other.jobs.questions.open()
    assert asked.document["text"] == "Which?"
    await other.jobs.questions.answer(await other.jobs.find(job), "this")
    async with other.worker.running():
        await harness.clock.advance("1s")
        (finished,) = await ended(other, job)
    assert (finished.state, finished.failures) == ("succeeded", 0)
    assert seen == [("asker", "this")]
    assert await other.jobs.result(job) == "this"


async def test_a_child_that_failed_in_gather_is_scheduled_again_with_the_job(local: MeshNode) -> None:
    runs: list[int] = []

    @local.worker.handles("child")
    async def child(context: JobContext) -> int:
        runs.append(context.payload)
        if context.payload == 1 and runs.count(1) == 1:
            raise OSError("away")
        return int(context.payload)

    @local.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        return await context.gather(*(context.run_job("child", each, max_attempts=1) for each in (1, 2)))

    job = await done(local, max_attempts=2, backoff="20ms")
    assert (job.state, job.failures) == ("succeeded", 1)
    assert await local.jobs.result(job) == [1, 2]
    assert sorted(runs) == [1, 1, 2]


async def test_a_child_that_fails_is_an_error_in_its_parent(local: MeshNode) -> None:
    seen: list[str] = []

    @local.worker.handles("child")
    async def child(context: JobContext) -> None:
        raise ValueError("nothing there")

    @local.worker.handles("work")
    async def handle(context: JobContext) -> str:
        try:
            await context.run_job("child", max_attempts=1)
        except JobNotSucceeded as error:
            seen.append(str(error))
        await context.sleep("1ms")
        return "went on"

    job = await done(local)
    assert await local.jobs.result(job) == "went on"
    assert len(seen) == 2
    assert all("nothing there" in each for each in seen)


async def test_a_handler_that_catches_its_suspension_fails(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        try:
            await context.sleep("1h")
        except BaseException:
            return

    job = await done(local, max_attempts=1)
    assert job.state == "failed"
    assert "its step sleep still waits" in (job.reason or "")
