"""The worker of a node, which several workloads share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from proof.workload import WorkloadContext
from vox_mesh import JobContext
from vox_mesh.errors import MeshError

_AT_A_TIME: Final = 4


async def work(
    context: WorkloadContext, pattern: str, handler: Callable[[JobContext], Awaitable[Any]]
) -> None:
    """Run this node's worker while its process lives, with a handler for these kinds."""
    worker = context.mesh.worker
    if pattern not in worker.kinds:
        worker.handles(pattern, lease=context.pace.ttl_s)(handler)
    while not worker.is_running:
        try:
            await worker.start(concurrency=_AT_A_TIME)
        except MeshError:
            await asyncio.sleep(context.pace.tick_s)
