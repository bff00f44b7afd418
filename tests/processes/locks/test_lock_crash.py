"""Holders and waiters that die, sleep or leave: the lock goes on to the next one, once, and in time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from tests.support.locks.lock_processes import Locker, StartLocker, lockers
from tests.support.running import lengths
from tools.homes import FILE, MESH_REPLICA, HomeCase
from vox_mesh import Settings
from vox_mesh.errors import StoreClosed
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import milliseconds_at

_IN_TIME_MS = 100
_ALIVE_MS = 2_000  # for so long a waiter is believed in after it was last heard of
_BUSY_MS = 1_500  # what a busy machine may add to a single time
_PATIENCE_S = 60.0
_SHORT_TTL_S = 0.5
_STEP_S = 0.3  # so that one moment in which the machine is busy does not spoil all of them

_WAITERS = "SELECT holder_agent FROM lock_waiters WHERE scope_id = ? AND lock_key = ? ORDER BY ticket"
_ALIVE = "SELECT alive_until FROM lock_waiters WHERE scope_id = ? AND lock_key = ? AND holder_agent = ?"


@pytest.fixture(params=[FILE, MESH_REPLICA], ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Backends where the commits of others are reported."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(tmp_path, server)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartLocker]:
    """Start a process that locks."""
    async with lockers(tmp_path) as start:
        yield start


async def _queued(mesh: Mesh, key: str, *names: str) -> None:
    """Wait until exactly these wait for a key, in this order."""
    values = (mesh.store.writer_id.scope_id, key)
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            seen = mesh.store.change_count
            rows = await mesh.store.read(_WAITERS, values, fresh=True)
            if [row["holder_agent"] for row in rows] == list(names):
                return
            await mesh.store.changed(seen)


async def _alive_until(mesh: Mesh, key: str, name: str, than: str = "") -> str:
    """Until when a waiter is believed in; wait until that is later than it was."""
    values = (mesh.store.writer_id.scope_id, key, name)
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            seen = mesh.store.change_count
            until = str((await mesh.store.read(_ALIVE, values, fresh=True)).value)
            if until > than:
                return until
            await mesh.store.changed(seen)


async def _acquired_ms(mesh: Mesh, key: str, token: int) -> int:
    """When a hold began, by the database's clock."""
    (holder,) = await mesh.locks.holders([key])
    assert holder.fence_token == token
    return milliseconds_at(holder.acquired_at)


async def test_a_killed_holders_locks_go_to_the_next_waiters_within_100_ms_of_their_end(
    settings: Settings, start: StartLocker
) -> None:
    keys = [f"key-{n}" for n in range(5)]
    holder, waiter = await asyncio.gather(start(settings, "holder"), start(settings, "waiter"))
    async with Mesh.open_command(settings) as mesh:
        await asyncio.gather(*(holder.acquire(key) for key in keys))
        waiting = [waiter.acquire(key, wait=_PATIENCE_S) for key in keys]
        for key in keys:
            await _queued(mesh, key, "waiter")
        held = await asyncio.gather(
            *(holder.order("renew", key=key, ttl=_SHORT_TTL_S + _STEP_S * n) for n, key in enumerate(keys))
        )
        await holder.kill()
        late = []
        for key, old, answer in zip(keys, held, waiting, strict=True):
            new = await answer
            assert new["token"] > old["token"]
            late.append(await _acquired_ms(mesh, key, new["token"]) - milliseconds_at(old["expires_at"]))
    print(f"after {late} ms")
    assert min(late) >= 0, "it was taken before its end"
    assert statistics.median(late) <= _IN_TIME_MS
    assert max(late) <= _BUSY_MS


