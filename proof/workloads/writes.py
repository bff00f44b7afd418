"""Small writes, one each round: they measure progress."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from itertools import count
from typing import Final

from proof import tables
from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh import Script, Statement

_LAST: Final = 2**31
"""The number of the last write of an incarnation."""

_WRITE: Final = (
    f"INSERT INTO {tables.WRITES} (player, life, number) VALUES (?, ?, ?) "
    "ON CONFLICT DO UPDATE SET life = excluded.life, number = excluded.number "
    "WHERE (excluded.life, excluded.number) > (life, number)"
)


async def run(context: WorkloadContext) -> None:
    """Write all the time."""
    context.recorder.note("pace", **asdict(context.pace))
    numbers = count(1)
    async for _ in context.rounds():
        await _write(context, next(numbers))


async def drain(context: WorkloadContext) -> None:
    """Write once more."""
    is_written = await _write(context, _LAST)
    while not is_written:
        await asyncio.sleep(context.pace.rest_s)
        is_written = await _write(context, _LAST)


async def _write(context: WorkloadContext, number: int) -> bool:
    with context.recorder.operation("write", number=number) as record:
        await context.mesh.store.write(
            Script(Statement(_WRITE, (context.who, context.recorder.incarnation, number)))
        )
        record.ok()
    return record.is_ok


WRITES: Final = FunctionWorkload("writes", run, drain)
