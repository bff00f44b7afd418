"""Durable steps: each runs once per job, and every later attempt gets its stored result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from tests.support.jobs.job_desks import ended
from vox_mesh import JobContext
from vox_mesh.errors import StepFailed
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.jobs.steps.step_row import MAX_INLINE
from vox_mesh.node import MeshNode

_SOON: Final = timedelta(milliseconds=20)


async def done(node: MeshNode, payload: Any = None, **options: Any) -> Job:
    """Have the node's worker do a job to its end."""
    job = await node.jobs.schedule("work", payload, backoff=_SOON, **options)
    async with node.worker.running():
        return (await ended(node, job))[0]


@dataclass
class Point:
    x: int
    y: int


class Plan(BaseModel):
    title: str
    points: list[Point]


# --- results -----------------------------------------------------------------------------------------


async def test_a_step_runs_once_and_later_attempts_get_its_stored_result(node: MeshNode) -> None:
    calls: list[int] = []
    seen: list[Any] = []

    async def fetch(number: int) -> dict[str, int]:
        calls.append(number)
        return {"doubled": number * 2}

    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        seen.append([await context.step("fetch", fetch, each) for each in (1, 2, 3)])
        if context.attempt < 3:
            raise RuntimeError("again")
        return seen[-1]

    job = await done(node)
    assert (job.state, job.attempts) == ("succeeded", 3)
    assert calls == [1, 2, 3]
    assert seen == [[{"doubled": 2}, {"doubled": 4}, {"doubled": 6}]] * 3


async def test_typed_results_are_of_their_type_in_every_attempt(local: MeshNode) -> None:
    seen: list[Any] = []

    def plan() -> Plan:
        return Plan(title="trip", points=[Point(1, 2)])

    async def point(x: int) -> Point:
        return Point(x, -x)

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        seen.append((await context.step("plan", plan), await context.step("point", point, 4)))
        if context.attempt == 1:
            raise RuntimeError("again")

    assert (await done(local)).state == "succeeded"
    assert seen == [(Plan(title="trip", points=[Point(1, 2)]), Point(4, -4))] * 2


