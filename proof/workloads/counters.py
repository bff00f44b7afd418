"""Rows that all nodes write, each based on the version it has read: counters and slates.

A counter is only incremented. On a slate, all strategies for conflicts are used. Each write leaves a unique
mark in the row, which identifies the writer.
"""

from __future__ import annotations

from typing import Any, Final

from proof.history import OperationRecord
from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh import Manual, Merge, Merged, MeshError, TakeLeft, TakeRight, Written
from vox_mesh.errors import OutcomeUnknown
from vox_mesh.occ.strategies import Result, Strategy

TABLE: Final = "memories"
KEY: Final = "memory_key"
COLUMNS: Final = ("importance", "content", "agent_id")
"""A number, the mark of the last writer, and another column for a mark."""

NAMED: Final = "counter:"
"""The prefix of the keys of counters."""
_COUNTERS: Final = (f"{NAMED}1", f"{NAMED}2")
_SLATES: Final = ("slate:1", "slate:2")
_STRATEGIES: Final[tuple[Strategy, ...]] = (
    *(TakeRight(), TakeLeft(), Manual()),
    *(Merge(), Merge(below=Manual())),
)

Row = dict[str, Any]


async def run(context: WorkloadContext) -> None:
    """Increment counters and write slates."""
    async for _ in context.rounds():
        way = context.rng.choices((_add, _update, _scribble), (4, 2, 3))[0]
        await way(context, f"{context.who}.{context.recorder.incarnation}.{context.rng.getrandbits(64):x}")


async def _add(context: WorkloadContext, mark: str) -> None:
    """Increment explicitly: read, then write the next value over the version read, or nothing."""
    key = context.rng.choice(_COUNTERS)
    is_read, base = await _read(context, key)
    if is_read:
        await _write(context, key, _more(base, mark), base, TakeRight())


async def _update(context: WorkloadContext, mark: str) -> None:
    """Increment with `update`, which retries."""
    key, over = context.rng.choice(_COUNTERS), list[Any]()

    def more(row: Row | None) -> Row:
        over[:] = _values(row)
        return _more(row, mark)

    with context.recorder.operation("counter.update", key=key, mark=mark) as record:
        await context.mesh.occ.update(TABLE, {KEY: key}, more, patience=context.pace.ttl_s)
        record.ok(over=over)


async def _scribble(context: WorkloadContext, mark: str) -> None:
    """Write a row that others write too, and let a strategy decide."""
    key, strategy = context.rng.choice(_SLATES), context.rng.choice(_STRATEGIES)
    is_read, base = await _read(context, key)
    if not is_read:
        return
    await context.rest(context.pace.rest_s * context.rng.random())
    match strategy:
        case Merge():
            values: Row = {"agent_id": mark}
        case TakeLeft():
            values = {**_more(base, mark), "agent_id": mark}
        case _:
            values = _more(base, mark)
    await _write(context, key, values, base, strategy)


# --- operations on a row ---------------------------------------------------------------------------


def _values(row: Row | None) -> list[Any]:
    """Return the values of a row for the history; a missing row equals an untouched one."""
    return [0, None, None] if row is None else [row[column] for column in COLUMNS]


def _more(row: Row | None, mark: str) -> Row:
    return {"importance": _values(row)[0] + 1, "content": mark}


async def _read(context: WorkloadContext, key: str) -> tuple[bool, Row | None]:
    """Return whether the row could be read, and its values."""
    row: Row | None = None
    with context.recorder.operation("counter.read", key=key) as record:
        row = await context.mesh.occ.read(TABLE, {KEY: key})
        record.ok(row=_values(row))
    return record.is_ok, row


async def _write(
    context: WorkloadContext, key: str, values: Row, base: Row | None, strategy: Strategy
) -> None:
    args = {"key": key, "base": _values(base), "values": values, "strategy": type(strategy).__name__}
    with context.recorder.operation("counter.write", **args) as record:
        _record(record, base, await _send(context, key, values, base, strategy))


async def _send(
    context: WorkloadContext, key: str, values: Row, base: Row | None, strategy: Strategy
) -> Result:
    occ, place = context.mesh.occ, {KEY: key}
    try:
        return await occ.write(TABLE, place, values, base, strategy=strategy, patience=context.pace.ttl_s)
    except OutcomeUnknown as unknown:
        if strategy != TakeRight() or context.rng.random() < 0.5:
            raise
        try:
            return await occ.write(TABLE, place, values, base, script_key=unknown.key)
        except MeshError:  # only of the second attempt
            raise unknown from None


def _record(record: OperationRecord, base: Row | None, result: Result) -> None:
    match result:
        case Written(overwritten=None):
            record.ok(over=_values(base))
        case Written(overwritten=right) | Merged(right=right):
            record.ok(over=_values(right))
        case _:
            record.no(row=_values(result.right))


COUNTERS: Final = FunctionWorkload("counters", run)
