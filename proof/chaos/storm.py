"""A storm of writers: one node writes as much as it can, and every write can be counted afterwards."""

from __future__ import annotations

import asyncio
from typing import Final

from proof.workload import WorkloadContext
from vox_mesh import Script, Statement
from vox_mesh.errors import MeshError, OutcomeUnknown

TABLE: Final = "proof_storm"
DDL: Final = f"CREATE TABLE IF NOT EXISTS {TABLE} (name TEXT PRIMARY KEY, n INTEGER NOT NULL)"

_WRITERS: Final = 24
_REST_S: Final = 0.005
_AFTER_FAULT_S: Final = 0.1
_COUNT: Final = f"INSERT INTO {TABLE} VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1"


async def storm(context: WorkloadContext, number: int, seconds: float) -> None:
    """Run many writers for this long, each with its own row that counts its writes."""
    names = (f"{context.who}.{context.recorder.incarnation}.{number}.{writer}" for writer in range(_WRITERS))
    await asyncio.gather(*(_count(context, name, seconds) for name in names))


async def _count(context: WorkloadContext, name: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    done = unknown = 0
    while loop.time() < until:
        try:
            await context.mesh.store.write(Script(Statement(_COUNT, (name,))))
            done += 1
            await asyncio.sleep(_REST_S)
        except OutcomeUnknown:
            unknown += 1
        except MeshError:
            await asyncio.sleep(_AFTER_FAULT_S)
    context.recorder.note("storm.wrote", name=name, done=done, unknown=unknown)
