"""Waiting: first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.locks.holding import (
    LONG_AGO,
    PATIENCE_S,
    held_keys,
    is_free,
    is_held,
    keys_in,
    nodes,
    put_off,
    refused,
    rows_of,
    settled,
    until_waiting,
)
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Mesh, Script, Settings, Statement
from vox_mesh.errors import LockHeld, StoreClosed
from vox_mesh.model.locks.records import Lock, milliseconds_at
from vox_mesh.node import MeshNode


async def _queue(mesh: Mesh, asked: Sequence[tuple[str, bool]]) -> list[asyncio.Task[Lock]]:
    """Have one after another wait for a key each, or for a share of it, behind a holder."""
    tasks: list[asyncio.Task[Lock]] = []
    for key, shared in asked:
        asking = mesh.locks.acquire(key, agent=f"a{len(tasks)}", wait=60, shared=shared)
        tasks.append(asyncio.create_task(asking))
        await until_waiting(mesh, *(key for key, _ in asked[: len(tasks)]))
    return tasks


async def _next(waiting: Sequence[asyncio.Task[Lock]], count: int) -> list[Lock]:
    """The next who are served: this many, and no one else."""
    async with asyncio.timeout(PATIENCE_S):
        served = await asyncio.gather(*waiting[:count])
    assert not any(task.done() for task in waiting[count:])
    return served


async def test_those_who_wait_are_served_in_the_order_in_which_they_came(mesh: MeshNode) -> None:
    holder = await mesh.locks.acquire("task:1")
    waiting = await _queue(mesh, [("task:1", False)] * 5)
    assert [h.waiting for h in await mesh.locks.holders()] == [5]
    lock = holder
    for turn in range(5):
        assert await mesh.locks.release(lock)
        (lock,) = await _next(waiting[turn:], 1)
        assert lock.holder_agent == f"a{turn}"
    assert await keys_in(mesh, "lock_waiters") == []


async def test_shares_are_served_together_and_none_overtakes_who_wants_it_alone(mesh: MeshNode) -> None:
    holder = await mesh.locks.acquire("a")
    waiting = await _queue(mesh, [("a", shared) for shared in (True, True, False, True, False)])
    await mesh.locks.release(holder)
    first, second = await _next(waiting, 2)
    await mesh.locks.release(first)
    await _next(waiting[2:], 0)
    await mesh.locks.release(second)
    (alone,) = await _next(waiting[2:], 1)
    await mesh.locks.release(alone)
    (share,) = await _next(waiting[3:], 1)
    await mesh.locks.release(share)
    await _next(waiting[4:], 1)


async def test_those_who_want_patterns_wait_in_the_same_line(mesh: MeshNode) -> None:
    holder = await mesh.locks.acquire("file:src/a")
    asked = ["file:src/*", "file:src/b", "file:**/a", "file:src/a", "file:doc/x"]
    waiting = await _queue(mesh, [(key, False) for key in asked[:4]])
    assert await is_free(mesh, asked[4])
    await mesh.locks.release(holder)
    (pattern,) = await _next(waiting, 1)
    await mesh.locks.release(pattern)
    two, three = await _next(waiting[1:], 2)
    await mesh.locks.release(two)
    await _next(waiting[3:], 0)
    await mesh.locks.release(three)
    await _next(waiting[3:], 1)


async def test_no_one_who_does_not_wait_overtakes_those_who_do(mesh: MeshNode) -> None:
    one = await mesh.locks.acquire("a", shared=True)
    (alone,) = await _queue(mesh, [("a", False)])
    held = await refused(mesh, "a", shared=True)
    assert [holder.fence_token for holder in held.holders] == [one.fence_token]
    await mesh.locks.release(one)
    await alone


async def test_one_who_waits_for_several_keys_gets_them_together(mesh: MeshNode) -> None:
    one, two = await mesh.locks.acquire("a"), await mesh.locks.acquire("b")
    waiting = asyncio.create_task(mesh.locks.acquire(["a", "b", "c"], wait=30))
    await until_waiting(mesh, "a", "b", "c")
    await mesh.locks.release(one)
    assert await held_keys(mesh) == ["b"]
    await refused(mesh, "c")
    await mesh.locks.release(two)
    assert sorted((await waiting).keys) == ["a", "b", "c"]


async def test_a_waiter_has_the_lock_when_it_expires_with_no_one_letting_go(mesh: MeshNode) -> None:
    for keys in ("file:a", "file:*", ["file:a", "b"]):
        old = await mesh.locks.acquire(keys, ttl=0.2)
        new = await mesh.locks.acquire("file:a", wait=30)
        assert new.fence_token > old.fence_token
        assert milliseconds_at(new.expires_at) > milliseconds_at(old.expires_at)
        assert await mesh.locks.release(new)


async def test_two_nodes_wait_for_each_other_in_turn(common_settings: Settings) -> None:
    async with nodes(common_settings, 2) as both:
        held = await both[0].locks.acquire("task:1", agent="0")
        for turn in range(1, 6):
            mine, other = both[(turn + 1) % 2], both[turn % 2]
            waiting = asyncio.create_task(other.locks.acquire("task:1", agent=str(turn), wait=60))
            await until_waiting(other, "task:1")
            assert await mine.locks.release(held)
            async with asyncio.timeout(PATIENCE_S):
                held = await waiting
            assert held.holder_agent == str(turn)


async def test_a_lock_is_handed_over_to_the_next_here_in_the_request_that_lets_go_of_it(
    there: RestartableNodes,
) -> None:
    async with there.node() as mesh:
        lock = await mesh.locks.acquire("a")
        (waiting,) = await _queue(mesh, [("a", False)])
        there.gate.batches.clear()
        there.gate.hold()
        releasing = asyncio.create_task(mesh.locks.release(lock))
        await there.gate.arrival()
        there.gate.release_one()
        assert await releasing
        assert (await waiting).fence_token > lock.fence_token
        there.gate.release()


async def test_one_that_waited_without_success_is_notified_who_holds_it_and_leaves_the_line(
    mesh: MeshNode,
) -> None:
    for keys, shared in (("a", False), ("a", True), (["a", "b"], False), ("file:x/*", False)):
        holder = await mesh.locks.acquire(["a", "file:x/y"], agent="ann")
        with pytest.raises(LockHeld) as held:
            await mesh.locks.acquire(keys, wait=0.05, shared=shared)
        assert held.value.holders[0].fence_token == holder.fence_token
        assert "ann" in held.value.line
        assert "after 0.05 s" in held.value.line
        await settled(mesh)
        assert await keys_in(mesh, "lock_waiters") == []
        await mesh.locks.release(holder)
        assert await is_free(mesh, keys)


async def test_one_who_comes_at_the_moment_when_the_watcher_wakes_up_waits_like_all_others(
    there: RestartableNodes,
) -> None:
    async with there.node() as mesh:
        lock = await mesh.locks.acquire("a")
        waiting = await _queue(mesh, [("a", False)])
        async with asyncio.timeout(PATIENCE_S):
            while (pause := mesh.locks._acquirer._queue._changes._timeout) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        pause.reschedule(0.0)  # as if its time had come by itself, one step before the other comes
        waiting.append(asyncio.create_task(mesh.locks.acquire("a", wait=60)))
        for task in waiting:
            await until_waiting(mesh, *("a" for task in waiting if not task.done()))
            await mesh.locks.release(lock)
            lock = await asyncio.wait_for(task, PATIENCE_S)


async def test_a_waiter_that_was_taken_for_dead_finds_its_place_again(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("a")
    waiting = await _queue(mesh, [("a", False), ("a", False)])
    first = min(await rows_of(mesh, "lock_waiters"), key=lambda row: row["ticket"])
    await put_off(mesh, first["request_id"])
    await mesh.locks.sweep_expired_distributed_locks()
    await until_waiting(mesh, "a", "a")
    again = min(await rows_of(mesh, "lock_waiters"), key=lambda row: row["ticket"])
    assert again["request_id"] == first["request_id"]
    await mesh.locks.release(lock)
    await _next(waiting, 1)


async def test_a_waiter_that_is_dead_is_passed_over(mesh: MeshNode) -> None:
    sql = "INSERT INTO lock_waiters VALUES (?, ?, 'a', 1, 'R', 0, 'gone', 'gone', ?, ?)"
    await mesh.locks.release(await mesh.locks.acquire(["a", "b"]))
    soon = "9999-01-01T00:00:00.000Z"
    await mesh.store.write(Script(Statement(sql, (*mesh.store.mesh_id, LONG_AGO, soon))))
    held = await refused(mesh, ["a"], shared=True)
    assert (list(held.holders), "wait for it before you" in held.line) == ([], True)
    await put_off(mesh, "R")
    assert await is_free(mesh, ["a"], shared=True)
    assert await is_free(mesh, "a")


async def test_one_that_waits_when_the_mesh_is_left_is_notified_and_out_of_the_way(
    common_settings: Settings,
) -> None:
    async with nodes(common_settings, 1) as (stays,):
        holder = await stays.locks.acquire("a", shared=True)
        async with Mesh.open(common_settings) as leaves:
            waiting = asyncio.create_task(leaves.locks.acquire("a", wait=60))
            await until_waiting(leaves, "a")
        with pytest.raises(StoreClosed):
            await waiting
        assert await keys_in(stays, "lock_waiters") == []
        assert await is_held(stays, holder)
