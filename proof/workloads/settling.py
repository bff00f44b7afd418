"""Waiting for the end of pending work after a run. The environment bounds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from proof.workload import WorkloadContext
from vox_mesh.errors import MeshError


async def until(context: WorkloadContext, is_settled: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds, and this node has nothing left in its spool."""
    while True:
        if not context.mesh.store.is_spooling:
            with suppress(MeshError):
                if await is_settled():
                    return
        await asyncio.sleep(context.pace.rest_s)
