"""Acquiring: one holder at a time, who is a node and an agent; and who is refused learns why."""

from __future__ import annotations

import asyncio
import math
import re
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support.locks.holding import (
    expire,
    expire_all,
    held_keys,
    is_free,
    is_held,
    nodes,
    refused,
    rows_of,
    until_waiting,
)
from tests.support.oplog.authoring import RestartableNodes
from vox_mesh import Mesh, MeshError, Settings
from vox_mesh.errors import BadValue, LockHeld, NoAnswer, StaleFence
from vox_mesh.locks.scripts import FILE_TTL_S, MAX_TTL_S, MIN_TTL_S, TASK_TTL_S
from vox_mesh.model.locks.records import Lock, milliseconds_at
from vox_mesh.node import MeshNode

_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_a_lock_is_taken_by_one_renewed_guarded_and_let_go(any_settings: Settings) -> None:
    async with Mesh.open(any_settings) as mesh:
        lock = await mesh.locks.acquire("file:src/lib.rs", agent="a")
        held = await refused(mesh, "file:src/lib.rs", agent="b")
        assert [holder.fence_token for holder in held.holders] == [lock.fence_token]
        await refused(mesh, "file:src/**", agent="b")
        await refused(mesh, ["file:src/lib.rs", "task:1"], agent="b", shared=True)
        await mesh.locks.renew(lock)
        assert await is_held(mesh, lock)
        assert await mesh.locks.release(lock)
        assert not await is_held(mesh, lock)
        shares = await asyncio.gather(
            *(mesh.locks.acquire(["file:src/*", "task:1"], agent=agent, shared=True) for agent in "ab")
        )
        await refused(mesh, "file:src/lib.rs")
        for share in shares:
            assert await mesh.locks.release(share)
        assert await is_free(mesh, "file:src/lib.rs")


async def test_two_agents_of_one_node_are_two_holders(mesh: MeshNode) -> None:
    await mesh.locks.acquire("task:1", agent="a")
    await refused(mesh, "task:1", agent="b")


async def test_one_that_holds_a_key_and_asks_again_is_refused_like_anybody_else(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("task:1", agent="a")
    await refused(mesh, "task:1", agent="a")
    await refused(mesh, "task:1", agent="a", shared=True)
    assert await is_held(mesh, lock)


async def test_a_refusal_names_the_holder_the_token_the_age_and_the_time_left(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("file:a", agent="ann")
    held = await refused(mesh, "file:a", agent="bob")
    (holder,) = held.holders
    assert (holder.lock_key, holder.fence_token) == ("file:a", lock.fence_token)
    assert (holder.holder_node, holder.holder_agent) == (mesh.identity.node_id, "ann")
    assert not holder.is_shared
    assert 0 <= holder.age_s < 10
    assert 20 < holder.left_s <= FILE_TTL_S
    for part in ("file:a", "ann", mesh.identity.node_id, f"token {lock.fence_token}", "left"):
        assert part in held.line
    assert held.retryable


async def test_the_agent_is_the_one_given_or_that_of_the_settings_or_the_node(settings: Settings) -> None:
    async with Mesh.open(settings) as mesh:
        assert (await mesh.locks.acquire("a")).holder_agent == mesh.identity.node_id
    async with Mesh.open(settings.model_copy(update={"agent_id": "planner"})) as mesh:
        assert (await mesh.locks.acquire("b")).holder_agent == "planner"
        assert (await mesh.locks.acquire("c", agent="coder")).holder_agent == "coder"


async def test_times_are_by_the_clock_of_the_database_in_milliseconds(mesh: MeshNode) -> None:
    lock = await mesh.locks.acquire("file:a", ttl=7.25)
    (row,) = await rows_of(mesh, "distributed_locks")
    assert _ISO.fullmatch(row["acquired_at"])
    assert _ISO.fullmatch(row["expires_at"])
    assert lock.expires_at == row["expires_at"]
    assert milliseconds_at(row["expires_at"]) - milliseconds_at(row["acquired_at"]) == 7_250


async def test_a_holder_counts_its_time_from_before_the_request_was_sent(mesh: MeshNode) -> None:
    before = time.monotonic()
    for keys in ("task:1", ["task:2", "task:3"]):
        lock = await mesh.locks.acquire(keys, ttl=10)
        assert before - 5 < lock.deadline - 10 <= time.monotonic()


@pytest.mark.parametrize(
    ("keys", "ttl"),
    [
        ("file:a", FILE_TTL_S),
        ("file:a/**", FILE_TTL_S),
        ("task:1", TASK_TTL_S),
        (["file:a", "file:b"], FILE_TTL_S),
        (["file:a", "task:1"], TASK_TTL_S),
    ],
)
async def test_files_are_locked_for_30_s_and_all_else_for_5_min(
    there: RestartableNodes, keys: str | list[str], ttl: float
) -> None:
    async with there.node() as mesh:
        assert (await mesh.locks.acquire(keys)).ttl == ttl


@pytest.mark.parametrize("ttl", [0, -1, MIN_TTL_S / 2, MAX_TTL_S + 1, math.inf, math.nan])
async def test_a_time_out_of_bounds_is_refused_and_nothing_is_taken(
    there: RestartableNodes, ttl: float
) -> None:
    async with there.node() as mesh:
        with pytest.raises(BadValue):
            await mesh.locks.acquire("a", ttl=ttl)
        lock = await mesh.locks.acquire("a", ttl=MAX_TTL_S)
        with pytest.raises(BadValue):
            await mesh.locks.renew(lock, ttl=ttl)
        assert await is_held(mesh, lock)


@pytest.mark.parametrize(
    "key", ["", "file:", "file:/etc/passwd", "file:../x", "a\nb", "x" * 1_025, "\ud800", "mesh:sweep"]
)
async def test_what_can_be_no_key_is_refused_and_nothing_is_taken(there: RestartableNodes, key: str) -> None:
    async with there.node() as mesh:
        for keys in (key, ["fine", key]):
            with pytest.raises(BadValue):
                await mesh.locks.acquire(keys)
        assert await held_keys(mesh) == []


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"wait": None}, "wait: None is not a duration"),
        ({"wait": math.nan}, "wait must be seconds between 0 and 86400, got nan"),
        ({"wait": timedelta(seconds=-1)}, "wait must be seconds"),
        ({"ttl": "x"}, "ttl: 'x' is not a duration"),
        ({"ttl": True}, "ttl: True is not a duration"),
        ({"keys": None}, "keys must be text or a list of texts, got None"),
        ({"keys": b"a"}, "keys must be text"),
        ({"keys": ["a", 1]}, "keys must be text"),
        ({"agent": 1}, "agent must be printable text, got 1"),
    ],
)
async def test_a_value_of_another_type_is_refused_with_its_name(
    mesh: MeshNode, values: dict[str, Any], reported: str
) -> None:
    asked = {"keys": "a", **values}
    with pytest.raises(BadValue, match=reported):
        await mesh.locks.acquire(**asked)
    with pytest.raises(BadValue, match=reported):
        async with mesh.locks.hold(**asked):
            pass
    assert await held_keys(mesh) == []


