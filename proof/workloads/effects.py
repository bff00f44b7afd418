"""Effects that must happen once: retried under one key until the outcome is known.

Effects are numbered in sequence, so that a later incarnation finds in the database how far the earlier one
came, and continues under the same keys.
"""

from __future__ import annotations

import asyncio
from typing import Final

from proof import tables
from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads.numbered import key_of
from vox_mesh import Script, Statement, guard
from vox_mesh.errors import Refused

PARTS: Final = (1, 2)
_REFUSED_EVERY: Final = 7
_SPOOLED_EVERY: Final = 3


async def run(context: WorkloadContext) -> None:
    """Apply one effect after another."""
    number = await _come_to(context) + 1
    async for _ in context.rounds():
        if await _have(context, number):
            number += 1


async def drain(context: WorkloadContext) -> None:
    """Complete the last effect, even if it was applied already, and wait for the spool."""
    number = await _come_to(context) + 1
    is_known = await _have(context, number)
    while not is_known:
        await asyncio.sleep(context.pace.rest_s)
        is_known = await _have(context, number)
    await context.mesh.store.drained()


async def _come_to(context: WorkloadContext) -> int:
    """Return the number of the last effect of this node, in all incarnations.

    After its first write, an incarnation is registered as the newest, and no earlier one can write any more.
    """
    while True:
        with context.recorder.operation("effect.last") as record:
            await context.mesh.store.write(Script(Statement("SELECT 1")))
            rows = await context.mesh.store.read(
                f"SELECT coalesce(max(number), 0) FROM {tables.EFFECTS} WHERE player = ?",
                (context.who,),
                fresh=True,
            )
            record.ok(number=rows.value)
            return int(rows.value)
        await asyncio.sleep(context.pace.rest_s)


async def _have(context: WorkloadContext, number: int) -> bool:
    """Try it once; return whether its outcome is known."""
    script = _script(context.who, number)
    with context.recorder.operation("effect", key=script.key, number=number) as record:
        try:
            outcome = await context.mesh.store.write(script)
        except Refused as refused:
            record.no(error=refused.reason)
            return True
        record.ok(repeated=outcome.repeated, spooled=outcome.spooled)
        if not script.appendable:
            # It is in the database, so no later incarnation reaches this again.
            context.outside.effect(context.recorder, script.key)
    return record.is_ok


def _script(who: str, number: int) -> Script:
    """Return the script of a number: the same in every incarnation."""
    key = key_of(who, "effect", number)
    statements = [
        Statement(
            f"INSERT INTO {tables.EFFECTS} (effect, part, player, number) VALUES (?, ?, ?, ?)",
            (key, part, who, number),
        )
        for part in PARTS
    ]
    if not number % _REFUSED_EVERY:
        return Script(*statements, guard("false", refusal="never"), key=key)
    return Script(*statements, key=key, appendable=not number % _SPOOLED_EVERY)


EFFECTS: Final = FunctionWorkload("effects", run, drain)
