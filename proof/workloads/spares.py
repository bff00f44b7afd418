"""Nodes that let ticks pass, as in a large mesh, and observations of what others think of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh import MeshError

_SPARE_TICKS: Final = 4


async def run(context: WorkloadContext) -> None:
    """Announce that heartbeats may take longer, and note the state of each node from time to time."""
    tick_s, spare_s = context.pace.tick_s, _SPARE_TICKS * context.pace.tick_s
    # A simulated node has no replica, by which it would decide this itself.
    context.mesh._heartbeat._pace.spare_ms = round(spare_s * 1_000)  # noqa: SLF001
    context.recorder.note("spares.pace", tick_s=tick_s, spare_s=spare_s)
    while not context.over.is_set():
        with suppress(MeshError):
            since = context.recorder.now()
            states = {node.node_id: node.state for node in await context.mesh.nodes.all()}
            context.recorder.note("spares.seen", since=since, states=states)
        await context.rest(tick_s * (0.5 + context.rng.random()))


SPARES: Final = FunctionWorkload("spares", run)
