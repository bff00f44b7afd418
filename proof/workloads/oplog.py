"""The op log: entries with dependencies, anchors, and occasional verification."""

from __future__ import annotations

import asyncio
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads.numbered import Numbers, key_of
from vox_mesh import OpKind

NOTE: Final = OpKind("proof.note", appendable=True)
STEP: Final = OpKind("proof.step")

LAST: Final = 2**31
"""The number of the last op of a node, after all faults have healed."""

RECOVERY_S: Final = 10.0
"""Within a TTL and this time every node can append again, once all faults have healed."""

_OP: Final = "op"
_APPENDS: Final = 0.6
_DEPENDS: Final = 0.3
_MOST_DEPS: Final = 3
_AWAITS: Final = 0.15
_AHEAD: Final = 3
"""An op may depend on one at most this many numbers ahead, which may never come."""
_ANCHORS: Final = 0.05
_VERIFIES: Final = 0.04
_APART: Final = 20.0
"""Multiples of the duration of a verification: the next one comes no earlier, however long the log is."""


async def run(context: WorkloadContext) -> None:
    """Append, and verify the log."""
    _register(context)
    numbers, known, clock = Numbers(context), set[str](), context.recorder.now
    unverified_until = clock()
    async for _ in context.rounds():
        if context.rng.random() < _APPENDS:
            await _append(context, numbers.next(), known)
        if context.rng.random() < _ANCHORS:
            with context.recorder.operation("log.anchor") as record:
                record.ok(op=(await context.mesh.oplog.anchor()).key)
        if context.rng.random() < _VERIFIES and (began := clock()) >= unverified_until:
            await _verify(context)
            unverified_until = clock() + _APART * (clock() - began)


def _register(context: WorkloadContext) -> None:
    for kind in (NOTE, STEP):
        context.mesh.oplog.register(kind)


async def _append(context: WorkloadContext, number: int, known: set[str]) -> bool:
    """Append an op; it may depend on ops that exist, and on one that may not exist yet."""
    key, rng = key_of(context.who, _OP, number), context.rng
    deps: list[str] = []
    if known and rng.random() < _DEPENDS:
        others = sorted(known - {key})
        deps = rng.sample(others, min(len(others), _MOST_DEPS))
    if rng.random() < _AWAITS:
        deps.append(key_of(rng.choice(context.nodes), _OP, number + rng.randint(1, _AHEAD)))
    kind = STEP if number % 2 else NOTE
    with context.recorder.operation("log.append", key=key, kind=kind.name, number=number) as record:
        outcome = await context.mesh.oplog.append(kind.name, {"number": number}, deps=deps, key=key)
        record.ok(spooled=outcome.spooled)
        if not outcome.spooled:
            known.add(key)
    return record.is_ok


async def _verify(context: WorkloadContext) -> None:
    with context.recorder.operation("log.verify") as record:
        reports = await context.mesh.oplog.verify()
        problems = [f"{each.node_id}/{each.seq}: {each.problem}" for each in reports if each.problem]
        record.ok(chains=len(reports), problems=problems)


async def drain(context: WorkloadContext) -> None:
    """Append once more, and let one node verify the whole log once more."""
    _register(context)  # its process may have started after the others had ended
    until = context.recorder.now() + context.pace.ttl_s + RECOVERY_S
    is_appended = await _append(context, LAST, set())
    while not is_appended and context.recorder.now() < until:
        await asyncio.sleep(context.pace.rest_s)
        is_appended = await _append(context, LAST, set())
    if context.who == context.nodes[0]:
        await _verify(context)


OPLOG: Final = FunctionWorkload("oplog", run, drain)
