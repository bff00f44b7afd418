"""The store goes back in time while its clock is not where it should be: both at once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.nodes.stepped_databases import HOUR_S, SteppedDatabase, in_memory
from tests.support.oplog.authoring import NOTE, RestartableNodes, assert_sound, scene
from vox_mesh.errors import DatabaseClockJumped, StaleFence
from vox_mesh.node import MeshNode
from vox_mesh.store.engines.memory import SharedMemory

_ROUNDS = 10


async def _settle(*nodes: MeshNode) -> None:
    """Have nodes tick until none of them finds anything wrong."""
    for _ in range(_ROUNDS):
        pending = 0
        for node in nodes:
            try:
                await node.run_once()
            except DatabaseClockJumped:
                pending += 1
        if not pending:
            return
    raise AssertionError("the nodes did not agree")


def _memory(database: SteppedDatabase) -> SharedMemory:
    assert isinstance(database.engine, SharedMemory)
    return database.engine


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
async def test_a_correction_that_is_lost_with_a_rollback_is_made_again(
    tmp_path: Path, ahead_s: float
) -> None:
    async with in_memory(tmp_path) as database, scene(database.engine) as there:
        await _lose_a_correction(database, there, ahead_s)


async def _lose_a_correction(database: SteppedDatabase, there: RestartableNodes, ahead_s: float) -> None:
    async with there.node("a") as a, there.node("b") as b:
        await _settle(a, b)
        image = _memory(database).image()
        async with there.node("c") as c:
            nodes = (c, a, b)
            await c.run_once()
            database.set_ahead(ahead_s)
            await _settle(*nodes)
            for node in nodes:
                await node.oplog.append(NOTE, {})
            lost = await c.locks.acquire("x", ttl=300.0)
            _memory(database).restore(image)
            for node in nodes:
                with suppress(DatabaseClockJumped):
                    await node.oplog.append(NOTE, {})
            await _settle(*nodes)
            for node in nodes:
                await node.oplog.append(NOTE, {})
            new = await b.locks.acquire("x", ttl=300.0)
            assert new.fence_token > lost.fence_token
            with pytest.raises(StaleFence):
                await c.locks.renew(lost)
            assert [node.rollbacks for node in nodes] == [1, 1, 1]
            assert max(abs(node.clock.distance_ms) for node in nodes) < 1_000
            await assert_sound(a)
