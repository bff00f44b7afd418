"""Fencing: a write under a lock happens only while its hold is there, with its token."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.locks.holding import expire, is_free, is_held
from tests.support.oplog.authoring import assert_sound, noted, notes
from tests.support.store.tables import make_table
from vox_mesh import Mesh, Script, Statement
from vox_mesh.errors import Refused, StaleFence
from vox_mesh.node import MeshNode


async def _count(mesh: Mesh, table: str) -> int:
    return int((await mesh.store.read(f"SELECT count(*) FROM {table}", fresh=True)).value)


def _put(table: str, number: int) -> Statement:
    return Statement(f"INSERT INTO {table} (id) VALUES (?)", (number,))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("keys", ["task:1", ["file:a/*", "task:1"]])
async def test_a_guarded_write_goes_through_only_while_the_hold_is_there(
    mesh: MeshNode, keys: str | list[str], shared: bool
) -> None:
    table = await make_table(mesh.store)
    lock = await mesh.locks.acquire(keys, shared=shared)
    await mesh.store.write(Script(mesh.locks.guard(lock), _put(table, 1)))
    await mesh.locks.renew(lock)
    await mesh.store.write(Script(mesh.locks.guard(lock), _put(table, 2)))
    await expire(mesh, lock)
    with pytest.raises(StaleFence) as stale:
        await mesh.store.write(Script(_put(table, 3), mesh.locks.guard(lock)))
    assert (stale.value.reason, stale.value.code) == ("stale_fence", "stale_fence")
    assert isinstance(stale.value, Refused)
    assert "acquire" in stale.value.line
    assert await _count(mesh, table) == 2


async def test_a_stale_holder_does_not_write_under_its_successors_hold(mesh: MeshNode) -> None:
    table = await make_table(mesh.store)
    old = await mesh.locks.acquire("task:1", agent="a")
    await expire(mesh, old)
    new = await mesh.locks.acquire("task:1", agent="a")
    with pytest.raises(StaleFence):
        await mesh.store.write(Script(mesh.locks.guard(old), _put(table, 1)))
    with pytest.raises(StaleFence):
        await mesh.locks.renew(old)
    assert not await mesh.locks.release(old)
    await mesh.store.write(Script(mesh.locks.guard(new), _put(table, 2)))
    assert await _count(mesh, table) == 1


async def test_a_hold_of_several_keys_is_over_with_the_first_of_them(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire(["a", "b", "c"])
    await mesh.locks.break_lock("b", "a test")
    assert not await is_held(mesh, lock)
    assert await is_free(mesh, ["a", "b", "c"])
    with pytest.raises(StaleFence):
        await mesh.locks.renew(lock)


async def test_the_guard_of_a_share_is_its_own(mesh: MeshNode) -> None:
    one = await mesh.locks.acquire("a", shared=True, agent="one")
    two = await mesh.locks.acquire("a", shared=True, agent="two")
    await mesh.locks.release(one)
    assert not await is_held(mesh, one)
    assert await is_held(mesh, two)


async def test_of_a_request_with_many_scripts_only_the_stale_ones_are_refused(mesh: MeshNode) -> None:
    table = await make_table(mesh.store)
    locks = [await mesh.locks.acquire(f"task:{n}") for n in range(6)]
    for lock in locks[::2]:
        await mesh.locks.release(lock)
    verdicts = await mesh.store.write_all(
        [Script(mesh.locks.guard(lock), _put(table, n)) for n, lock in enumerate(locks)]
    )
    assert [isinstance(verdict, StaleFence) for verdict in verdicts] == [True, False] * 3
    assert await _count(mesh, table) == 3


async def test_the_log_tells_of_an_op_that_was_refused_for_its_fence(mesh: MeshNode) -> None:
    table = await make_table(mesh.store)
    lock = await mesh.locks.acquire("task:1")
    await mesh.store.write(noted(mesh.locks.guard(lock), _put(table, 1)))
    await mesh.locks.release(lock)
    with pytest.raises(StaleFence):
        await mesh.store.write(noted(mesh.locks.guard(lock), _put(table, 2)))
    accepted, refusal = await notes(mesh)
    assert accepted.accepted
    assert (refusal.accepted, refusal.reason) == (False, "stale_fence")
    assert await _count(mesh, table) == 1
    await assert_sound(mesh)


async def test_a_guarded_write_and_the_end_of_its_hold_never_cross(mesh: MeshNode) -> None:
    table = await make_table(mesh.store)
    for turn in range(10):
        lock = await mesh.locks.acquire("task:1")
        write = mesh.store.write(Script(mesh.locks.guard(lock), _put(table, turn)))
        pair = (write, mesh.locks.release(lock)) if turn % 2 else (mesh.locks.release(lock), write)
        ends = await asyncio.gather(*pair, return_exceptions=True)
        assert any(isinstance(end, StaleFence) for end in ends) is (turn % 2 == 0)
    assert await _count(mesh, table) == 5
