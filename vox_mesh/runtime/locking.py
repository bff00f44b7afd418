"""Locking: acquire a lock for a time, or until the current phase or bar of the rhythm ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from vox_mesh.errors import BadValue
from vox_mesh.model.locks.records import Lock
from vox_mesh.runtime.services import MeshServices

if TYPE_CHECKING:
    from vox_mesh.locks.sessions import LastsFor
    from vox_mesh.rhythm.beat_locks import BeatLocks


async def acquire_lock(
    mesh: MeshServices,
    keys: Sequence[str],
    *,
    agent: str | None,
    ttl: float | None,
    until: str | None,
    wait: float,
    shared: bool,
    or_renew: bool = False,
    session: LastsFor | None = None,
) -> Lock:
    """Acquire all of the keys, or none and raise `LockHeld`, after up to `wait` seconds.

    `or_renew`: if the agent holds them already, its lock is renewed. `session`: what it lasts for.
    """
    if until is None:
        acquire = mesh.locks.acquire_or_renew if or_renew else mesh.locks.acquire
        return await acquire(keys, agent=agent, ttl=ttl, wait=wait, shared=shared, session=session)
    if or_renew or session is not None:
        name = "or_renew" if or_renew else "session"
        raise BadValue(f"{name} and until must not both be given", hint=f"pass {name} or until")
    locks = await _beat_locks(mesh, ttl)
    return await locks.acquire(keys, until, agent=agent, wait=wait, shared=shared)


@asynccontextmanager
async def hold_lock(
    mesh: MeshServices,
    keys: Sequence[str],
    *,
    agent: str | None,
    ttl: float | None,
    until: str | None,
    wait: float,
    shared: bool,
) -> AsyncIterator[Lock]:
    """Hold the keys while the body runs; with `until`, at most until the phase or bar ends."""
    if until is None:
        async with mesh.locks.hold(keys, agent=agent, ttl=ttl, wait=wait, shared=shared) as lock:
            yield lock
        return
    locks = await _beat_locks(mesh, ttl)
    async with locks.hold(keys, until, agent=agent, wait=wait, shared=shared) as lock:
        yield lock


async def _beat_locks(mesh: MeshServices, ttl: float | None) -> BeatLocks:
    if ttl is not None:
        raise BadValue("ttl and until must not both be given", hint="pass ttl or until")
    await mesh.rhythm.refresh()
    return mesh.rhythm.beat_locks
