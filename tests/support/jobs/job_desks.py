"""Workers in the test's own process, whose work begins and ends as the test has it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import Job
from vox_mesh.node import MeshNode


async def scheduled(node: MeshNode, count: int, kind: str = "work") -> list[Scheduled]:
    """This many jobs."""
    return await node.jobs.schedule_all([Manifest.of(kind=kind, payload=n) for n in range(count)], new=True)


async def ended(node: MeshNode, *jobs: Any) -> list[Job]:
    """Wait until all of these have ended."""
    return [await node.jobs.wait(job, timeout=PATIENCE_S) for job in jobs]


async def idle(node: MeshNode) -> None:
    """Wait until the node's worker has nothing in hand."""
    async with asyncio.timeout(PATIENCE_S):
        while node.worker.running_count:
            await asyncio.wait(node.worker._executor.tasks)


class ControlledHandler:
    """A handler whose work ends when the test says so, and which knows how many it has at a time."""

    def __init__(self, node: MeshNode, kind: str = "work", **options: Any) -> None:
        self.begun = asyncio.Queue[JobContext]()
        self.stopped = asyncio.Queue[JobContext]()
        self.may_end = asyncio.Event()
        self.order: list[Any] = []
        self.in_hand = self.most = 0
        node.worker.handles(kind, **options)(self.handle)

    async def handle(self, context: JobContext) -> None:
        """Work on a job."""
        self.in_hand += 1
        self.most = max(self.most, self.in_hand)
        self.order.append(context.payload)
        self.begun.put_nowait(context)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.stopped.put_nowait(context)
            raise
        finally:
            self.in_hand -= 1

    async def next(self) -> JobContext:
        """The next one that is begun."""
        return await asyncio.wait_for(self.begun.get(), PATIENCE_S)

    async def next_stopped(self) -> JobContext:
        """The next one that is stopped."""
        return await asyncio.wait_for(self.stopped.get(), PATIENCE_S)
