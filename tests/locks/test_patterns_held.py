"""Patterns: two keys that have a path in common are never held together, no matter who came first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from tests.support.locks.holding import expire, held_keys, is_free, keys_in, nodes, refused, rows_of
from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import RestartableNodes
from tests.support.running import lengths
from vox_mesh import Settings
from vox_mesh.errors import LockHeld
from vox_mesh.model.locks.patterns import overlap
from vox_mesh.model.locks.records import Lock
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies

_KEYS = [
    "file:src/a",
    "file:src/*",
    "file:src/**",
    "file:**/a",
    "file:doc/?",
    "file:doc/ab",
    "file:**",
    "src/a",
]


async def test_what_has_a_path_in_common_excludes_each_other_both_ways(mesh: MeshNode) -> None:
    for held in _KEYS:
        lock = await mesh.locks.acquire(held)
        for asked in _KEYS:
            assert await is_free(mesh, asked) is not overlap(held, asked), f"{asked} while {held} is held"
        in_the_way = {key for key in _KEYS if await mesh.locks.in_the_way([key])}
        assert in_the_way == {key for key in _KEYS if overlap(held, key)}
        await mesh.locks.release(lock)
        if held == "file:doc/?":
            await mesh.locks.sweep_expired_distributed_locks()


async def test_an_expired_pattern_is_in_no_ones_way(mesh: MeshNode) -> None:
    await expire(mesh, await mesh.locks.acquire("file:src/**"))
    assert await is_free(mesh, "file:src/a")
    await expire(mesh, await mesh.locks.acquire("file:src/a"))
    assert await is_free(mesh, "file:src/**")


async def test_a_pattern_without_the_prefix_of_files_stands_for_itself(mesh: MeshNode) -> None:
    await mesh.locks.acquire("task:*")
    assert await is_free(mesh, "task:1")
    assert not await is_free(mesh, "task:*")


async def test_a_pattern_and_a_path_in_it_that_two_nodes_want_at_once_are_never_both_held(
    common_settings: Settings,
    seed: int,
) -> None:
    random = Random(seed)
    async with nodes(common_settings, 2) as both:
        for turn in range(lengths.PATTERN_RACES):
            keys = random.sample([key for key in _KEYS if overlap(key, "file:src/a")], 2)
            keys.append(f"file:src/a/{turn}")
            random.shuffle(keys)
            waits = random.choice([0, 0, 30])
            shared = [random.random() < 0.2 for _ in keys]
            inside: list[int] = []

            async def want(
                number: int, keys: list[str], shared: list[bool], wait: float, inside: list[int]
            ) -> int:
                mesh = both[number % 2]
                try:
                    lock = await mesh.locks.acquire(keys[number], shared=shared[number], wait=wait)
                except LockHeld:
                    return 0
                for other in inside:
                    is_in_peace = shared[other] and shared[number]
                    assert is_in_peace or not overlap(keys[other], keys[number]), (
                        keys,
                        shared,
                        inside,
                        number,
                    )
                inside.append(number)
                await mesh.locks.holders()
                inside.remove(number)
                assert await mesh.locks.release(lock)
                return 1

            asked = [want(number, keys, shared, waits, inside) for number in range(3)]
            if random.random() < 0.4:
                asked.append(random.choice(both).locks.sweep_expired_distributed_locks())
            async with asyncio.timeout(60):
                served = await asyncio.gather(*asked)
            assert sum(served[:3]) == 3 if waits else sum(served[:3]) >= 1, (keys, shared, served)


# --- what can happen between announcing and holding ------------------------------------------------


class _Died(Exception):
    """The process that announced a pattern is gone."""


def _dying(mesh: MeshNode) -> None:
    async def die(key: str, number: int) -> None:
        raise _Died

    mesh.locks._acquirer._patterns._compare = die  # type: ignore[method-assign]


@pytest.mark.parametrize("before", [True, False], ids=["held before", "held after"])
async def test_a_pattern_whose_announcer_died_is_compared_by_the_next_who_wants_it(
    there: RestartableNodes, before: bool
) -> None:
    async with there.node("a") as dead, there.node("b") as other, there.node("c") as third:
        _dying(dead)
        if before:
            path = await other.locks.acquire("file:src/a")
        with pytest.raises(_Died):
            await dead.locks.acquire("file:src/*")
        if not before:
            path = await other.locks.acquire("file:src/a")
        await refused(third, "file:src/*")
        await other.locks.release(path)
        pattern = await third.locks.acquire("file:src/*")
        await refused(other, "file:src/a")
        await third.locks.release(pattern)


@pytest.mark.parametrize("when", ["before it is compared", "after it was compared"])
async def test_a_pattern_that_is_swept_away_on_its_way_is_announced_again(
    there: RestartableNodes, when: str
) -> None:
    async with there.node("a") as mesh, there.node("b") as other:
        path = await other.locks.acquire("file:src/a")
        patterns = mesh.locks._acquirer._patterns
        compare = patterns._compare
        swept: list[str] = []

        async def swept_away(key: str, number: int) -> None:
            if when.startswith("after"):
                await compare(key, number)
            if not swept:
                swept.append(key)
                await other.locks.sweep_expired_distributed_locks()
                assert await keys_in(other, "lock_patterns") == []
            if when.startswith("before"):
                await compare(key, number)

        patterns._compare = swept_away  # type: ignore[method-assign]
        await refused(mesh, "file:src/*")
        assert swept
        await other.locks.release(path)
        await mesh.locks.acquire("file:src/*")
        await refused(other, "file:src/a")


async def test_a_comparison_counts_only_for_the_announcement_that_it_was_made_for(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as slow, there.node("b") as dead, there.node("c") as other:
        _dying(dead)
        store = slow.locks._acquirer._patterns._store
        read, held = store.read, list[Lock]()

        async def and_then(sql: str, params: Sequence[object] = (), **how: object) -> object:
            rows = await read(sql, params, **how)  # type: ignore[arg-type]
            if "file;" in sql and not held:
                await other.locks.sweep_expired_distributed_locks()
                held.append(await other.locks.acquire("file:src/a"))
                with pytest.raises(_Died):
                    await dead.locks.acquire("file:src/*")
            return rows

        store.read = and_then  # type: ignore[method-assign, assignment]
        await refused(slow, "file:src/*")
        assert await held_keys(other) == ["file:src/a"]


async def test_a_pattern_that_was_swept_away_is_known_again_to_those_who_knew_it(
    there: RestartableNodes,
) -> None:
    async with there.node("a") as one, there.node("b") as two, there.node("c") as three:
        for mesh in (one, two):
            await mesh.locks.release(await mesh.locks.acquire("file:src/*"))
        await three.locks.sweep_expired_distributed_locks()
        path = await three.locks.acquire("file:src/a")  # while nothing is known of the pattern
        assert await keys_in(three, "lock_overlaps") == []
        await refused(one, "file:src/*")
        await three.locks.release(path)
        await two.locks.acquire("file:src/*")
        await refused(one, "file:src/b")
        await refused(three, "file:src/b")


async def test_what_is_learnt_while_all_is_forgotten_does_not_pass_for_all_there_is(
    there: RestartableNodes,
) -> None:
    clock = Clock()
    async with there.node("a", Dependencies(monotonic=clock)) as mesh, there.node("b") as other:
        await mesh.locks.release(await mesh.locks.acquire("file:x*"))
        held: Lock = await other.locks.acquire("file:src/*")
        await refused(mesh, "file:src/a")
        await other.locks.release(await other.locks.acquire("file:y*"))
        store = mesh.locks._acquirer._patterns._store
        read, arrived, go_on = store.read, asyncio.Event(), asyncio.Event()

        async def slow_read(sql: str, params: Sequence[object] = (), **how: object) -> object:
            rows = await read(sql, params, **how)  # type: ignore[arg-type]
            if "number > ?3" in sql and not arrived.is_set():
                arrived.set()
                await go_on.wait()
            return rows

        store.read = slow_read  # type: ignore[method-assign, assignment]
        learning = asyncio.create_task(mesh.locks.acquire("file:z1"))
        await arrived.wait()
        clock.now += 3_600  # by now the patterns are to be learnt again

        patterns = mesh.locks._acquirer._patterns
        announce = patterns._announce

        async def and_then(key: str) -> None:
            await announce(key)
            go_on.set()  # what was read before all was forgotten comes now
            await learning

        patterns._announce = and_then  # type: ignore[method-assign]
        await mesh.locks.acquire("file:w*")
        await refused(mesh, "file:src/a")
        assert await held_keys(mesh) == ["file:src/*", "file:w*", "file:z1"]
        assert await other.locks.release(held)


# --- tidiness ----------------------------------------------------------------------------------------


async def test_nothing_of_patterns_is_left_when_they_are_out_of_use(mesh: MeshNode) -> None:
    locks = [await mesh.locks.acquire(key) for key in ("file:src/*", "file:doc/**", "file:a")]
    path = await mesh.locks.acquire(["file:src/x/y", "task:1"])
    for lock in locks:
        await mesh.locks.release(lock)
    await mesh.locks.sweep_expired_distributed_locks()
    assert await keys_in(mesh, "lock_patterns") == []
    assert await rows_of(mesh, "lock_overlaps") == []
    lock = await mesh.locks.acquire("file:src/z")  # a node that still knows the pattern may note it again
    await mesh.locks.release(lock)
    await mesh.locks.release(path)
    await mesh.locks.sweep_once(60.0)
    assert await rows_of(mesh, "lock_overlaps") == []
    assert await mesh.locks.sweep_once(60.0) is None
