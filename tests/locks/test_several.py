"""Several keys at once, all or nothing."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.support.locks.holding import expire, held_keys, is_free, keys_in, refused
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Settings
from vox_mesh.errors import BadValue
from vox_mesh.locks.scripts import MAX_KEYS
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode


async def test_several_keys_are_taken_under_one_token_or_not_at_all(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire(["a", "b", "c"])
    assert {holder.fence_token for holder in await mesh.locks.holders()} == {lock.fence_token}
    for keys in (["x", "c"], ["c", "x"], ["x", "y", "a"]):
        held = await refused(mesh, keys)
        assert {holder.lock_key for holder in held.holders} <= {"a", "c"}
    assert await held_keys(mesh) == ["a", "b", "c"]
    assert await keys_in(mesh, "lock_waiters") == []
    assert await mesh.locks.release(lock)
    assert await held_keys(mesh) == []


async def test_a_key_that_is_named_twice_is_one_key(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire(["file:a", "file:./a", "file:a"])
    assert lock.keys == ("file:a",)
    await mesh.locks.renew(lock)
    assert await mesh.locks.release(lock)


async def test_64_keys_are_taken_together_and_65_are_too_many(mesh: MeshNode) -> None:
    many = [f"file:{n}" for n in range(MAX_KEYS)]
    lock = await mesh.locks.acquire(many)
    assert len(await mesh.locks.holders()) == MAX_KEYS
    await mesh.locks.renew(lock)
    await refused(mesh, many[-1])
    assert await mesh.locks.release(lock)
    for keys in ([*many, "one more"], []):
        with pytest.raises(BadValue):
            await mesh.locks.acquire(keys)
    assert await held_keys(mesh) == []


async def test_a_pattern_and_a_path_within_it_can_be_one_request(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire(["file:src/**", "file:src/lib.rs", "task:1"])
    for keys in ("file:src/lib.rs", "file:src/main.rs", "file:**/lib.rs", "task:1"):
        await refused(mesh, keys)
    await mesh.locks.renew(lock)
    assert await mesh.locks.release(lock)
    assert await is_free(mesh, "file:src/lib.rs")


async def test_some_of_several_keys_that_have_expired_are_taken_with_the_rest(mesh: MeshNode) -> None:
    old = await mesh.locks.acquire(["a", "b"])
    await expire(mesh, old)
    new = await mesh.locks.acquire(["b", "c"])
    assert new.fence_token > old.fence_token
    assert await is_free(mesh, "a")
    assert not await mesh.locks.release(old)
    assert await held_keys(mesh) == ["b", "c"]


async def test_requests_that_overlap_each_other_never_end_half_done_and_never_block_each_other(
    settings: Settings,
    seed: int,
) -> None:
    random = Random(seed)
    async with Mesh.open(settings) as mesh:
        inside: dict[str, str] = {}
        served = dict.fromkeys("abcdefgh", 0)

        async def agent(name: str, plans: list[list[str]]) -> None:
            for keys in plans:
                lock = await mesh.locks.acquire(keys, agent=name, wait=60)
                taken = {key: inside.get(key) for key in keys if key in inside}
                assert not taken, f"{name} was given {keys}, but {taken}"
                inside.update(dict.fromkeys(keys, name))
                await asyncio.sleep(0)
                for key in keys:
                    del inside[key]
                assert await mesh.locks.release(lock)
                served[name] += 1

        plans = {name: [random.sample("12345", 3) for _ in range(5)] for name in served}
        async with asyncio.timeout(60):
            await asyncio.gather(*(agent(name, plans[name]) for name in served))
        assert set(served.values()) == {5}
        assert await held_keys(mesh) == []
        assert await keys_in(mesh, "lock_waiters") == []


async def test_one_bad_key_among_many_leaves_nothing(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        with pytest.raises(BadValue):
            await mesh.locks.acquire(["a", "file:../b"])
        assert await held_keys(mesh) == []
