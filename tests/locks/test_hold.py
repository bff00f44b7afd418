"""Holding: renewed in the background, let go of at the end, and the work stops when the lock is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from proof.chaos.proxy import Proxy
from tests.support.locks.holding import (
    PATIENCE_S,
    expire,
    held_keys,
    is_free,
    is_held,
    nodes,
    settled,
    until_renewed,
)
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Mesh, Settings
from vox_mesh.errors import LockLost, Unreachable
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies

_SHORT_S = 0.3


async def _for_ever() -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.get_running_loop().create_future()


async def _losing(mesh: Mesh, work: Callable[[], Awaitable[object]] = _for_ever, key: str = "a") -> None:
    """Do the work under a lock that is lost at its first renewal."""
    async with mesh.locks.hold(key, ttl=_SHORT_S) as lock:
        await expire(mesh, lock)
        await work()


def _cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_hold_is_let_go_of_at_the_end_of_its_body(mesh: MeshNode) -> None:
    for keys, shared in (("a", False), (["a", "b"], True), ("file:a/*", False)):
        async with mesh.locks.hold(keys, shared=shared) as lock:
            assert await is_held(mesh, lock)
        assert await held_keys(mesh) == []


async def test_what_a_body_raises_passes_through_and_the_lock_is_let_go_of(mesh: MeshNode) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mesh.locks.hold("a"):
            raise ZeroDivisionError
    assert await is_free(mesh, "a")


async def test_a_hold_outlives_its_time_for_as_long_as_it_is_renewed(mesh: MeshNode) -> None:
    async with mesh.locks.hold("a", ttl=_SHORT_S) as lock, mesh.locks.hold(["b", "c"], ttl=_SHORT_S) as two:
        token = lock.fence_token
        for _ in range(4):
            await until_renewed(lock)
        await until_renewed(two)
        assert lock.fence_token == token
        assert await is_held(mesh, lock)
        assert await is_held(mesh, two)
    assert await held_keys(mesh) == []


async def test_a_lock_that_another_node_breaks_stops_the_work(common_settings: Settings) -> None:
    async with nodes(common_settings, 2) as (one, two):

        async def break_and_take() -> Lock:
            await two.locks.break_lock("a", "a test")
            return await two.locks.acquire("a")

        async def work() -> None:
            async with one.locks.hold("a", ttl=_SHORT_S):
                breaking.append(asyncio.create_task(break_and_take()))  # which the loss must not stop
                await _for_ever()

        breaking: list[asyncio.Task[Lock]] = []
        with pytest.raises(LockLost, match="lock on a was lost"):
            await work()
        assert await is_held(two, await breaking[0]), "the one who lost it must not let go of it"
        assert _cancellations() == 0


async def test_work_stops_in_time_when_the_database_is_away(tmp_path: Path, shared_server: Server) -> None:
    async with Proxy(shared_server.port) as proxy:
        settings = MESH.settings(
            tmp_path, shared_server, db_url=proxy.url, db_deadline="1s", db_request_timeout="1s", tick="1h"
        )
        late: list[float] = []

        async def work(mesh: Mesh) -> None:
            async with mesh.locks.hold("a", ttl=_SHORT_S) as lock:
                await proxy.refuse()
                try:
                    await _for_ever()
                finally:
                    late.append(time.monotonic() - lock.deadline)

        async with Mesh.open(settings) as mesh:
            with pytest.raises(LockLost):
                await work(mesh)
            assert -0.1 < late[0] < 2.0, "it stops when its own clock says so, not earlier and not much later"
            await proxy.accept()


async def test_a_hold_goes_by_the_clock_that_it_was_given(there: RestartableNodes) -> None:
    async with there.node(dependencies=Dependencies(monotonic=Clock(5.0))) as mesh:
        async with mesh.locks.hold("a", ttl=_SHORT_S) as lock:
            there.gate.hold()
            await there.gate.arrival()
            for _ in range(5):
                await asyncio.sleep(0)
            there.gate.release()
            await until_renewed(lock)
        assert await is_free(mesh, "a")


async def test_a_body_that_swallows_the_cancellation_is_notified_all_the_same(mesh: MeshNode) -> None:
    async def work() -> None:
        with suppress(asyncio.CancelledError):
            await _for_ever()

    with pytest.raises(LockLost):
        await _losing(mesh, work)
    assert _cancellations() == 0


async def test_what_a_body_raises_over_its_cancellation_leaves_no_cancellation_behind(mesh: MeshNode) -> None:
    async def work() -> None:
        try:
            await _for_ever()
        except asyncio.CancelledError:
            raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError):
        await _losing(mesh, work)
    assert _cancellations() == 0


async def test_a_cancellation_from_outside_stays_one(mesh: MeshNode) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with mesh.locks.hold("a"):
            inside.set()
            await _for_ever()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert await is_free(mesh, "a")


async def test_a_cancellation_from_outside_beside_a_loss_stays_one(mesh: MeshNode) -> None:
    lost = asyncio.Event()

    async def work() -> None:
        try:
            await _for_ever()
        finally:
            lost.set()
            await _for_ever()

    task = asyncio.create_task(_losing(mesh, work))
    await lost.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_time_limit_around_a_hold_and_one_within_it_are_reported_as_such(mesh: MeshNode) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), mesh.locks.hold("a"):
            await _for_ever()
    await settled(mesh)  # it may have been too slow to be held at all
    assert await is_free(mesh, "a")
    async with mesh.locks.hold("a") as lock:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await _for_ever()
        assert await is_held(mesh, lock)
    with pytest.raises(LockLost):
        await _losing(mesh)


async def test_of_nested_holds_the_lost_one_is_reported_and_the_other_let_go_of(mesh: MeshNode) -> None:
    async def within() -> None:
        async with mesh.locks.hold("inner"):
            await _for_ever()

    with pytest.raises(LockLost, match="outer"):
        await _losing(mesh, within, "outer")
    await mesh.locks._acquirer._background.wait()  # what was cancelled goes on in the background
    assert await held_keys(mesh) == []
    async with mesh.locks.hold("outer") as outer:
        with pytest.raises(LockLost, match="inner"):
            await _losing(mesh, key="inner")
        assert await is_held(mesh, outer)


async def test_a_task_group_within_a_hold_ends_with_it(mesh: MeshNode) -> None:
    stopped = asyncio.Event()

    async def part() -> None:
        try:
            await _for_ever()
        finally:
            stopped.set()

    async def parts() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    with pytest.raises(LockLost):
        await _losing(mesh, parts)
    assert stopped.is_set()


async def test_a_loss_that_comes_as_the_body_ends_cancels_no_one(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        ended = asyncio.get_running_loop().create_future()

        async def work() -> str:
            async with mesh.locks.hold("a", ttl=_SHORT_S) as lock:
                await expire(mesh, lock)
                there.gate.hold()
                await ended
            return "done"

        task = asyncio.create_task(work())
        await there.gate.arrival()
        ended.set_result(None)
        there.gate.release()  # the renewal learns that it is too late, one step after the body has ended
        with pytest.raises(LockLost):
            await task
        assert task.cancelling() == 0


async def test_a_body_that_never_waited_is_notified_at_its_end_that_its_time_is_over(
    there: RestartableNodes,
) -> None:
    clock = Clock()
    async with there.node(dependencies=Dependencies(monotonic=clock)) as mesh:

        async def work() -> None:
            async with mesh.locks.hold("a", ttl=60):
                clock.now += 61  # no timer has had its turn

        with pytest.raises(LockLost, match="lock on a was lost"):
            await work()
        assert await is_free(mesh, "a"), "whatever is left of it is let go of"


@pytest.mark.parametrize("keys", ["a", ["a", "b"]], ids=["one key", "several keys"])
async def test_a_body_whose_lock_was_broken_is_notified_at_its_end(
    there: RestartableNodes, keys: str | list[str]
) -> None:
    async with there.node("one") as one, there.node("two") as two:
        taken: list[Lock] = []

        async def work() -> None:
            async with one.locks.hold(keys):
                await two.locks.break_lock("a", "a test")
                taken.append(await two.locks.acquire(keys))

        with pytest.raises(LockLost):
            await work()
        assert await is_held(two, taken[0])


async def test_a_body_that_ended_in_time_is_not_notified_of_a_release_that_did_not(
    there: RestartableNodes,
) -> None:
    clock = Clock()
    async with there.node(dependencies=Dependencies(monotonic=clock)) as mesh:

        async def work() -> str:
            async with mesh.locks.hold("a", ttl=60) as lock:
                await expire(mesh, lock)
                there.gate.hold()
            return "done"

        task = asyncio.create_task(work())
        await there.gate.arrival()
        clock.now += 61
        there.gate.release()
        assert await task == "done"


async def test_a_body_whose_end_can_not_be_reported_to_the_database_ends_as_it_would(
    there: RestartableNodes,
) -> None:
    async with there.node() as mesh:
        mesh.store._timeout = 0.2

        async def work() -> None:
            async with mesh.locks.hold("a"):
                there.gate.before.extend([Unreachable("away")] * 100_000)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
        there.gate.before.clear()
