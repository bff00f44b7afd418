"""Cancellation: an aborted job's compensations run, each once and the last one first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.jobs.steps.test_waits import suspended
from tests.support.jobs.job_desks import ended
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.jobs.steps.step_origin import StepOrigin
from vox_mesh.node import MeshNode
from vox_mesh.testing import MeshHarness

NAMES = ["flight", "hotel", "car", "table", "guide"]


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness


async def cleanup_of(node: MeshNode, job_id: str) -> Job:
    """Wait for the job that runs the compensations of another one, until it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = node.store.change_count
            for listed in await node.jobs.queries.listed(limit=100):
                job = await node.jobs.find(listed.job_id)
                origin = StepOrigin.in_core(job.core)
                if origin is not None and origin.cancels and origin.job_id == job_id:
                    return (await ended(node, job))[0]
            await node.store.changed(seen)


class Trip:
    """A saga of five bookings, which waits before, between or after them."""

    def __init__(self, node: MeshNode, waits_before: int) -> None:
        self.done: list[str] = []
        self.undone: list[str] = []
        self._waits_before = waits_before
        self.fails: set[str] = set()
        node.worker.handles("trip")(self.handle)

    async def handle(self, context: JobContext) -> None:
        """Book all of it."""
        for place, name in enumerate(NAMES):
            if place == self._waits_before:
                await context.wait_message()
            await context.on_cancel(self._undo, name, name=f"cancel {name}", retries=1, backoff="1ms")
            await context.step(f"book {name}", self._book, name)
        await context.wait_message()

    async def _book(self, name: str) -> str:
        self.done.append(name)
        return name

    async def _undo(self, name: str) -> None:
        if name in self.fails:
            self.fails.remove(name)
            raise RuntimeError("not now")
        self.undone.append(name)


@pytest.mark.parametrize("waits_before", range(len(NAMES) + 1))
async def test_a_saga_is_undone_from_where_it_was_aborted(kept: MeshNode, waits_before: int) -> None:
    trip = Trip(kept, waits_before)
    trip.fails = {"hotel"}
    job = await kept.jobs.schedule("trip")
    async with kept.worker.running():
        await suspended(kept, job.job_id)
        assert await kept.jobs.abort(job, reason="the customer is ill") == [job.job_id]
        if waits_before:
            assert (await cleanup_of(kept, job.job_id)).state == "succeeded"
    booked = NAMES[:waits_before]
    assert (trip.done, trip.undone) == (booked, booked[::-1])
    aborted = await kept.jobs.find(job)
    assert (aborted.state, aborted.reason) == ("aborted", "the customer is ill")
    await kept.store.synced()
    rebuild = Rebuild(kept.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])


async def test_a_job_that_runs_is_stopped_and_undone(kept: MeshNode) -> None:
    undone: list[Any] = []
    is_running = asyncio.Event()

    @kept.worker.handles("work")
    async def handle(context: JobContext) -> None:
        async def run() -> None:
            is_running.set()
            await asyncio.Event().wait()

        async def undo(what: str) -> None:
            undone.append(what)

        first = await context.step("first", str, "1")
        await context.on_cancel(undo, f"first {first}")
        try:
            await context.step("second", run)
        finally:
            undone.append("finally")

    job = await kept.jobs.schedule("work", lease="1s")
    async with kept.worker.running():
        await is_running.wait()
        await kept.jobs.abort(job)
        assert (await cleanup_of(kept, job.job_id)).state == "succeeded"
    assert undone == ["finally", "finally", "first 1"]


async def test_the_compensations_of_a_job_that_ran_wait_for_its_lease_to_end(harness: MeshHarness) -> None:
    undone: list[int] = []
    is_running = asyncio.Event()
    node = await harness.node()

    async def undo() -> None:
        undone.append(node.clock.now_ms)

    async def run() -> None:
        is_running.set()
        await asyncio.Event().wait()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await context.on_cancel(undo)
        await context.step("run", run)

    job = await node.jobs.schedule("work", lease="60s")
    async with node.worker.running():
        while not is_running.is_set():
            await harness.clock.advance("1s")
        await node.jobs.abort(job)
        while not undone:
            await harness.clock.advance("1s")
        assert (await cleanup_of(node, job.job_id)).state == "succeeded"
    aborted = await node.jobs.find(job)
    assert undone[0] - (aborted.ended_ms or 0) >= 60_000
    assert len(undone) == 1


async def test_the_compensations_go_on_on_another_node_where_one_was_killed(harness: MeshHarness) -> None:
    undone: list[tuple[str, str]] = []
    is_stuck = asyncio.Event()

    def handler(node: str) -> Any:
        async def undo(what: str) -> None:
            if (node, what) == ("first", "b"):
                is_stuck.set()
                await asyncio.Event().wait()
            undone.append((node, what))

        async def handle(context: JobContext) -> None:
            for what in "abc":
                await context.on_cancel(undo, what)
            await context.wait_message()

        return handle

    first = await harness.node("first")
    first.worker.handles("work")(handler("first"))
    job = await first.jobs.schedule("work", lease="60s")
    async with first.worker.running():
        await harness.clock.advance("1s")
        await suspended(first, job.job_id)
        await first.jobs.abort(job)
        while not is_stuck.is_set():
            await harness.clock.advance("1s")
        second = await harness.node("second")
        second.worker.handles("work")(handler("second"))
        await harness.kill("first")
    async with second.worker.running():
        for _ in range(40):
            await harness.clock.advance("5s")
            if len(undone) == 3:
                break
        assert (await cleanup_of(second, job.job_id)).state == "succeeded"
    assert undone == [("first", "c"), ("second", "b"), ("second", "a")]


async def test_the_jobs_that_an_aborted_one_waits_for_are_aborted(kept: MeshNode) -> None:
    @kept.worker.handles("child")
    async def child(context: JobContext) -> None:
        await context.run_job("grandchild")

    @kept.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await context.gather(context.run_job("child"), context.run_job("other"))

    job = await kept.jobs.schedule("work")
    async with kept.worker.running():
        await suspended(kept, job.job_id)
        async with asyncio.timeout(PATIENCE_S):
            async for _ in kept.store.changes():
                if "grandchild" in await kept.jobs.queries.counts():
                    break
        await kept.jobs.abort(job)
        jobs = await kept.jobs.queries.listed(limit=10)
        finished = await ended(kept, *jobs)
    assert {each.state for each in finished} == {"aborted"}
    assert len(finished) == 4


async def test_a_job_that_succeeds_undoes_nothing(kept: MeshNode) -> None:
    undone: list[str] = []

    @kept.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await context.on_cancel(undone.append, "it")

    job = await kept.jobs.schedule("work")
    async with kept.worker.running():
        assert (await ended(kept, job))[0].state == "succeeded"
        await kept.run_once()
    assert undone == []
