"""Locks and leases in beats: over with their phase or bar, unless renewed while beats are left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import accumulate
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh import JobContext
from vox_mesh.errors import BadManifest, BadValue, LockHeld, LockLost, StaleFence
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.rhythm.phases import boundary_ms, phase_of
from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import PHASES, TempoPolicy
from vox_mesh.model.rhythm.tempo import Until
from vox_mesh.node import MeshNode
from vox_mesh.rhythm.beat_locks import BeatLock
from vox_mesh.testing import MeshHarness

_PATIENCE_S: Final = 30.0
_KEY: Final = "task:42"
_BAR_MS: Final = 40_000  # of the built-in policy: 5 s a beat, plan 10 s, work 20 s, review 10 s
_PLAN_MS: Final = 10_000
_WORK_MS: Final = 30_000


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    """A harness without nodes."""
    async with MeshHarness() as harness:
        yield harness


async def _advance_into_bar(harness: MeshHarness, into_ms: int) -> int:
    """Turn the clock so far into the next bar; when that began."""
    await harness.clock.advance(f"{_BAR_MS - harness.clock.now_ms % _BAR_MS + into_ms}ms")
    return harness.clock.now_ms // _BAR_MS * _BAR_MS


async def _advance_to(harness: MeshHarness, at_ms: int) -> None:
    await harness.clock.advance(f"{at_ms - harness.clock.now_ms}ms")


# --- where a boundary is ---------------------------------------------------------------------------


@given(
    st.integers(-(10**12), 10**13), st.floats(0.1, 600), st.lists(st.integers(1, 12), min_size=1, max_size=5)
)
def test_a_phase_ends_where_another_begins_and_the_last_one_with_its_bar(
    at_ms: int, bpm: float, beats: list[int]
) -> None:
    phases = {f"p{place}": count for place, count in enumerate(beats)}
    document = {"cluster_id": "east", "initial_bpm": bpm, "bar_len_beats": sum(beats), "phases": phases}
    plan = Plan(PlanEntry.of(TempoPolicy.of_document(document)))
    beat = plan.timeline.beat_at(at_ms)
    end_ms = boundary_ms(plan, Until.PHASE, at_ms)
    assert at_ms < end_ms <= boundary_ms(plan, Until.BAR, at_ms) == beat.window_ends_ms
    starts = [beat.window_ms + before * beat.beat_ms for before in accumulate(beats)]
    assert end_ms == min(each for each in starts if each > at_ms)
    last = plan.timeline.beat_at(end_ms - 1)
    assert phase_of(plan, last) == phase_of(plan, beat)


# --- holding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("into_ms", "until", "ends_ms"),
    [
        (0, "phase", _PLAN_MS),
        (15_000, "phase", _WORK_MS),
        (32_000, "phase", _BAR_MS),
        (15_000, "bar", _BAR_MS),
    ],
)
async def test_a_lock_is_held_until_the_phase_or_the_bar_ends_and_then_anybodys(
    harness: MeshHarness, into_ms: int, until: str, ends_ms: int
) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    bar_ms = await _advance_into_bar(harness, into_ms)
    lock = await one.rhythm.beat_locks.acquire(_KEY, until)
    assert (lock.until, lock.ends_ms) == (until, bar_ms + ends_ms)
    with pytest.raises(LockHeld):
        await two.locks.acquire(_KEY)
    await _advance_to(harness, bar_ms + ends_ms + 1_000)
    assert (await two.locks.acquire(_KEY)).fence_token > lock.fence_token
    with pytest.raises(StaleFence):
        await one.rhythm.beat_locks.renew(lock, beats_left=3)


async def test_right_before_a_boundary_it_is_for_the_phase_that_comes(harness: MeshHarness) -> None:
    holds = (await harness.node()).rhythm.beat_locks
    assert holds.ends_ms("phase", _PLAN_MS - 100) == _PLAN_MS
    assert holds.ends_ms("phase", _PLAN_MS - 99) == _WORK_MS
    assert holds.ends_ms("bar", _BAR_MS - 1) == 2 * _BAR_MS


async def test_a_body_is_stopped_at_the_boundary_and_nothing_renews_its_lock(harness: MeshHarness) -> None:
    node = await harness.node()
    bar_ms = await _advance_into_bar(harness, 0)
    inside, never = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with node.rhythm.beat_locks.hold(_KEY, until="phase"):
            inside.set()
            await never.wait()

    working = asyncio.create_task(work())
    async with asyncio.timeout(_PATIENCE_S):
        await inside.wait()
        await _advance_to(harness, bar_ms + 7_000)  # a hold in time would be renewed now
        assert [holder.left_s < 6 for holder in await node.locks.holders(_KEY)] == [True]
        await _advance_to(harness, bar_ms + _PLAN_MS + 1_000)
        with pytest.raises(LockLost):
            await working


async def test_with_beats_left_it_goes_on_until_the_next_boundary_however_often_that_is_said(
    harness: MeshHarness,
) -> None:
    node = await harness.node()
    bar_ms = await _advance_into_bar(harness, 0)
    inside, never = asyncio.Event(), asyncio.Event()
    held: list[BeatLock] = []

    async def work() -> None:
        async with node.rhythm.beat_locks.hold(_KEY, until="phase") as lock:
            held.append(lock)
            inside.set()
            await never.wait()

    working = asyncio.create_task(work())
    async with asyncio.timeout(_PATIENCE_S):
        await inside.wait()
        for _ in range(3):
            await node.rhythm.beat_locks.renew(held[0], beats_left=1)
            assert held[0].ends_ms == bar_ms + _WORK_MS
        await _advance_to(harness, bar_ms + _PLAN_MS + 5_000)
        assert [each.fence_token for each in await node.locks.holders(_KEY)] == [held[0].fence_token]
        assert not working.done()
        with pytest.raises(BadValue, match="got 0"):
            await node.rhythm.beat_locks.renew(held[0], beats_left=0)
        assert held[0].ends_ms == bar_ms + _WORK_MS
        await _advance_to(harness, bar_ms + _WORK_MS + 1_000)
        with pytest.raises(LockLost):
            await working


async def test_a_body_that_ends_before_the_boundary_lets_go_of_its_lock(harness: MeshHarness) -> None:
    node = await harness.node()
    await _advance_into_bar(harness, 0)
    async with node.rhythm.beat_locks.hold(
        [_KEY, "task:43"], until="bar", agent="coder", shared=True
    ) as lock:
        assert (lock.holder_agent, lock.is_shared) == ("coder", True)
        assert len(await node.locks.holders()) == 2
    assert await node.locks.holders() == []


async def test_who_has_waited_holds_it_until_the_end_of_the_phase_in_which_it_was_served(
    harness: MeshHarness,
) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    bar_ms = await _advance_into_bar(harness, 0)
    first = await one.locks.acquire(_KEY, ttl=3_600)
    waiting = asyncio.create_task(two.rhythm.beat_locks.acquire(_KEY, "bar", wait=_PATIENCE_S))
    async with asyncio.timeout(_PATIENCE_S):
        async with aclosing(one.locks.watch()) as changes:
            async for found in changes:
                if found[0].waiting:
                    break
        await _advance_to(harness, bar_ms + _BAR_MS + 30_000)
        await one.locks.release(first)
        lock = await waiting
    assert lock.ends_ms == bar_ms + 2 * _BAR_MS
    assert (await one.locks.holders(_KEY))[0].left_s < 20, "it was not for a whole bar"


async def test_only_phases_and_bars_end(harness: MeshHarness) -> None:
    with pytest.raises(BadValue, match="until must be phase or bar, got 'week'"):
        await (await harness.node()).rhythm.beat_locks.acquire(_KEY, "week")


async def test_the_phases_are_those_of_the_policy_in_force(harness: MeshHarness) -> None:
    node = await harness.node()
    said = {"cluster_id": "c", "initial_bpm": 12, "phases": {"work": 7, "rest": 1}}
    entry = await node.rhythm.policies.set(TempoPolicy.of_document(said))
    holds = node.rhythm.beat_locks
    assert holds.ends_ms("phase", entry.anchor_ms) == entry.anchor_ms + 35_000
    assert holds.ends_ms("phase", entry.anchor_ms - _BAR_MS) == entry.anchor_ms - _BAR_MS + _PLAN_MS
    assert tuple(node.rhythm.policy.phase_beats) == PHASES


# --- jobs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", ["phase", "bar"])
def test_a_manifest_may_have_a_lease_in_beats_and_that_is_part_of_the_job(until: str) -> None:
    plain, timed, beaten = (
        Manifest.of(kind="a.b", payload=1, **more) for more in _with_leases(None, "30s", until)
    )
    assert timed.content_id == plain.content_id != beaten.content_id
    assert (timed.lease_ms, beaten.lease_ms) == (30_000, None)
    again = Manifest.of_core(beaten.core())
    assert (again.lease, again.content_id) == (Until(until), beaten.content_id)


def _with_leases(*leases: str | None) -> list[dict[str, Any]]:
    return [{} if lease is None else {"lease": lease} for lease in leases]


def test_a_lease_until_anything_else_is_refused() -> None:
    with pytest.raises(BadManifest, match=r"'week' is not a duration .*; allowed: .*phase or bar"):
        Manifest.of(kind="a.b", lease="week")


async def _lease_end(node: MeshNode, job_id: str) -> int:
    end_ms = (await node.jobs.find(job_id)).lease_until_ms
    assert end_ms is not None
    return end_ms


async def test_a_job_is_leased_until_its_boundary_and_renewed_until_the_next_while_its_worker_lives(
    harness: MeshHarness,
) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    bar_ms = await _advance_into_bar(harness, 0)
    begun: asyncio.Queue[str] = asyncio.Queue()

    async def hang(context: JobContext) -> None:
        begun.put_nowait(context.job.job_id)
        await asyncio.Event().wait()

    for node in (one, two):
        node.worker.handles("work")(hang)
    await one.worker.start()
    scheduled = await two.jobs.schedule("work", lease=Until.PHASE)
    async with asyncio.timeout(_PATIENCE_S):
        job_id = await begun.get()
    assert job_id == scheduled.job_id
    soon_ms = 5_000  # it is counted from when the claim arrives
    first_ms = await _lease_end(one, job_id)
    assert bar_ms + _PLAN_MS <= first_ms < bar_ms + _PLAN_MS + soon_ms
    await _advance_to(harness, bar_ms + 6_000)
    async with asyncio.timeout(_PATIENCE_S):
        seen = one.store.change_count
        while await _lease_end(one, job_id) == first_ms:
            await one.store.changed(seen)
            seen = one.store.change_count
    assert bar_ms + _WORK_MS <= await _lease_end(one, job_id) < bar_ms + _WORK_MS + soon_ms
    await harness.kill("one")
    await two.worker.start()
    await _advance_to(harness, bar_ms + _WORK_MS + soon_ms)
    async with asyncio.timeout(_PATIENCE_S):
        assert await begun.get() == job_id, "no one has renewed it"
    await two.worker.stop(grace=0.0)


async def test_a_job_that_is_done_again_has_the_same_lease(harness: MeshHarness) -> None:
    node = await harness.node()
    first = await node.jobs.schedule("work", lease=Until.BAR)
    await node.jobs.abort(first.job_id)
    again = await node.jobs.retry(first.job_id)
    assert (await node.jobs.find(again.job_id)).held_until == "bar"
