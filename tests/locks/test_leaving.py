"""A node that leaves releases its locks; a replaced one has none; a lost answer changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.locks.holding import PATIENCE_S, held_keys, is_held, keys_in, nodes, settled, until_waiting
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Mesh, Script, Settings, Statement
from vox_mesh.errors import LockLost, NoAnswer, StaleIncarnation, StoreClosed
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Verdict


@pytest.mark.parametrize("is_node", [True, False], ids=["a node", "a command"])
async def test_one_that_leaves_the_mesh_leaves_no_hold_and_no_waiter_behind(
    common_settings: Settings, is_node: bool
) -> None:
    async with nodes(common_settings, 1) as (other,):
        opened = Mesh.open(common_settings) if is_node else Mesh.open_command(common_settings)
        async with opened as mesh:
            holding = asyncio.Event()

            async def hold(mesh: Mesh = mesh, holding: asyncio.Event = holding) -> None:
                async with mesh.locks.hold("task:a"):
                    holding.set()
                    await asyncio.Event().wait()

            holder = asyncio.create_task(hold())
            await holding.wait()
            waiter = asyncio.create_task(mesh.locks.acquire("task:a", wait=60))
            await until_waiting(other, "task:a")
        lost, closed = await asyncio.gather(holder, waiter, return_exceptions=True)
        assert isinstance(lost, LockLost)
        assert isinstance(closed, StoreClosed)
        assert await held_keys(other) == []
        assert await keys_in(other, "lock_waiters") == []


@pytest.mark.parametrize("keys", ["task:a", ["task:a", "task:b"]], ids=["one key", "several keys"])
async def test_a_release_whose_answer_was_lost_is_reported_as_one(
    there: RestartableNodes, keys: str | list[str]
) -> None:
    async with there.node("a") as mesh:
        lock = await mesh.locks.acquire(keys)
        there.gate.after.append(NoAnswer("lost"))
        assert await mesh.locks.release(lock)
        assert await held_keys(mesh) == []
        assert not await mesh.locks.release(lock)


async def test_a_release_whose_answer_was_lost_frees_the_lock_for_others_too(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        lock = await mesh.locks.acquire("task:a")
        waiter = asyncio.create_task(other.locks.acquire("task:a", wait=60))
        await until_waiting(other, "task:a")
        there.gate.after.append(NoAnswer("lost"))
        assert await mesh.locks.release(lock)
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiter).fence_token > lock.fence_token


async def test_a_lock_that_was_passed_on_though_the_answer_was_lost_is_the_next_ones(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as mesh:
        lock = await mesh.locks.acquire("task:a")
        waiter = asyncio.create_task(mesh.locks.acquire("task:a", wait=60))
        await until_waiting(mesh, "task:a")
        there.gate.after.append(NoAnswer("lost"))
        assert await mesh.locks.release(lock)
        async with asyncio.timeout(PATIENCE_S):
            assert await is_held(mesh, await waiter)
        assert await keys_in(mesh, "lock_waiters") == []


async def test_one_that_gives_up_while_a_lock_is_handed_over_gets_nothing_any_more(
    there: RestartableNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        lock = await mesh.locks.acquire("task:a")
        first = asyncio.create_task(other.locks.acquire("task:a", wait=60))
        await until_waiting(other, "task:a")
        second = asyncio.create_task(mesh.locks.acquire("task:a", wait=60))
        await until_waiting(other, "task:a", "task:a")
        write_all = mesh.store.write_all

        async def meanwhile(scripts: Sequence[Script]) -> list[Verdict]:
            verdicts = await write_all(scripts)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            await settled(mesh)
            return verdicts

        monkeypatch.setattr(mesh.store, "write_all", meanwhile)
        assert await mesh.locks.release(lock)
        async with asyncio.timeout(PATIENCE_S):
            await other.locks.release(await first)
        assert await held_keys(other) == []
        assert await keys_in(other, "lock_waiters") == []


async def test_a_replaced_node_takes_no_lock_and_ends_none(there: RestartableNodes) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        lock = await mesh.locks.acquire("task:a")
        whose = (*mesh.store.mesh_id, mesh.identity.node_id)
        await other.store.write(Script(Statement(named("nodes")["raise_incarnation"], whose)))
        with pytest.raises(StaleIncarnation):
            await mesh.locks.acquire("task:b")
        with pytest.raises(StaleIncarnation):
            await mesh.locks.release(lock)
        assert await held_keys(other) == ["task:a"]
        assert await is_held(other, lock)
