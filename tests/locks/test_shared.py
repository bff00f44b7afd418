"""Shares, and turning them into exclusive holds and back."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.locks.holding import (
    expire,
    held_keys,
    is_free,
    is_held,
    refused,
    settled,
    until_renewed,
    until_waiting,
)
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh.errors import LockHeld, LockLost, NoAnswer, StaleFence
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode


async def test_any_number_share_a_key_and_no_one_has_it_alone_meanwhile(mesh: MeshNode) -> None:
    shares = [await mesh.locks.acquire("a", agent=f"a{n}", shared=True) for n in range(5)]
    assert len({share.fence_token for share in shares}) == 5
    held = await refused(mesh, "a")
    assert [holder.is_shared for holder in held.holders] == [True] * 5
    assert "shared by" in held.line
    for share in shares[1:]:
        assert await mesh.locks.release(share)
    await refused(mesh, "a")
    await expire(mesh, shares[0])
    alone = await mesh.locks.acquire("a")
    assert alone.fence_token > max(share.fence_token for share in shares)
    await refused(mesh, "a", shared=True)


async def test_one_agent_may_share_a_key_twice_and_each_share_is_its_own(mesh: MeshNode) -> None:
    one = await mesh.locks.acquire("a", agent="x", shared=True)
    two = await mesh.locks.acquire("a", agent="x", shared=True)
    assert await mesh.locks.release(one)
    assert await is_held(mesh, two)
    await refused(mesh, "a")


async def test_shares_of_patterns_overlap_in_peace(mesh: MeshNode) -> None:
    one = await mesh.locks.acquire("file:src/**", shared=True)
    two = await mesh.locks.acquire(["file:src/lib.rs", "file:**/*.rs"], shared=True)
    await refused(mesh, "file:src/lib.rs")
    assert await mesh.locks.release(one)
    await refused(mesh, "file:src/main.rs")
    assert await is_free(mesh, "file:src/main.py")
    assert await mesh.locks.release(two)
    assert await is_free(mesh, "file:src/main.rs")


async def test_the_last_who_shares_a_key_can_have_it_alone(mesh: MeshNode) -> None:
    one = await mesh.locks.acquire(["a", "b"], shared=True, agent="one")
    two = await mesh.locks.acquire(["b", "c"], shared=True, agent="two")
    before = one.fence_token
    with pytest.raises(LockHeld) as held:
        await mesh.locks.upgrade(one)
    assert [holder.holder_agent for holder in held.value.holders] == ["two"]
    assert (one.is_shared, one.fence_token) == (True, before)
    assert await is_held(mesh, one)
    await mesh.locks.release(two)
    assert await mesh.locks.upgrade(one) is one
    assert not one.is_shared
    assert one.fence_token > two.fence_token
    assert await is_held(mesh, one)
    await refused(mesh, "b", shared=True)
    assert await mesh.locks.upgrade(one) is one, "it has what it wants"


async def test_an_upgrade_that_a_pattern_is_in_the_way_of_names_it(mesh: MeshNode) -> None:
    one = await mesh.locks.acquire("file:a/b", shared=True, agent="one")
    await mesh.locks.acquire("file:a/*", shared=True, agent="two")
    with pytest.raises(LockHeld) as held:
        await mesh.locks.upgrade(one)
    assert [(h.lock_key, h.holder_agent) for h in held.value.holders] == [("file:a/*", "two")]


async def test_one_that_turns_a_share_into_a_hold_goes_before_those_who_wait(mesh: MeshNode) -> None:
    one = await mesh.locks.acquire("a", shared=True, agent="one")
    waiting = asyncio.create_task(mesh.locks.acquire("a", agent="two", wait=30))
    await until_waiting(mesh, "a")
    await mesh.locks.upgrade(one)
    assert not waiting.done()
    await mesh.locks.release(one)
    assert (await waiting).holder_agent == "two"


async def test_a_hold_becomes_a_share_with_no_moment_between(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("a", agent="one")
    token = lock.fence_token
    alone = asyncio.create_task(mesh.locks.acquire("a", agent="two", wait=30))
    await until_waiting(mesh, "a")
    await mesh.locks.downgrade(lock)
    assert lock.is_shared
    assert lock.fence_token > token
    assert await is_held(mesh, lock)
    assert not alone.done()
    await mesh.locks.release(lock)
    assert (await alone).holder_agent == "two"


async def test_others_share_a_key_as_soon_as_its_holder_does(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("a", agent="one")
    sharing = [asyncio.create_task(mesh.locks.acquire("a", wait=30, shared=True)) for _ in range(2)]
    await until_waiting(mesh, "a", "a")
    await mesh.locks.downgrade(lock)
    await asyncio.gather(*sharing)
    assert await held_keys(mesh) == ["a"] * 3


async def test_a_share_that_is_over_can_not_be_turned_into_a_hold(mesh: MeshNode) -> None:
    share = await mesh.locks.acquire("a", shared=True)
    await expire(mesh, share)
    with pytest.raises(StaleFence):
        await mesh.locks.upgrade(share)
    assert share.is_shared
    assert await is_free(mesh, "a")


async def test_a_turn_whose_answer_was_lost_is_reported_all_the_same(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        lock = await mesh.locks.acquire(["a", "b"], shared=True)
        for turn in (mesh.locks.upgrade, mesh.locks.downgrade):
            there.gate.after.extend([NoAnswer("lost"), NoAnswer("lost")])
            await turn(lock)
            assert await is_held(mesh, lock)
        assert await mesh.locks.release(lock)
        assert await is_free(mesh, ["a", "b"])


async def test_a_turn_that_was_cancelled_leaves_no_hold_that_no_one_knows(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        lock = await mesh.locks.acquire("a", shared=True)
        lost = asyncio.Event()

        async def pause(_: float) -> None:
            lost.set()
            await asyncio.get_running_loop().create_future()

        mesh.store._caller._sleep = pause
        there.gate.after.append(NoAnswer("lost"))
        turning = asyncio.create_task(mesh.locks.upgrade(lock))
        await lost.wait()
        turning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turning
        await settled(mesh)
        await mesh.locks.release(lock)
        assert await is_free(mesh, "a")


async def test_a_renewal_beside_a_turn_does_not_take_the_lock_for_lost(there: RestartableNodes) -> None:
    async with there.node() as mesh:

        async def work() -> Lock:
            async with mesh.locks.hold("a", shared=True, ttl=0.9) as lock:
                there.gate.hold()
                turning = asyncio.create_task(mesh.locks.upgrade(lock))
                await there.gate.arrival()
                async with asyncio.timeout(10):
                    while not mesh.store._combiner.depth:  # noqa: ASYNC110  # the renewal queues behind it
                        await asyncio.sleep(0.01)
                there.gate.release()
                await turning
                await until_renewed(lock)
                assert await is_held(mesh, lock)
                return lock

        try:
            lock = await work()
        except LockLost as lost:
            raise AssertionError("it was held all the time") from lost
        assert not lock.is_shared
        assert await is_free(mesh, "a")
