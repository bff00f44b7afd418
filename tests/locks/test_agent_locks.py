"""The locks of an agent: acquired again they are renewed, and they are released without their tokens."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.locks.holding import expire, held_keys, is_held, until_waiting
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh.errors import BadValue, LockHeld, NotKnown
from vox_mesh.node import MeshNode


async def test_a_lock_acquired_again_is_renewed_under_the_same_token(mesh: MeshNode) -> None:
    for keys, shared in (("task:1", False), (["file:a", "file:b/*"], False), (["task:2", "task:3"], True)):
        first = await mesh.locks.acquire_or_renew(keys, agent="ann", ttl=10, shared=shared)
        again = await mesh.locks.acquire_or_renew(keys, agent="ann", ttl=60, shared=shared)
        assert (first.is_renewed, again.is_renewed) == (False, True)
        assert (again.fence_token, again.request_id) == (first.fence_token, first.request_id)
        assert sorted(again.keys) == sorted(first.keys)
        assert again.expires_at > first.expires_at
        shorter = await mesh.locks.acquire_or_renew(first.keys[-1], agent="ann", ttl=1, shared=shared)
        assert sorted(shorter.keys) == sorted(first.keys), "a part of a lock is held with all of it"
        assert shorter.expires_at > first.expires_at, "a lease is not shortened"
        assert {each.fence_token for each in await mesh.locks.holders(first.keys)} == {first.fence_token}
        assert await mesh.locks.release(again)
        assert not await is_held(mesh, first)


async def test_only_the_same_lock_in_the_same_mode_is_renewed(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire_or_renew("file:src/**", agent="ann")
    for keys, shared in (("file:src/a", False), (["file:src/**", "file:b"], False), ("file:src/**", True)):
        with pytest.raises(LockHeld) as refused:
            await mesh.locks.acquire_or_renew(keys, agent="ann", shared=shared)
        assert "your own lock on file:src/** is in the way" in (refused.value.hint or "")
    with pytest.raises(LockHeld):
        await mesh.locks.acquire("file:src/**", agent="ann")
    with pytest.raises(BadValue, match="mesh:"):
        await mesh.locks.acquire_or_renew("mesh:sweep", agent="ann", shared=True)
    await expire(mesh, lock)
    later = await mesh.locks.acquire_or_renew("file:src/**", agent="ann")
    assert (later.is_renewed, later.fence_token > lock.fence_token) == (False, True)


async def test_one_name_on_one_node_is_one_holder_whichever_process_asks(there: RestartableNodes) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        locks = await asyncio.gather(*(mesh.locks.acquire_or_renew("task:1", agent="ann") for _ in range(8)))
        assert len({(each.fence_token, each.request_id) for each in locks}) == 1
        assert sorted(each.is_renewed for each in locks) == [False] + [True] * 7
        with pytest.raises(LockHeld):
            await other.locks.acquire_or_renew("task:1", agent="ann")
        with pytest.raises(NotKnown, match="not held by ann on b"):
            await other.locks.release_held("task:1", agent="ann")
        waiting = asyncio.create_task(other.locks.acquire_or_renew("task:1", agent="ann", wait=60))
        await until_waiting(other, "task:1")
        renewed = await mesh.locks.acquire_or_renew("task:1", agent="ann")
        assert renewed.fence_token == locks[0].fence_token
        assert [each.fence_token for each in await mesh.locks.release_held("task:1", agent="ann")] == [
            renewed.fence_token
        ]
        assert (await waiting).fence_token > renewed.fence_token
        with pytest.raises(NotKnown):
            await mesh.locks.release_held("task:1", agent="ann")


async def test_an_agent_releases_its_own_locks_and_no_others(mesh: MeshNode) -> None:
    for keys, shared in ((["a", "b"], False), (["c"], True), (["d"], False)):
        await mesh.locks.acquire(keys, agent="ann", shared=shared)
    await mesh.locks.acquire("c", agent="bob", shared=True)
    await mesh.locks.acquire("e", agent="bob")
    (released,) = await mesh.locks.release_held("b", agent="ann")
    assert sorted(released.keys) == ["a", "b"]
    assert await held_keys(mesh) == ["c", "c", "d", "e"]
    assert len(await mesh.locks.release_held(agent="ann")) == 2
    assert await mesh.locks.release_held(agent="ann") == []
    assert [(each.lock_key, each.holder_agent) for each in await mesh.locks.holders()] == [
        ("c", "bob"),
        ("e", "bob"),
    ]
