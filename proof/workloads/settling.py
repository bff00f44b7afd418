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


async def end_jobs(context: WorkloadContext, kind: str) -> bool:
    """Abort the pending jobs of a kind. Return whether all of them have ended."""
    queries = context.mesh.jobs.queries
    waiting = await queries.listed(state=JobState.PENDING, kind=kind, limit=100)
    if waiting:
        await context.mesh.jobs.abort(*waiting)
    return not waiting and not await queries.listed(state=JobState.RUNNING, kind=kind, limit=1)
