"""Renewing, releasing, finding again and breaking: what becomes of a hold, and who is notified."""

from __future__ import annotations

import json

import pytest

from tests.support.locks.holding import expire, is_held, refused
from tests.support.oplog.authoring import RestartableNodes, assert_sound
from vox_mesh.errors import NoAnswer, NotKnown, StaleFence
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode


async def test_a_renewed_hold_lasts_for_its_time_from_then_on_under_the_same_token(mesh: MeshNode) -> None:
    for keys, shared in (("task:1", False), (["file:a", "file:b/*"], True)):
        lock = await mesh.locks.acquire(keys, ttl=10, shared=shared)
        token, expires_at, deadline = lock.fence_token, lock.expires_at, lock.deadline
        assert await mesh.locks.renew(lock, ttl=60) is lock
        assert (lock.fence_token, lock.ttl) == (token, 60)
        assert lock.expires_at > expires_at
        assert lock.deadline > deadline + 40
        assert {h.expires_at for h in await mesh.locks.holders(lock.keys)} == {lock.expires_at}
        await refused(mesh, keys)


async def test_a_release_says_whether_the_lock_was_still_held(mesh: MeshNode) -> None:
    for keys, shared in (("a", False), ("b", True), (["c", "d"], False), (["e", "f"], True)):
        lock = await mesh.locks.acquire(keys, shared=shared)
        assert await mesh.locks.release(lock)
        assert not await mesh.locks.release(lock)
        late = await mesh.locks.acquire(keys, shared=shared)
        await expire(mesh, late)
        assert not await mesh.locks.release(late)


async def test_a_release_that_was_answered_late_takes_nothing_from_the_next_holder(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        for keys in ("task:1", ["task:1", "task:2"]):
            lock = await mesh.locks.acquire(keys)
            taken: list[Lock] = []

            async def pause(_: float) -> None:
                taken.append(await other.locks.acquire(keys))  # noqa: B023  # called within this round

            mesh.store._caller._sleep = pause
            there.gate.after.append(NoAnswer("lost"))
            await mesh.locks.release(lock)
            assert await is_held(other, taken[0])
            assert await other.locks.release(taken[0])


async def test_a_hold_is_found_again_by_key_and_token_with_all_of_its_keys(mesh: MeshNode) -> None:
    for keys, shared in ((["a", "b"], False), (["c"], False), (["d", "e"], True)):
        lock = await mesh.locks.acquire(keys, shared=shared, agent="ann")
        found = await mesh.locks.find(keys[0], lock.fence_token)
        assert (sorted(found.keys), found.fence_token) == (keys, lock.fence_token)
        assert (found.holder_agent, found.is_shared) == ("ann", shared)
        assert found.deadline <= lock.deadline + 0.1
        await mesh.locks.renew(found)
        for key, token in ((keys[0], lock.fence_token + 1_000), ("other", lock.fence_token)):
            with pytest.raises(StaleFence):
                await mesh.locks.find(key, token)
        assert await mesh.locks.release(found)
        with pytest.raises(StaleFence):
            await mesh.locks.find(keys[0], lock.fence_token)


# --- breaking -------------------------------------------------------------------------------------------


async def test_a_broken_lock_is_free_at_once_and_the_log_says_who_why_and_whose(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("file:a", agent="ann")
    _, (broken,) = await mesh.locks.break_lock("file:./a", "its agent hangs")
    assert (broken.holder_agent, broken.fence_token) == ("ann", lock.fence_token)
    assert not await is_held(mesh, lock)
    assert (await mesh.locks.acquire("file:a")).fence_token > lock.fence_token
    entries = [e async for page in mesh.oplog.entries() for e in page if e.kind == "BreakLock"]
    (entry,) = entries
    payload = json.loads(entry.payload)
    assert entry.accepted
    assert (payload["key"], payload["reason"]) == ("file:a", "its agent hangs")
    assert payload["holders"] == [[mesh.identity.node_id, "ann", lock.fence_token]]
    await assert_sound(mesh)


async def test_breaking_takes_all_shares_of_a_key_and_leaves_other_keys_alone(mesh: MeshNode) -> None:
    shares = [await mesh.locks.acquire("a", shared=True, agent=agent) for agent in "xyz"]
    other = await mesh.locks.acquire("b")
    _, broken = await mesh.locks.break_lock("a", "a test")
    assert len(broken) == 3
    assert [await is_held(mesh, share) for share in shares] == [False] * 3
    assert await is_held(mesh, other)
    await mesh.locks.acquire("a")


async def test_what_no_one_holds_can_not_be_broken(mesh: MeshNode) -> None:
    with pytest.raises(NotKnown):
        await mesh.locks.break_lock("a", "a test")
    await expire(mesh, await mesh.locks.acquire("a"))
    with pytest.raises(NotKnown):
        await mesh.locks.break_lock("a", "a test")
