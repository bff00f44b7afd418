"""Locks that all want: taken, used inside and outside of the database, renewed, released, outstayed, left."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from proof import tables
from proof.scene import Part, Scene
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


async def act(scene: Scene) -> None:
    """Have some agents that all want locks."""
    async with asyncio.TaskGroup() as agents:
        for _ in range(_AGENTS):
            agents.create_task(_roam(scene))


async def _roam(scene: Scene) -> None:
    """Take a lock and do something with it, in one of the ways in which people do."""
    ways = {_use: 6, _keep: 3, _outstay: 1, _leave: 1, _look: 2}
    async for _ in scene.turns():
        (way,) = scene.chance.choices(tuple(ways), tuple(ways.values()))
        await way(scene)


# --- the ways ----------------------------------------------------------------------------------------


async def _use(scene: Scene) -> None:
    lock = await _taken(scene)
    if lock is not None:
        await _work(scene, lock)
        if scene.chance.random() < 0.5:
            await _renew(scene, lock)
            await _work(scene, lock)
        await _release(scene, lock)


async def _keep(scene: Scene) -> None:
    """Have it renewed for as long as the work lasts, and released after that."""
    lock = await _taken(scene)
    if lock is None:
        return

    async def renew(lock: Lock) -> None:
        fault = await _renew(scene, lock)
        if fault is not None:
            raise fault

    with scene.recorder.deed("lock.keep", **_held(lock)) as keeping:
        async with scene.mesh.locks.keep(lock, renew):
            try:
                for _ in range(_USES):
                    await scene.rest(lock.ttl * scene.chance.random() / 2)
                    await _work(scene, lock)
            finally:
                scene.recorder.note("lock.kept", **_held(lock))
        keeping.ok()


async def _outstay(scene: Scene) -> None:
    """Go on as if no time had passed."""
    lock = await _taken(scene)
    if lock is not None:
        await scene.rest(lock.ttl * (0.8 + 0.4 * scene.chance.random()))
        await _work(scene, lock)
        await _renew(scene, lock)
        await _release(scene, lock)
        await _put(scene, lock)


async def _leave(scene: Scene) -> None:
    """Use it, and leave it to end by itself."""
    lock = await _taken(scene)
    if lock is not None:
        await _work(scene, lock)


async def _look(scene: Scene) -> None:
    """See who holds what."""
    key = scene.chance.choice(CELLS)
    with scene.recorder.deed("lock.look", keys=[key]) as doing:
        holders = await scene.mesh.locks.in_the_way(key)
        doing.ok(tokens=[each.fence_token for each in holders])


# --- what is done to a lock --------------------------------------------------------------------------


def _held(lock: Lock) -> dict[str, Any]:
    return {"keys": lock.keys, "token": lock.fence_token, "ttl": lock.ttl}


async def _taken(scene: Scene) -> Lock | None:
    """A lock, if it is ours as far as we know."""
    keys, ttl = scene.chance.choice(_WANTED), scene.pace.ttl_s
    wait = ttl * scene.chance.choice(_WAITS)
    with scene.recorder.deed("lock.take", keys=keys, ttl=ttl, wait=wait) as doing:
        lock = await scene.mesh.locks.acquire(keys, agent=scene.who, ttl=ttl, wait=wait)
        doing.ok(token=lock.fence_token)
        return lock
    return None


async def _renew(scene: Scene, lock: Lock) -> MeshError | None:
    """Hold it for longer; what kept us from it."""
    fault: MeshError | None = None
    with scene.recorder.deed("lock.renew", **_held(lock)) as doing:
        try:
            await scene.mesh.locks.renew(lock)
        except MeshError as error:
            fault = error
            raise
        doing.ok()
    return fault


async def _release(scene: Scene, lock: Lock) -> None:
    with scene.recorder.deed("lock.release", **_held(lock)) as doing:
        was_held = await scene.mesh.locks.release(lock)
        doing.ok() if was_held else doing.no(was_held=False)


async def _work(scene: Scene, lock: Lock) -> None:
    """Write something under it, here and there."""
    for _ in range(scene.chance.randint(1, _USES)):
        await scene.rest(lock.ttl * scene.chance.random() / 8)
        await scene.chance.choice((_put, _write))(scene, lock)


async def _put(scene: Scene, lock: Lock) -> None:
    """Write outside of the database."""
    cell = _cell(scene, lock)
    with scene.recorder.deed("lock.put", **_held(lock), cell=cell) as doing:
        doing.ok(taken=scene.outside.write(scene.recorder, cell, lock.fence_token))


async def _write(scene: Scene, lock: Lock) -> None:
    """Write a row of the database, if the lock is held at that moment."""
    cell = _cell(scene, lock)
    with scene.recorder.deed("lock.write", **_held(lock), cell=cell) as doing:
        row = Statement(
            f"INSERT INTO {tables.GUARDED} (cell, token, player) VALUES (?, ?, ?)",
            (cell, lock.fence_token, scene.who),
        )
        await scene.mesh.store.write(Script(scene.mesh.locks.guard(lock), row))
        doing.ok()


def _cell(scene: Scene, lock: Lock) -> str:
    return scene.chance.choice([cell for cell in CELLS if any(overlap(key, cell) for key in lock.keys)])


LOCKS: Final = Part("locks", act)
