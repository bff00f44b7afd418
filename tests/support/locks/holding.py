"""Locks as tests see them: what lies in the tables, time that passes at once, and waiting for waiters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from vox_mesh import Mesh, MeshError, Script, Settings, Statement
from vox_mesh.errors import LockHeld
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode

PATIENCE_S: Final = 20.0
LONG_AGO: Final = "2000-01-01T00:00:00.000Z"
HOLDS: Final = ("distributed_locks", "lock_shares")
_EXPIRE: Final = (
    "UPDATE {} SET expires_at = ? "
    "WHERE scope_id = ? AND repository_id = ? AND lock_key = ? AND fence_token = ?"
)


async def rows_of(mesh: Mesh, table: str) -> list[dict[str, Any]]:
    """What one of the tables of locks holds of this mesh, whatever its age."""
    sql = f"SELECT * FROM {table} WHERE scope_id = ? AND repository_id = ? ORDER BY lock_key"
    return [row.as_dict() for row in await mesh.store.read(sql, mesh.store.mesh_id, fresh=True)]


async def keys_in(mesh: Mesh, table: str) -> list[str]:
    """The keys in one of the tables, each as often as it occurs."""
    return [row["lock_key"] for row in await rows_of(mesh, table)]


async def expire(mesh: Mesh, *locks: Lock) -> None:
    """Have these holds be over since long ago, by the database's clock."""
    for lock in locks:
        for key in lock.keys:
            values = (LONG_AGO, *mesh.store.mesh_id, key, lock.fence_token)
            await mesh.store.write(Script(*(Statement(_EXPIRE.format(table), values) for table in HOLDS)))


async def expire_all(mesh: Mesh) -> None:
    """Have every hold be over since long ago."""
    sql = "UPDATE {} SET expires_at = ? WHERE scope_id = ? AND repository_id = ?"
    values = (LONG_AGO, *mesh.store.mesh_id)
    await mesh.store.write(Script(*(Statement(sql.format(table), values) for table in HOLDS)))


async def held_keys(mesh: Mesh) -> list[str]:
    """The keys that are held now, each as often as held."""
    return [holder.lock_key for holder in await mesh.locks.holders()]


async def put_off(mesh: Mesh, request_id: str) -> None:
    """Have a waiter be taken for dead."""
    sql = (
        "UPDATE lock_waiters SET alive_until = ? WHERE scope_id = ? AND repository_id = ? AND request_id = ?"
    )
    await mesh.store.write(Script(Statement(sql, (LONG_AGO, *mesh.store.mesh_id, request_id))))


async def settled(mesh: Mesh) -> None:
    """Wait until all that was given up is taken back."""
    async with asyncio.timeout(PATIENCE_S):
        while leaving := mesh.locks._acquirer._background.running:
            await asyncio.wait(leaving)


async def until_waiting(mesh: Mesh, *keys: str) -> None:
    """Wait until exactly these keys are waited for, each as often as named."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = mesh.store.change_count
            if await keys_in(mesh, "lock_waiters") == sorted(keys):
                return
            await mesh.store.changed(seen)


async def until_renewed(lock: Lock) -> None:
    """Wait for a lock's next renewal, of which there is no event."""
    before = lock.expires_at
    async with asyncio.timeout(PATIENCE_S):
        while lock.expires_at == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def refused(mesh: Mesh, keys: str | list[str], **how: Any) -> LockHeld:
    """The refusal that a request meets with; it must be refused."""
    try:
        lock = await mesh.locks.acquire(keys, **how)
    except LockHeld as held:
        return held
    raise AssertionError(f"{keys} was granted: {lock}")


async def is_free(mesh: Mesh, keys: str | list[str], *, shared: bool = False) -> bool:
    """Whether a request would be granted now."""
    try:
        lock = await mesh.locks.acquire(keys, agent="probe", shared=shared)
    except LockHeld:
        return False
    await mesh.locks.release(lock)
    return True


async def is_held(mesh: Mesh, lock: Lock) -> bool:
    """Whether the database lets a write go on under this lock."""
    try:
        await mesh.store.write(Script(mesh.locks.guard(lock)))
    except MeshError:
        return False
    return True


@asynccontextmanager
async def nodes(settings: Settings, count: int) -> AsyncIterator[list[MeshNode]]:
    """Several nodes in one folder, which tick only when a test asks them to."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Mesh.open(settings)) for _ in range(count)]
