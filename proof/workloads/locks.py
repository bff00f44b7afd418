"""Locks that all want: taken, used inside and outside of the database, renewed, released, outstayed, left."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from proof import tables
from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh import MeshError, Script, Statement
from vox_mesh.model.locks.patterns import overlap
from vox_mesh.model.locks.records import Lock

CELLS: Final = ("task:deploy", "file:src/app.py", "file:src/lib/core.py")
"""What the locks are about. Whatever two of them have in common is one of these."""

_WANTED: Final = (
    *(("task:deploy",), ("file:src/app.py",), ("file:src/lib/core.py",)),
    *(("file:src/**",), ("file:src/lib/*.py",), ("task:deploy", "file:src/app.py")),
)
_WAITS: Final = (0.0, 0.0, 0.5, 2.0)
"""In times of a lock."""
_USES: Final = 3


_AGENTS: Final = 2
"""Of each player: those of one node hand locks over to each other."""


async def run(context: WorkloadContext) -> None:
    """Have some agents that all want locks."""
    async with asyncio.TaskGroup() as agents:
        for _ in range(_AGENTS):
            agents.create_task(_roam(context))


async def _roam(context: WorkloadContext) -> None:
    """Take a lock and do something with it, in one of the ways in which people do."""
    ways = {_use: 6, _keep: 3, _outstay: 1, _leave: 1, _look: 2}
    async for _ in context.rounds():
        (way,) = context.rng.choices(tuple(ways), tuple(ways.values()))
        await way(context)


# --- the ways ----------------------------------------------------------------------------------------


async def _use(context: WorkloadContext) -> None:
    lock = await _taken(context)
    if lock is not None:
        await _work(context, lock)
        if context.rng.random() < 0.5:
            await _renew(context, lock)
            await _work(context, lock)
        await _release(context, lock)


async def _keep(context: WorkloadContext) -> None:
    """Have it renewed for as long as the work lasts, and released after that."""
    lock = await _taken(context)
    if lock is None:
        return

    async def renew(lock: Lock) -> None:
        fault = await _renew(context, lock)
        if fault is not None:
            raise fault

    with context.recorder.operation("lock.keep", **_held(lock)) as keeping:
        async with context.mesh.locks.keep(lock, renew):
            try:
                for _ in range(_USES):
                    await context.rest(lock.ttl * context.rng.random() / 2)
                    await _work(context, lock)
            finally:
                context.recorder.note("lock.kept", **_held(lock))
        keeping.ok()


async def _outstay(context: WorkloadContext) -> None:
    """Go on as if no time had passed."""
    lock = await _taken(context)
    if lock is not None:
        await context.rest(lock.ttl * (0.8 + 0.4 * context.rng.random()))
        await _work(context, lock)
        await _renew(context, lock)
        await _release(context, lock)
        await _put(context, lock)


async def _leave(context: WorkloadContext) -> None:
    """Use it, and leave it to end by itself."""
    lock = await _taken(context)
    if lock is not None:
        await _work(context, lock)


async def _look(context: WorkloadContext) -> None:
    """See who holds what."""
    key = context.rng.choice(CELLS)
    with context.recorder.operation("lock.look", keys=[key]) as record:
        holders = await context.mesh.locks.in_the_way(key)
        record.ok(tokens=[each.fence_token for each in holders])


# --- what is done to a lock --------------------------------------------------------------------------


def _held(lock: Lock) -> dict[str, Any]:
    return {"keys": lock.keys, "token": lock.fence_token, "ttl": lock.ttl}


async def _taken(context: WorkloadContext) -> Lock | None:
    """A lock, if it is ours as far as we know."""
    keys, ttl = context.rng.choice(_WANTED), context.pace.ttl_s
    wait = ttl * context.rng.choice(_WAITS)
    with context.recorder.operation("lock.take", keys=keys, ttl=ttl, wait=wait) as record:
        lock = await context.mesh.locks.acquire(keys, agent=context.who, ttl=ttl, wait=wait)
        record.ok(token=lock.fence_token)
        return lock
    return None


async def _renew(context: WorkloadContext, lock: Lock) -> MeshError | None:
    """Hold it for longer; what kept us from it."""
    fault: MeshError | None = None
    with context.recorder.operation("lock.renew", **_held(lock)) as record:
        try:
            await context.mesh.locks.renew(lock)
        except MeshError as error:
            fault = error
            raise
        record.ok()
    return fault


async def _release(context: WorkloadContext, lock: Lock) -> None:
    with context.recorder.operation("lock.release", **_held(lock)) as record:
        was_held = await context.mesh.locks.release(lock)
        record.ok() if was_held else record.no(was_held=False)


async def _work(context: WorkloadContext, lock: Lock) -> None:
    """Write something under it, here and there."""
    for _ in range(context.rng.randint(1, _USES)):
        await context.rest(lock.ttl * context.rng.random() / 8)
        await context.rng.choice((_put, _write))(context, lock)


async def _put(context: WorkloadContext, lock: Lock) -> None:
    """Write outside of the database."""
    cell = _cell(context, lock)
    with context.recorder.operation("lock.put", **_held(lock), cell=cell) as record:
        record.ok(taken=context.outside.write(context.recorder, cell, lock.fence_token))


async def _write(context: WorkloadContext, lock: Lock) -> None:
    """Write a row of the database, if the lock is held at that moment."""
    cell = _cell(context, lock)
    with context.recorder.operation("lock.write", **_held(lock), cell=cell) as record:
        row = Statement(
            f"INSERT INTO {tables.GUARDED} (cell, token, player) VALUES (?, ?, ?)",
            (cell, lock.fence_token, context.who),
        )
        await context.mesh.store.write(Script(context.mesh.locks.guard(lock), row))
        record.ok()


def _cell(context: WorkloadContext, lock: Lock) -> str:
    return context.rng.choice([cell for cell in CELLS if any(overlap(key, cell) for key in lock.keys)])


LOCKS: Final = FunctionWorkload("locks", run)