async def test_a_killed_waiter_is_passed_over_and_a_paused_one_is_served_later_and_once(
    settings: Settings, start: StartLocker
) -> None:
    names = ("killed", "paused", "third")
    killed, paused, third = await asyncio.gather(*(start(settings, name) for name in names))
    async with Mesh.open(settings.model_copy(update={"node_id": "holder"})) as mesh:
        held = await mesh.locks.acquire("key")
        answer = []
        for n, locker in enumerate((killed, paused, third), start=1):
            answer.append(locker.acquire("key", wait=_PATIENCE_S))
            await _queued(mesh, "key", *names[:n])
        answer[0].cancel()
        await killed.kill()
        async with paused.paused(mesh.store):
            released_ms = await mesh.nodes.now_ms()
            await mesh.locks.release(held)
            first = await answer[2]
            took_ms = await _acquired_ms(mesh, "key", first["token"]) - released_ms
            assert took_ms <= _ALIVE_MS + _BUSY_MS
            assert not answer[1].done()
            silent = await _alive_until(mesh, "key", "paused")
        await _alive_until(mesh, "key", "paused", than=silent)
        last_told = asyncio.create_task(mesh.locks.acquire("key", wait=_PATIENCE_S))
        await _queued(mesh, "key", "killed", "paused", "holder")
        await third.order("release", key="key")
        second = await answer[1]
        assert "token" in second, second
        assert second["token"] > first["token"]
        (holder,) = await mesh.locks.holders(["key"])
        assert (holder.holder_agent, holder.fence_token) == ("paused", second["token"])
        assert (await paused.order("release", key="key"))["was_held"]
        assert await mesh.locks.release(await last_told)
        assert [each["token"] for each in paused.reports if "token" in each] == [second["token"]]
        await mesh.locks.sweep_expired_distributed_locks()
        assert await _left(mesh) == []


async def _left(mesh: Mesh) -> list[str]:
    """Who holds or waits for anything."""
    waiters = await mesh.store.read(
        "SELECT holder_agent FROM lock_waiters WHERE scope_id = ?",
        (mesh.store.writer_id.scope_id,),
        fresh=True,
    )
    return [str(holder) for holder in await mesh.locks.holders()] + [row["holder_agent"] for row in waiters]


_STOP = (Locker.ask_to_stop, 0)
_CTRL_C = (Locker.interrupt, 130)


@pytest.mark.soak
@pytest.mark.parametrize("ends", [(_STOP, _CTRL_C), (_CTRL_C, _STOP)] if lengths.SOAK else [(_STOP, _CTRL_C)])
async def test_a_process_that_ends_leaves_no_lock_and_no_place_in_the_queue_behind(
    settings: Settings, start: StartLocker, ends: Sequence[tuple[Callable[[Locker], None], int]]
) -> None:
    holder, waiter = await asyncio.gather(start(settings, "holder"), start(settings, "waiter"))
    async with Mesh.open_command(settings) as mesh:
        ordered = [holder.order("hold", keys=["key", "other"], ttl=_PATIENCE_S)]
        await holder.until(lambda reports: "held" in reports[-1])
        ordered.append(waiter.acquire("key", wait=_PATIENCE_S))
        await _queued(mesh, "key", "waiter")
        for each in ordered:
            each.cancel()
        for locker, (end, code) in zip((waiter, holder), ends, strict=True):
            end(locker)
            assert await locker.ended() == code
            assert locker.errors == ""
            assert "waiter" not in await _left(mesh)
        assert await _left(mesh) == []


async def test_one_that_waits_while_its_mesh_is_left_is_notified_and_has_no_place_in_the_queue(
    settings: Settings,
) -> None:
    async with Mesh.open_command(settings) as mesh:
        held = await mesh.locks.acquire("key")
        async with Mesh.open(settings.model_copy(update={"node_id": "leaving"})) as node:
            waiting = asyncio.create_task(node.locks.acquire("key", wait=_PATIENCE_S))
            await _queued(mesh, "key", "leaving")
        with pytest.raises(StoreClosed):
            await waiting
        assert await mesh.locks.release(held)
        assert await _left(mesh) == []
