"""Small writes: one each turn, by which progress is measured."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from itertools import count
from typing import Final

from proof import tables
from proof.scene import Part, Scene
from vox_mesh import Script, Statement

_LAST: Final = 2**31
"""The number of what a life writes when all is over."""

_WRITE: Final = (
    f"INSERT INTO {tables.WRITES} (player, life, number) VALUES (?, ?, ?) "
    "ON CONFLICT DO UPDATE SET life = excluded.life, number = excluded.number "
    "WHERE (excluded.life, excluded.number) > (life, number)"
)


async def act(scene: Scene) -> None:
    """Write, all the time."""
    scene.recorder.note("pace", **asdict(scene.pace))
    numbers = count(1)
    async for _ in scene.turns():
        await _write(scene, next(numbers))


async def drain(scene: Scene) -> None:
    """Write once more."""
    is_written = await _write(scene, _LAST)
    while not is_written:
        await asyncio.sleep(scene.pace.rest_s)
        is_written = await _write(scene, _LAST)


async def _write(scene: Scene, number: int) -> bool:
    with scene.recorder.deed("write", number=number) as doing:
        await scene.mesh.store.write(Script(Statement(_WRITE, (scene.who, scene.recorder.life, number))))
        doing.ok()
    return doing.is_ok


WRITES: Final = Part("writes", act, drain)
