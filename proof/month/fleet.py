"""The work of a fleet: each agent does a job, a message and a lock a minute, or a share of that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from vox_mesh import JobContext
from vox_mesh.node import MeshNode

AGENTS: Final = 100
A_DAY: Final = 1_440
"""The jobs of an agent in a day, and as many messages and locks."""

_AT_ONCE: Final = 32
_KIND: Final = "month.work"
_TEXT: Final = "the quick brown fox jumps over the lazy dog; " * 4


async def begin(node: MeshNode) -> None:
    """Start the worker of the node."""

    @node.worker.handles(_KIND)
    async def work(context: JobContext) -> dict[str, object]:
        context.log(f"working on {context.payload}")
        return {"answer": context.payload, "text": _TEXT}

    await node.worker.start(concurrency=_AT_ONCE)


async def do_work(node: MeshNode, first: int, count: int) -> str:
    """Do so much of each, by the agents in turn; return the id of a job."""
    jobs: list[str] = []

    async def job(number: int) -> None:
        scheduled = await node.jobs.schedule(_KIND, {"number": number, "prompt": _TEXT})
        jobs.append(scheduled.job_id)
        await node.jobs.wait(scheduled.job_id, timeout=600)

    async def message(number: int) -> None:
        receiver = f"agent-{(number * 7 + 1) % AGENTS}"
        await node.messages.send(
            receiver, {"number": number, "text": _TEXT}, sender=f"agent-{number % AGENTS}"
        )
        await node.messages.ack(*await node.messages.poll_inbox_from_db(receiver))

    async def lock(number: int) -> None:
        held = await node.locks.acquire(
            f"file:src/{number % 997}.py", agent=f"agent-{number % AGENTS}", wait=60
        )
        await node.locks.release(held)

    for each in (job, message, lock):
        await _some_at_once(each, range(first, first + count))
    return jobs[0]


async def _some_at_once(work: Callable[[int], Awaitable[None]], numbers: range) -> None:
    waiting = iter(numbers)

    async def go_on() -> None:
        for number in waiting:
            await work(number)

    await asyncio.gather(*(go_on() for _ in range(min(_AT_ONCE, len(numbers)))))