@pytest.mark.parametrize("agent", ["\ud800", "a\0b"])
async def test_an_agent_that_can_not_be_written_is_refused_alone(there: RestartableNodes, agent: str) -> None:
    async with there.node() as mesh:
        bad = [mesh.locks.acquire("a", agent=agent), mesh.locks.acquire(["b", "c"], agent=agent)]
        good = [mesh.locks.acquire(f"task:{number}") for number in range(4)]
        ends = await asyncio.gather(*bad, *good, return_exceptions=True)
        assert [isinstance(end, BadValue) for end in ends[:2]] == [True, True], ends
        assert all(isinstance(end, Lock) for end in ends[2:]), ends


async def test_spellings_of_one_path_are_one_key(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        lock = await mesh.locks.acquire("file:src//./lib.rs")
        assert lock.keys == ("file:src/lib.rs",)
        await refused(mesh, "file:src/lib.rs")


async def test_of_many_who_want_one_key_one_has_it(mesh: MeshNode) -> None:
    asked = (mesh.locks.acquire("task:1", agent=f"a{n}", wait=0) for n in range(32))
    ends = await asyncio.gather(*asked, return_exceptions=True)
    winners = [end for end in ends if isinstance(end, Lock)]
    assert len(winners) == 1
    assert sum(isinstance(end, LockHeld) for end in ends) == 31
    (holder,) = await mesh.locks.holders(["task:1"])
    assert (holder.holder_agent, holder.fence_token) == (winners[0].holder_agent, winners[0].fence_token)


async def test_many_who_want_keys_of_their_own_are_each_notified_of_their_own(mesh: MeshNode) -> None:
    await mesh.locks.acquire("task:7", agent="before")
    asked = [mesh.locks.acquire(f"task:{n}", agent=f"a{n}") for n in range(64)]
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(ends[7], LockHeld)
    locks = [end for end in ends if isinstance(end, Lock)]
    assert len(locks) == 63
    holders = {holder.lock_key: holder for holder in await mesh.locks.holders()}
    for lock in locks:
        holder = holders[lock.keys[0]]
        assert (holder.holder_agent, holder.fence_token) == (lock.holder_agent, lock.fence_token)
    assert all(await asyncio.gather(*(mesh.locks.release(lock) for lock in locks)))
    assert await held_keys(mesh) == ["task:7"]


async def test_another_node_is_refused_and_takes_what_has_expired_without_any_sweep(
    common_settings: Settings,
) -> None:
    async with nodes(common_settings, 2) as (one, two):
        lock = await one.locks.acquire("file:a")
        held = await refused(two, "file:a")
        assert held.holders[0].holder_node == one.identity.node_id
        await expire(one, lock)
        taken = await two.locks.acquire("file:a")
        assert taken.fence_token > lock.fence_token
        assert not await one.locks.release(lock), "it is another's by now"
        assert await is_held(two, taken)


async def test_meshes_of_other_scopes_and_repositories_have_keys_of_their_own(settings: Settings) -> None:
    async with Mesh.open(settings) as mesh:
        await mesh.locks.acquire("file:a")
        for other in ({"scope_id": "another"}, {"repository_id": "another"}):
            async with Mesh.open_command(settings.model_copy(update=other)) as neighbour:
                assert await is_free(neighbour, "file:a")


# --- answers that get lost ------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["task:1", "file:a", ["task:1", "task:2"], "file:a/*"])
@pytest.mark.parametrize("wait", [0, 30])
async def test_a_lock_whose_answer_was_lost_is_ours_once(
    there: RestartableNodes, keys: str | list[str], wait: float
) -> None:
    async with there.node() as mesh:
        await mesh.locks.release(await mesh.locks.acquire(keys))
        there.gate.after.extend([NoAnswer("lost"), NoAnswer("lost again")])
        lock = await mesh.locks.acquire(keys, wait=wait)
        assert await is_held(mesh, lock)
        assert await held_keys(mesh) == sorted(lock.keys)
        assert await mesh.locks.release(lock)


@pytest.mark.parametrize("wait", [0, 30])
@pytest.mark.parametrize("between", ["an agent waits", "a pattern is announced"])
async def test_a_lock_whose_answer_was_lost_is_ours_whatever_came_between(
    there: RestartableNodes, between: str, wait: float
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        await mesh.locks.release(await mesh.locks.acquire("file:a/b"))
        lost = asyncio.Event()

        async def pause(_: float) -> None:
            lost.set()
            await came.wait()

        came = asyncio.Event()
        mesh.store._caller._sleep = pause
        there.gate.after.append(NoAnswer("lost"))
        asking = asyncio.create_task(mesh.locks.acquire("file:a/b", agent="us", wait=wait))
        await lost.wait()
        waiting = None
        if between == "an agent waits":
            waiting = asyncio.create_task(other.locks.acquire("file:a/b", wait=30))
            await until_waiting(other, "file:a/b")
        else:
            await refused(other, "file:a/*")
        came.set()
        lock = await asking
        assert await is_held(mesh, lock)
        assert await mesh.locks.release(lock)
        if waiting is not None:
            await waiting


async def test_a_hold_that_expired_before_its_answer_came_is_not_reported_as_one(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        for keys, shared in ((["x", "y"], False), ("x", True)):

            async def pause(_: float) -> None:
                await expire_all(other)

            mesh.store._caller._sleep = pause
            there.gate.after.append(NoAnswer("lost"))
            lock = await mesh.locks.acquire(keys, shared=shared)
            assert await is_held(mesh, lock)
            await mesh.locks.release(lock)


async def test_an_error_that_leaves_the_outcome_open_leaves_no_lock_behind(there: RestartableNodes) -> None:
    async with there.node() as mesh:
        for keys in ("task:1", ["task:1", "task:2"]):
            mesh.store._timeout = 0.05
            there.gate.hold()
            with pytest.raises(MeshError) as error:
                await mesh.locks.acquire(keys)
            assert not isinstance(error.value, LockHeld | StaleFence)
            mesh.store._timeout = 30.0
            there.gate.release()
            await asyncio.gather(*mesh.locks._acquirer._background.running)
            assert await is_free(mesh, keys)


async def test_one_key_may_be_asked_about_as_it_is_acquired(there: RestartableNodes) -> None:
    async with there.node("a") as mesh:
        await mesh.locks.acquire("file:a/b")
        assert [holder.lock_key for holder in await mesh.locks.holders("file:a/b")] == ["file:a/b"]
        assert [holder.lock_key for holder in await mesh.locks.in_the_way("file:a/*")] == ["file:a/b"]


@pytest.mark.parametrize("wait", [-1.0, float("nan"), 100_000.0])
async def test_no_one_waits_for_a_time_that_is_none(there: RestartableNodes, wait: float) -> None:
    async with there.node("a") as mesh:
        with pytest.raises(BadValue):
            await mesh.locks.acquire("task:a", wait=wait)
