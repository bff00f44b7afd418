"""Metering: what a handler has used, and its share of what its process has."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.jobs.bounded_jobs import (
    ends_of,
    node,
    settings,
    work,
)
from tests.support.jobs.job_desks import ended
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.jobs.worker.metering import Meter, ProcessShares, ProcessUsage
from vox_mesh.node import MeshNode

__all__ = ["node", "settings"]


async def test_the_processor_time_of_an_async_handler_is_that_of_its_steps(node: MeshNode) -> None:
    @node.worker.handles("work")
    async def handle(context: JobContext) -> str:
        burn(0.02)
        other = asyncio.create_task(burn_in_task(0.05))
        await other
        burn(0.02)
        return "done"

    job = await work(node, budget={"max_bu": 1_000})
    async with node.worker.running():
        (found,) = await ended(node, job)
    (end,) = await ends_of(node, job)
    assert found.state == "succeeded"
    assert end.resources.cpu_sec is not None
    assert 0.04 <= end.resources.cpu_sec < 0.08  # without what other tasks do meanwhile
    assert end.resources.mem_gbs is not None
    assert end.cost == pytest.approx(end.bu + 100 * end.resources.cpu_sec)


async def test_a_metered_coroutine_gets_its_values_and_cancellations() -> None:
    async def answer(question: asyncio.Future[int]) -> int:
        try:
            return await question
        except ValueError:
            return -1

    loop, meter = asyncio.get_running_loop(), Meter()
    for give, result in ((lambda it: it.set_result(7), 7), (lambda it: it.set_exception(ValueError()), -1)):
        question: asyncio.Future[int] = loop.create_future()
        loop.call_soon(give, question)
        assert await meter.steps(answer(question)) == result
    waiting = asyncio.create_task(meter.steps(answer(loop.create_future())))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert meter.used.cpu_sec is not None


def test_handlers_of_one_process_share_its_memory_and_transfers_equally() -> None:
    now, usage = [0.0], [ProcessUsage(2_000_000_000, 10.0)]
    shares = ProcessShares(lambda: now[0], lambda: usage[0])
    one = shares.begin()
    now[0] = 1.0
    two = shares.begin()
    now[0], usage[0] = 3.0, ProcessUsage(2_000_000_000, 16.0)
    assert list(shares.end(one)) == pytest.approx([4.0, 3.0])  # alone for 1 s, then half for 2 s
    brief = shares.begin()
    now[0] = 3.1
    gb_s, io_mb = shares.end(brief)
    assert gb_s == pytest.approx(0.1)
    assert io_mb is None  # nothing was read meanwhile
    now[0] = 4.0
    assert list(shares.end(two)) == pytest.approx([2.0 + 0.1 + 1.8, 3.0])


def burn(seconds: float) -> None:
    """Use the processor for this long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def burn_in_task(seconds: float) -> None:
    """Use it in a task of its own."""
    burn(seconds)