async def test_a_result_whose_type_is_not_known_is_refused_before_it_is_stored(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await context.step("point", lambda: Point(1, 2))

    job = await done(local, max_attempts=1)
    assert job.state == "failed"
    assert "annotate what the function returns" in (job.reason or "")
    assert await local.jobs.steps.stored(job.job_id) == []


async def test_a_large_result_is_an_artifact(node: MeshNode) -> None:
    large = "x" * (3 * MAX_INLINE)
    seen: list[bool] = []

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        seen.append(await context.step("large", lambda: large) == large)
        if context.attempt == 1:
            raise RuntimeError("again")

    job = await done(node)
    (row,) = await node.jobs.steps.verified(job.job_id)
    assert seen == [True, True]
    assert row.document["size"] > MAX_INLINE > len(row.value)


async def test_a_handler_in_a_thread_has_the_same_steps(local: MeshNode) -> None:
    calls: list[int] = []

    @local.worker.handles("work")
    def handle(context: JobContext) -> int:
        context.run(context.step("note", calls.append, 1))
        context.run(context.sleep("20ms"))
        return int(context.run(context.step("add", lambda: context.payload + 1)))

    job = await done(local, 41)
    assert (job.state, job.failures, job.attempts) == ("succeeded", 0, 2)
    assert await local.jobs.result(job) == 42
    assert calls == [1]


# --- failures ----------------------------------------------------------------------------------------


async def test_a_step_is_retried_and_its_failures_are_stored(local: MeshNode) -> None:
    calls: list[int] = []

    async def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("away")
        return "here"

    @local.worker.handles("work")
    async def handle(context: JobContext) -> str:
        return str(await context.step("flaky", flaky, retries=2, backoff=0.001))

    job = await done(local)
    rows = await local.jobs.steps.verified(job.job_id)
    assert (job.attempts, job.failures, len(calls)) == (1, 0, 3)
    assert [(row.place, row.state) for row in rows] == [(1, "failed"), (1, "failed"), (1, "done")]
    assert rows[1].document["error"] == "OSError: away"


async def test_a_caught_failure_is_the_same_in_later_attempts(local: MeshNode) -> None:
    seen: list[str] = []
    calls: list[int] = []

    async def broken() -> None:
        calls.append(1)
        raise ValueError("no such page")

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        try:
            await context.step("broken", broken)
        except StepFailed as error:
            seen.append(str(error))
        await context.step("go on", lambda: None)
        if context.attempt == 1:
            raise RuntimeError("again")

    assert (await done(local)).state == "succeeded"
    assert calls == [1]
    assert seen == ["step broken failed: ValueError: no such page"] * 2


async def test_a_failed_step_is_tried_again_with_its_job(local: MeshNode) -> None:
    calls: list[int] = []

    async def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("away")
        return len(calls)

    @local.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        return await context.step("flaky", flaky)

    job = await done(local)
    assert (job.state, job.failures) == ("succeeded", 1)
    assert await local.jobs.result(job) == 2


async def test_steps_that_failed_in_gather_are_tried_again_with_their_job(node: MeshNode) -> None:
    calls: list[str] = []

    async def flaky(name: str) -> str:
        calls.append(name)
        if calls.count(name) == 1:
            raise OSError("away")
        return name

    async def steady() -> str:
        calls.append("steady")
        await asyncio.sleep(0)
        return "steady"

    @node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        first = await context.step("first", lambda: 1)
        flaky_steps = [context.step(name, flaky, name) for name in ("one", "two")]
        return [first, *await context.gather(*flaky_steps, context.step("steady", steady))]

    job = await done(node, max_attempts=2)
    assert (job.state, job.failures) == ("succeeded", 1)
    assert await node.jobs.result(job) == [1, "one", "two", "steady"]
    assert sorted(calls) == ["one", "one", "steady", "two", "two"]
    rows = await node.jobs.steps.verified(job.job_id)
    assert rows == await node.jobs.steps.stored(job.job_id)
    assert {row.place: row.state for row in rows} == dict.fromkeys((1, 2, 3, 4), "done")


async def test_failures_in_gather_that_are_caught_are_the_same_in_later_attempts(local: MeshNode) -> None:
    calls: list[str] = []
    seen: list[str] = []

    async def broken(name: str) -> None:
        calls.append(name)
        raise ValueError(name)

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        try:
            await context.gather(context.step("one", broken, "one"), context.step("two", broken, "two"))
        except StepFailed as error:
            seen.append(str(error))
        await context.step("go on", lambda: None)
        if context.attempt == 1:
            raise RuntimeError("again")

    assert (await done(local)).state == "succeeded"
    assert sorted(calls) == ["one", "two"]
    assert seen == ["step one failed: ValueError: one"] * 2


async def test_a_step_that_takes_too_long_has_failed(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        await context.step("hang", asyncio.Event().wait, timeout="10ms")

    job = await done(local, max_attempts=1)
    assert job.state == "failed"
    assert "step hang failed: TimeoutError" in (job.reason or "")


# --- order -------------------------------------------------------------------------------------------


async def test_code_that_reorders_stored_steps_fails_and_names_them(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        for name in ("first", "second") if context.attempt == 1 else ("second", "first"):
            await context.step(name, lambda: None)
        raise RuntimeError("again")

    job = await done(local, max_attempts=2)
    assert "step 1 of the job is stored as first" in (job.reason or "")
    assert "calls second" in (job.reason or "")


async def test_code_that_skips_a_stored_step_fails_and_names_it(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        if context.attempt == 1:
            await context.step("only once", lambda: None)
            raise RuntimeError("again")

    job = await done(local, max_attempts=2)
    assert job.state == "failed"
    assert "without its stored step only once" in (job.reason or "")


async def test_a_version_tells_jobs_that_were_there_before_a_change(local: MeshNode) -> None:
    seen: list[tuple[str, int]] = []

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        if context.payload == "old" and context.attempt == 1:  # the code before the change
            await context.step("plan", lambda: None)
        else:
            seen.append((context.payload, await context.version("faster", 2)))
            await context.step("plan", lambda: None)
        if context.attempt == 1:
            raise RuntimeError("again")

    for payload in ("old", "new"):
        assert (await done(local, payload)).state == "succeeded"
    assert seen == [("old", 1), ("new", 2), ("new", 2)]


async def test_recorded_values_are_the_same_in_every_attempt(local: MeshNode) -> None:
    seen: list[Any] = []

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        seen.append((await context.now(), await context.random()))
        if context.attempt == 1:
            raise RuntimeError("again")

    assert (await done(local)).state == "succeeded"
    assert seen[0] == seen[1]
    assert 0 <= seen[0][1] < 1
