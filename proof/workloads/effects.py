"""Effects that are wanted once: tried under one key until it is known what became of them.

They are had by number, one after the other, so that a later life finds in the database how far it came, and
goes on under the same keys.
"""

from __future__ import annotations

import asyncio
from typing import Final

from proof import tables
from proof.scene import Part, Scene
from proof.workloads.numbered import key_of
from vox_mesh import Script, Statement, guard
from vox_mesh.errors import Refused

PARTS: Final = (1, 2)
_REFUSED_EVERY: Final = 7
_SPOOLED_EVERY: Final = 3


async def act(scene: Scene) -> None:
    """Have one effect after the other."""
    number = await _come_to(scene) + 1
    async for _ in scene.turns():
        if await _have(scene, number):
            number += 1


async def drain(scene: Scene) -> None:
    """Bring the last one to its end, whatever is known of it, and wait for what has waited."""
    number = await _come_to(scene) + 1
    is_known = await _have(scene, number)
    while not is_known:
        await asyncio.sleep(scene.pace.rest_s)
        is_known = await _have(scene, number)
    await scene.mesh.store.drained()


async def _come_to(scene: Scene) -> int:
    """The number of the last effect that this player has had, in all its lives.

    Whoever has written anything is known as the newest life, and no earlier one has an effect any more.
    """
    while True:
        with scene.recorder.deed("effect.last") as doing:
            await scene.mesh.store.write(Script(Statement("SELECT 1")))
            rows = await scene.mesh.store.read(
                f"SELECT coalesce(max(number), 0) FROM {tables.EFFECTS} WHERE player = ?",
                (scene.who,),
                fresh=True,
            )
            doing.ok(number=rows.value)
            return int(rows.value)
        await asyncio.sleep(scene.pace.rest_s)


async def _have(scene: Scene, number: int) -> bool:
    """Try it once; whether it is known by now what became of it."""
    script = _script(scene.who, number)
    with scene.recorder.deed("effect", key=script.key, number=number) as doing:
        try:
            outcome = await scene.mesh.store.write(script)
        except Refused as refused:
            doing.no(error=refused.reason)
            return True
        doing.ok(repeated=outcome.repeated, spooled=outcome.spooled)
        if not script.appendable:
            # It is in the database, so that no later life comes here again.
            scene.outside.effect(scene.recorder, script.key)
    return doing.is_ok


def _script(who: str, number: int) -> Script:
    """The same for a number in each life."""
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


EFFECTS: Final = Part("effects", act, drain)
