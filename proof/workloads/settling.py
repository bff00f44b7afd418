"""Waiting for the end of pending work after a run. The environment bounds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from proof.workload import WorkloadContext
from vox_mesh.errors import MeshError
from vox_mesh.model.jobs.records import JobState


async def until(context: WorkloadContext, is_settled: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds, and this node has nothing left in its spool."""
    while True:
        if not context.mesh.store.is_spooling:
            with suppress(MeshError):
                if await is_settled():
                    return
        await asyncio.sleep(context.pace.rest_s)


async def abort_jobs(context: WorkloadContext, kind: str) -> None:
    """Abort the jobs of a kind that wait, until none is left and none runs."""
    jobs = context.mesh.jobs

    async def are_ended() -> bool:
        waiting = await jobs.queries.listed(state=JobState.PENDING, kind=kind, limit=100)
        if waiting:
            await jobs.abort(*waiting)
        return not waiting and not await jobs.queries.listed(state=JobState.RUNNING, kind=kind, limit=1)

    await until(context, are_ended)
