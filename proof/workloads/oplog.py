"""The op log: entries that depend on others, anchors, and a look now and then at whether it is whole."""

from __future__ import annotations

import asyncio
from typing import Final

from proof.scene import Part, Scene
from proof.workloads.numbered import Numbers, key_of
from vox_mesh import OpKind

NOTE: Final = OpKind("proof.note", appendable=True)
STEP: Final = OpKind("proof.step")

LAST: Final = 2**31
"""The number of what a player appends when all is over."""

RECOVERY_S: Final = 10.0
"""So long after a time to live everybody can append again, when all is well."""

_OP: Final = "op"
_APPENDS: Final = 0.6
_DEPENDS: Final = 0.3
_MOST_DEPS: Final = 3
_AWAITS: Final = 0.15
_AHEAD: Final = 3
"""An op may depend on one that comes so much later, if it comes at all."""
_ANCHORS: Final = 0.05
_VERIFIES: Final = 0.04
_APART: Final = 20.0
"""Times as long as it took: the whole log is not looked at before that, however long it has become."""


async def act(scene: Scene) -> None:
    """Append, and verify what is there."""
    _register(scene)
    numbers, known, clock = Numbers(scene), set[str](), scene.recorder.now
    unverified_until = clock()
    async for _ in scene.turns():
        if scene.chance.random() < _APPENDS:
            await _append(scene, numbers.next(), known)
        if scene.chance.random() < _ANCHORS:
            with scene.recorder.deed("log.anchor") as doing:
                doing.ok(op=(await scene.mesh.oplog.anchor()).key)
        if scene.chance.random() < _VERIFIES and (began := clock()) >= unverified_until:
            await _verify(scene)
            unverified_until = clock() + _APART * (clock() - began)


def _register(scene: Scene) -> None:
    for kind in (NOTE, STEP):
        scene.mesh.oplog.register(kind)


async def _append(scene: Scene, number: int, known: set[str]) -> bool:
    """Append an op; it may depend on some that are known to be there, and on one that may not be yet."""
    key, chance = key_of(scene.who, _OP, number), scene.chance
    deps: list[str] = []
    if known and chance.random() < _DEPENDS:
        others = sorted(known - {key})
        deps = chance.sample(others, min(len(others), _MOST_DEPS))
    if chance.random() < _AWAITS:
        deps.append(key_of(chance.choice(scene.players), _OP, number + chance.randint(1, _AHEAD)))
    kind = STEP if number % 2 else NOTE
    with scene.recorder.deed("log.append", key=key, kind=kind.name, number=number) as doing:
        outcome = await scene.mesh.oplog.append(kind.name, {"number": number}, deps=deps, key=key)
        doing.ok(spooled=outcome.spooled)
        if not outcome.spooled:
            known.add(key)
    return doing.is_ok


async def _verify(scene: Scene) -> None:
    with scene.recorder.deed("log.verify") as doing:
        reports = await scene.mesh.oplog.verify()
        problems = [f"{each.node_id}/{each.seq}: {each.problem}" for each in reports if each.problem]
        doing.ok(chains=len(reports), problems=problems)


async def drain(scene: Scene) -> None:
    """Append once more, and have one of the players look at the whole log once more."""
    _register(scene)  # its process may have begun after the others had ended
    until = scene.recorder.now() + scene.pace.ttl_s + RECOVERY_S
    is_appended = await _append(scene, LAST, set())
    while not is_appended and scene.recorder.now() < until:
        await asyncio.sleep(scene.pace.rest_s)
        is_appended = await _append(scene, LAST, set())
    if scene.who == scene.players[0]:
        await _verify(scene)


OPLOG: Final = Part("oplog", act, drain)
