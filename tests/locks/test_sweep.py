"""The sweep: tidying that changes nothing, by one node at a time, and nothing when there is nothing to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.locks.holding import (
    expire,
    expire_all,
    held_keys,
    is_held,
    keys_in,
    nodes,
    put_off,
    refused,
    until_waiting,
)
from tests.support.oplog.authoring import RestartableNodes
from tests.support.store.counting import counting
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Mesh, Script, Settings, Statement
from vox_mesh.node import MeshNode


async def test_a_sweep_removes_what_has_expired_and_nothing_else(mesh: MeshNode) -> None:
    over = [await mesh.locks.acquire([f"a{n}", f"b{n}"], shared=n % 2 == 0) for n in range(6)]
    over.append(await mesh.locks.acquire("file:over/*"))
    live = [
        await mesh.locks.acquire("live"),
        await mesh.locks.acquire(["file:live/*", "x"], shared=True),
        await mesh.locks.acquire(["y", "z"]),
    ]
    await mesh.locks.release(await mesh.locks.acquire("let go"))
    await expire(mesh, *over)
    assert await mesh.locks.sweep_expired_distributed_locks() > 0
    gone = {"let go", *(key for lock in over for key in lock.keys)}
    assert gone.isdisjoint(await keys_in(mesh, "lock_holds"))
    assert sorted(await held_keys(mesh)) == sorted(key for lock in live for key in lock.keys)
    assert await keys_in(mesh, "lock_patterns") == ["file:live/*"]
    for lock in live:
        assert await is_held(mesh, lock)
        await refused(mesh, lock.keys[-1])
    await refused(mesh, "file:live/a")
    for lock in over:
        assert not await mesh.locks.release(lock)
    assert await mesh.locks.sweep_expired_distributed_locks() == 0


async def test_sweeps_of_two_nodes_at_once_count_each_hold_once(common_settings: Settings) -> None:
    async with nodes(common_settings, 2) as both:
        await asyncio.gather(*(both[0].locks.acquire(f"task:{n}") for n in range(40)))
        await expire_all(both[0])
        kept = await both[1].locks.acquire("kept")
        counts = await asyncio.gather(*(mesh.locks.sweep_expired_distributed_locks() for mesh in both * 2))
        assert sum(counts) == 40
        assert await is_held(both[1], kept)


async def test_one_node_sweeps_at_a_time_and_the_next_when_its_time_has_come(
    common_settings: Settings,
) -> None:
    async with nodes(common_settings, 2) as (one, two):
        await expire(one, await one.locks.acquire("a"))
        assert await one.locks.sweep_once(54.0) == 1
        await expire(two, await two.locks.acquire("b"))
        assert await two.locks.sweep_once(54.0) is None
        await expire_all(one)
        assert await two.locks.sweep_once(54.0) is not None
        assert await held_keys(one) == []
        assert [each.lock_key for each in await one.locks.holders(["mesh:sweep"])] == ["mesh:sweep"]


async def test_nothing_is_written_when_there_is_nothing_to_sweep(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        lock = await mesh.locks.acquire("a")
        share = await mesh.locks.acquire(["b", "c"], shared=True)
        pattern = await mesh.locks.acquire(["file:a/*", "file:b"])
        there.gate.batches.clear()
        for _ in range(3):
            assert await mesh.locks.sweep_once(54.0) is None
        assert there.gate.batches == []
        await mesh.locks.release(lock)
        await expire(mesh, share, pattern)
        assert await mesh.locks.sweep_once(54.0) is not None
        assert await keys_in(mesh, "lock_patterns") == []
        await expire_all(mesh)  # also what says who sweeps
        there.gate.batches.clear()
        assert await mesh.locks.sweep_once(54.0) is None
        assert there.gate.batches == []


async def test_the_sweep_of_an_idle_node_costs_its_server_one_question(
    tmp_path: Path, shared_server: Server
) -> None:
    async with counting(shared_server) as gate:
        settings = MESH.settings(tmp_path, shared_server, db_url=gate.url, tick="1h")
        async with Mesh.open(settings) as mesh:
            await mesh.locks.sweep_once(54.0)
            before = gate.messages
            for _ in range(3):
                assert await mesh.locks.sweep_once(54.0) is None
            assert gate.messages - before <= 3


async def test_a_dead_waiter_is_swept_away_and_those_who_are_alive_stay(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("a")
    waiting = asyncio.create_task(mesh.locks.acquire("a", wait=60))
    await until_waiting(mesh, "a")
    (row,) = await mesh.locks.holders(["a"])
    assert row.waiting == 1
    sql = (
        "INSERT INTO lock_waiters SELECT scope_id, repository_id, lock_key, ticket, 'R', is_shared, "
        "holder_node, holder_agent, waits_since, alive_until FROM lock_waiters WHERE scope_id = ?"
    )
    await mesh.store.write(Script(Statement(sql, mesh.store.writer_id[:1])))
    await put_off(mesh, "R")
    await mesh.locks.sweep_expired_distributed_locks()
    assert await keys_in(mesh, "lock_waiters") == ["a"]
    await mesh.locks.release(lock)
    await waiting
