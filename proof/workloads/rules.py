"""Rules: ops that nodes log, and a job for each of them."""

from __future__ import annotations

from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from proof.workloads.numbered import Numbers, key_of
from vox_mesh import OpKind
from vox_mesh.model.jobs.records import JobState

EVENT: Final = OpKind("rules.event", appendable=True)
NAME: Final = "rules-event"

_KIND: Final = "rules.job"
"""No worker has a handler for it."""
_LOGS: Final = 0.3
_EVENT: Final = "event"


async def run(context: WorkloadContext) -> None:
    """Add the rule, and log ops."""
    context.mesh.oplog.register(EVENT)
    with context.recorder.operation("rule.add") as record:
        await context.mesh.rules.add(NAME, EVENT.name, {"kind": _KIND})
        record.ok()
    numbers = Numbers(context)
    async for _ in context.rounds():
        if context.rng.random() < _LOGS:
            number = numbers.next()
            with context.recorder.operation("rule.event", number=number) as record:
                key = key_of(context.who, _EVENT, number)
                outcome = await context.mesh.oplog.append(EVENT.name, {"number": number}, key=key)
                record.ok(spooled=outcome.spooled)


async def drain(context: WorkloadContext) -> None:
    """Let the rule catch up with the log, and end its jobs."""
    await settling.until(context, partial(_has_caught_up, context))
    await settling.until(context, partial(_are_all_ended, context))


async def _has_caught_up(context: WorkloadContext) -> bool:
    rules, events = await context.mesh.rules.listed(), await context.mesh.oplog.tail(1, kind=EVENT.name)
    if not rules or not events:
        return True
    return events[-1].op_id == rules[0].last_op or events[-1].id <= await _added_at(context)


async def _added_at(context: WorkloadContext) -> int:
    """Return the position of the op that added the rule."""
    return min(entry.id for entry in await context.mesh.oplog.tail(100, kind="AddRule") if entry.accepted)


async def _are_all_ended(context: WorkloadContext) -> bool:
    waiting = await context.mesh.jobs.queries.listed(state=JobState.PENDING, kind=_KIND, limit=100)
    if waiting:
        await context.mesh.jobs.abort(*waiting)
    return not waiting


RULES: Final = FunctionWorkload("rules", run, drain)
