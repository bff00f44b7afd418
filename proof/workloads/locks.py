"""Locks under contention: acquired, used inside and outside of the database, renewed, released, overstayed,
left."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from proof import tables
from proof.workload import FunctionWorkload, WorkloadContext
from vox_mesh import MeshError, Script, Statement
from vox_mesh.model.locks.patterns import overlap
from vox_mesh.model.locks.records import Lock

CELLS: Final = ("task:deploy", "file:src/app.py", "file:src/lib/core.py")
"""What the locks cover. The overlap of any two locks is one of these cells."""

_WANTED: Final = (
    *(("task:deploy",), ("file:src/app.py",), ("file:src/lib/core.py",)),
    *(("file:src/**",), ("file:src/lib/*.py",), ("task:deploy", "file:src/app.py")),
)
_WAITS: Final = (0.0, 0.0, 0.5, 2.0)
"""In times of a lock's TTL."""
_USES: Final = 3


_AGENTS: Final = 2
"""Of each node: agents of one node hand locks to each other."""


async def run(context: WorkloadContext) -> None:
    """Run some agents that contend for locks."""
    async with asyncio.TaskGroup() as agents:
        for _ in range(_AGENTS):
            agents.create_task(_roam(context))


async def _roam(context: WorkloadContext) -> None:
    """Acquire a lock and use it in a random way."""
    ways = {_use: 6, _keep: 3, _outstay: 1, _leave: 1, _look: 2}
    async for _ in context.rounds():
        (way,) = context.rng.choices(tuple(ways), tuple(ways.values()))
        await way(context)


# --- ways to use a lock ------------------------------------------------------------------------------


async def _use(context: WorkloadContext) -> None:
    lock = await _taken(context)
    if lock is not None:
        await _work(context, lock)
        if context.rng.random() < 0.5:
            await _renew(context, lock)
            await _work(context, lock)
        await _release(context, lock)


async def _keep(context: WorkloadContext) -> None:
    """Hold it with `hold`: renewed while the work lasts, then released."""
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
    """Continue after its TTL as if no time had passed."""
    lock = await _taken(context)
    if lock is not None:
        await context.rest(lock.ttl * (0.8 + 0.4 * context.rng.random()))
        await _work(context, lock)
        await _renew(context, lock)
        await _release(context, lock)
        await _put(context, lock)


async def _leave(context: WorkloadContext) -> None:
    """Use it, and let it expire."""
    lock = await _taken(context)
    if lock is not None:
        await _work(context, lock)


async def _look(context: WorkloadContext) -> None:
    """List the holders."""
    key = context.rng.choice(CELLS)
    with context.recorder.operation("lock.look", keys=[key]) as record:
        holders = await context.mesh.locks.in_the_way(key)
        record.ok(tokens=[each.fence_token for each in holders])


# --- operations on a lock ----------------------------------------------------------------------------


def _held(lock: Lock) -> dict[str, Any]:
    return {"keys": lock.keys, "token": lock.fence_token, "ttl": lock.ttl}


async def _taken(context: WorkloadContext) -> Lock | None:
    """Acquire a lock; yield it if it is known to be held."""
    keys, ttl = context.rng.choice(_WANTED), context.pace.ttl_s
    wait = ttl * context.rng.choice(_WAITS)
    with context.recorder.operation("lock.take", keys=keys, ttl=ttl, wait=wait) as record:
        lock = await context.mesh.locks.acquire(keys, agent=context.who, ttl=ttl, wait=wait)
        record.ok(token=lock.fence_token)
        return lock
    return None


async def _renew(context: WorkloadContext, lock: Lock) -> MeshError | None:
    """Renew it; return the error, if any."""
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
    """Write under it, inside and outside of the database."""
    for _ in range(context.rng.randint(1, _USES)):
        await context.rest(lock.ttl * context.rng.random() / 8)
        await context.rng.choice((_put, _write))(context, lock)


async def _put(context: WorkloadContext, lock: Lock) -> None:
    """Write outside of the database."""
    cell = _cell(context, lock)
    with context.recorder.operation("lock.put", **_held(lock), cell=cell) as record:
        record.ok(taken=context.outside.write(context.recorder, cell, lock.fence_token))


async def _write(context: WorkloadContext, lock: Lock) -> None:
    """Write a row of the database, guarded by the lock."""
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
