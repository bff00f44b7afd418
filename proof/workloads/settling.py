"""Waiting, when all is over, until something has come to its end. The stage sees to it that this ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from proof.workload import WorkloadContext
from vox_mesh.errors import MeshError


async def until(context: WorkloadContext, is_settled: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes, and nothing of this node waits to be written."""
    while True:
        if not context.mesh.store.is_spooling:
            with suppress(MeshError):
                if await is_settled():
                    return
        await asyncio.sleep(context.pace.rest_s)
