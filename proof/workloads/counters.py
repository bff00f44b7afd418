"""Rows that all write, each over the version that it has read: counters, and slates for what else there is.

A counter is only ever added to. On a slate, all that can become of a conflict is tried. Each write leaves a
mark in the row that no other does: whoever reads it knows whose it is.
"""

from __future__ import annotations

from typing import Any, Final

from proof.history import Doing
from proof.scene import Part, Scene
from vox_mesh import Manual, Merge, Merged, MeshError, TakeLeft, TakeRight, Written
from vox_mesh.errors import OutcomeUnknown
from vox_mesh.occ.strategies import Result, Strategy

TABLE: Final = "memories"
KEY: Final = "memory_key"
COLUMNS: Final = ("importance", "content", "agent_id")
"""A number, the mark of whoever changed it last, and a place for a mark beside it."""

NAMED: Final = "counter:"
"""How the keys of counters begin."""
_COUNTERS: Final = (f"{NAMED}1", f"{NAMED}2")
_SLATES: Final = ("slate:1", "slate:2")
_STRATEGIES: Final[tuple[Strategy, ...]] = (
    *(TakeRight(), TakeLeft(), Manual()),
    *(Merge(), Merge(below=Manual())),
)

Row = dict[str, Any]


async def act(scene: Scene) -> None:
    """Count, and scribble."""
    async for _ in scene.turns():
        way = scene.chance.choices((_add, _update, _scribble), (4, 2, 3))[0]
        await way(scene, f"{scene.who}.{scene.recorder.life}.{scene.chance.getrandbits(64):x}")


async def _add(scene: Scene, mark: str) -> None:
    """Count by hand: read, and write one more over it, or nothing."""
    key = scene.chance.choice(_COUNTERS)
    is_read, base = await _read(scene, key)
    if is_read:
        await _write(scene, key, _more(base, mark), base, TakeRight())


async def _update(scene: Scene, mark: str) -> None:
    """Have it counted, however often that has to be tried."""
    key, over = scene.chance.choice(_COUNTERS), list[Any]()

    def more(row: Row | None) -> Row:
        over[:] = _told(row)
        return _more(row, mark)

    with scene.recorder.deed("counter.update", key=key, mark=mark) as doing:
        await scene.mesh.occ.update(TABLE, {KEY: key}, more, patience=scene.pace.ttl_s)
        doing.ok(over=over)


async def _scribble(scene: Scene, mark: str) -> None:
    """Write what others write too, and have a strategy decide."""
    key, strategy = scene.chance.choice(_SLATES), scene.chance.choice(_STRATEGIES)
    is_read, base = await _read(scene, key)
    if not is_read:
        return
    await scene.rest(scene.pace.rest_s * scene.chance.random())
    match strategy:
        case Merge():
            values: Row = {"agent_id": mark}
        case TakeLeft():
            values = {**_more(base, mark), "agent_id": mark}
        case _:
            values = _more(base, mark)
    await _write(scene, key, values, base, strategy)


# --- what is done to a row ---------------------------------------------------------------------------


def _told(row: Row | None) -> list[Any]:
    """What of a row is told; one that is not there is like one that nobody has written to."""
    return [0, None, None] if row is None else [row[column] for column in COLUMNS]


def _more(row: Row | None, mark: str) -> Row:
    return {"importance": _told(row)[0] + 1, "content": mark}


async def _read(scene: Scene, key: str) -> tuple[bool, Row | None]:
    """Whether the row could be read, and what it is."""
    row: Row | None = None
    with scene.recorder.deed("counter.read", key=key) as doing:
        row = await scene.mesh.occ.read(TABLE, {KEY: key})
        doing.ok(row=_told(row))
    return doing.is_ok, row


async def _write(scene: Scene, key: str, values: Row, base: Row | None, strategy: Strategy) -> None:
    asked = {"key": key, "base": _told(base), "values": values, "strategy": type(strategy).__name__}
    with scene.recorder.deed("counter.write", **asked) as doing:
        _tell(doing, base, await _sent(scene, key, values, base, strategy))


async def _sent(scene: Scene, key: str, values: Row, base: Row | None, strategy: Strategy) -> Result:
    occ, place = scene.mesh.occ, {KEY: key}
    try:
        return await occ.write(TABLE, place, values, base, strategy=strategy, patience=scene.pace.ttl_s)
    except OutcomeUnknown as unknown:
        if strategy != TakeRight() or scene.chance.random() < 0.5:
            raise
        try:
            return await occ.write(TABLE, place, values, base, script_key=unknown.key)
        except MeshError:  # of the second time only
            raise unknown from None


def _tell(doing: Doing, base: Row | None, result: Result) -> None:
    match result:
        case Written(overwritten=None):
            doing.ok(over=_told(base))
        case Written(overwritten=right) | Merged(right=right):
            doing.ok(over=_told(right))
        case _:
            doing.no(row=_told(result.right))


COUNTERS: Final = Part("counters", act)
