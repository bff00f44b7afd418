"""Giving up: a waiter that gives up leaves nothing behind, whenever that is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.support.locks.holding import (
    PATIENCE_S,
    expire,
    held_keys,
    is_held,
    keys_in,
    nodes,
    settled,
    until_waiting,
)
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Mesh, Script, Settings, Statement
from vox_mesh.errors import NoAnswer
from vox_mesh.model.locks.records import Lock


async def _waiting(mesh: Mesh, key: str) -> asyncio.Task[Lock]:
    """One who waits for a key that is held."""
    task = asyncio.create_task(mesh.locks.acquire(key, wait=60))
    await until_waiting(mesh, key)
    return task


@pytest.mark.parametrize("keys", ["a", "file:x", ["a", "b"], "file:*"])
@pytest.mark.parametrize("what", ["nothing", "a release"])
async def test_one_that_is_cancelled_at_any_moment_leaves_nothing_behind(
    there: RestartableNodes, keys: str | list[str], what: str
) -> None:
    async with there.node() as mesh:
        for moment in range(14):
            lock = await mesh.locks.acquire(keys, agent="holder")
            asking = asyncio.create_task(mesh.locks.acquire(keys, wait=60))
            if what == "a release":
                await until_waiting(mesh, *([keys] if isinstance(keys, str) else keys))
                releasing = asyncio.create_task(mesh.locks.release(lock))
            for _ in range(moment):
                await asyncio.sleep(0)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await mesh.locks.release(await asking)
            if what == "a release":
                await releasing
            else:
                await mesh.locks.release(lock)
            await settled(mesh)
            assert await held_keys(mesh) == [], moment
            assert await keys_in(mesh, "lock_waiters") == [], moment


async def test_one_that_is_cancelled_while_threads_work_leaves_nothing_behind(
    common_settings: Settings,
) -> None:
    async with nodes(common_settings, 1) as (mesh,):
        for moment in range(25):
            lock = await mesh.locks.acquire("a", agent="holder")
            asking = [asyncio.create_task(mesh.locks.acquire(keys, wait=60)) for keys in ("a", ["a", "b"])]
            releasing = asyncio.create_task(mesh.locks.release(lock))
            await asyncio.sleep(moment / 5_000)  # some point on the way, whichever it is
            for task in asking:
                task.cancel()
            for ended in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(ended, Lock):
                    await mesh.locks.release(ended)
            await releasing
            await settled(mesh)
            assert await held_keys(mesh) == [], moment
            assert await keys_in(mesh, "lock_waiters") == [], moment


async def test_one_that_is_cancelled_while_patterns_are_compared_is_not_served_later(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        lock = await mesh.locks.acquire("file:x")
        waiting = await _waiting(mesh, "file:x")
        await other.locks.release(await other.locks.acquire("file:z*"))  # one that has to be learnt
        patterns = mesh.locks._acquirer._patterns
        learn, reached, go_on = patterns.learn, asyncio.Event(), asyncio.Event()

        async def slowly(keys: Sequence[str]) -> None:
            reached.set()
            await go_on.wait()
            await learn(keys)

        patterns.learn = slowly  # type: ignore[method-assign]
        await mesh.locks.release(lock)
        await asyncio.wait_for(reached.wait(), PATIENCE_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await settled(mesh)
        go_on.set()
        if (watching := mesh.locks._acquirer._queue._watch_task) is not None:
            await asyncio.wait([watching])
        assert await held_keys(other) == []
        assert await keys_in(other, "lock_waiters") == []


async def test_a_hand_over_that_no_one_was_notified_of_is_found_with_the_time_that_is_left(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        lock = await mesh.locks.acquire("a")
        waiting = await _waiting(mesh, "a")
        lost = asyncio.Event()

        async def pause(_: float) -> None:
            lost.set()
            await asyncio.get_running_loop().create_future()

        mesh.store._caller._sleep, sleep = pause, mesh.store._caller._sleep
        there.gate.after.append(NoAnswer("lost"))
        releasing = asyncio.create_task(mesh.locks.release(lock))
        await asyncio.wait_for(lost.wait(), PATIENCE_S)
        soon = (
            "UPDATE distributed_locks SET expires_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+20 seconds')"
        )
        await other.store.write(Script(Statement(soon)))
        mesh.store._caller._sleep = sleep
        releasing.cancel()
        async with asyncio.timeout(PATIENCE_S):
            served = await waiting
        assert await is_held(mesh, served)
        assert served.deadline - time.monotonic() <= 20.0
        await expire(mesh, served)
