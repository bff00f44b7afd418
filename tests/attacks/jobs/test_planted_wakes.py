"""Planted wakes: what a suspended job waits for is over only if a node of the mesh has signed that."""

from __future__ import annotations

import asyncio
from typing import Final

from tests.jobs.steps.test_waits import suspended
from tests.support.attacks.hostile_writer import HostileWriter
from vox_mesh import JobContext
from vox_mesh.node import MeshNode

_PATIENCE_S: Final = 30.0
_WAKE: Final = "UPDATE jobs SET waits = 0, not_before_ms = 0 WHERE scope_id = ?1 AND repository_id = ?2"


async def test_a_job_sleeps_on_unless_a_node_has_signed_that_it_is_woken(
    owner: MeshNode, hostile: HostileWriter
) -> None:
    woke: list[int] = []
    attempts = asyncio.Queue[int]()

    @owner.worker.handles("work")
    async def work(context: JobContext) -> None:
        attempts.put_nowait(context.attempt)
        await context.sleep("1d")
        woke.append(context.attempt)

    job = await owner.jobs.schedule("work")
    async with asyncio.timeout(_PATIENCE_S), owner.worker.running():
        asleep = await suspended(owner, job.job_id)
        item = {"job_id": job.job_id, "claim_token": asleep.claim_token, "rows": [1]}
        planted = hostile.plant_entry("stranger", "WakeJobEarly", {"jobs": [item], "at_ms": 1})
        hostile.insert("job_predecessors", job_id=job.job_id, predecessor=planted.op_id, awaited="op")
        assert await attempts.get() == 1
        hostile.run(_WAKE)
        assert await attempts.get() == 2
        await suspended(owner, job.job_id)
        assert woke == []
