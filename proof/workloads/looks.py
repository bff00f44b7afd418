"""Observations of the membership."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh import MeshError


async def run(context: WorkloadContext) -> None:
    """From time to time, note the state of each node."""
    while not context.over.is_set():
        with suppress(MeshError):
            since = context.recorder.now()
            states = {node.node_id: node.state for node in await context.mesh.nodes.all()}
            context.recorder.note("nodes.seen", since=since, states=states)
        await context.rest(context.pace.tick_s * (0.5 + context.rng.random()))


LOOKS: Final = FunctionWorkload("looks", run)
