"""`MeshHarness`: nodes that share a database in memory, with a clock for the nodes and the database."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from vox_mesh import JobContext, MeshError
from vox_mesh.errors import BadValue, LockHeld, LockLost, NotKnown, StaleFence
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.node import MeshNode
from vox_mesh.store.engines.memory import MemoryEngine, SharedMemory
from vox_mesh.store.script import Statement
from vox_mesh.testing import MeshHarness

_PATIENCE_S: Final = 30.0
_DAY_MS: Final = 86_400_000


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    """A harness without nodes."""
    async with MeshHarness() as harness:
        yield harness


async def states(node: MeshNode) -> dict[str, NodeState]:
    """Return the state of every node, as this node sees it."""
    return {each.node_id: each.state for each in await node.nodes.all()}


# --- the clock ------------------------------------------------------------------------------------


async def test_a_crashed_workers_job_is_completed_by_another_after_its_lease(harness: MeshHarness) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    begun = asyncio.Event()

    @one.worker.handles("work")
    async def hang(context: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    @two.worker.handles("work")
    async def work(context: JobContext) -> str:
        return "done"

    await one.worker.start()
    job = await two.jobs.schedule("work", lease=timedelta(minutes=1))
    async with asyncio.timeout(_PATIENCE_S):
        await begun.wait()
    await harness.kill("one")
    await two.worker.start()
    await harness.clock.advance("59s")
    assert (await two.jobs.find(job)).claimer == "one"
    await harness.clock.advance("2s")
    done = await two.jobs.wait(job, timeout=_PATIENCE_S)
    assert (done.state, done.claimer, done.attempts, done.interruptions) == ("succeeded", "two", 2, 1)


async def test_a_lock_expires_when_the_clock_passes_its_ttl(harness: MeshHarness) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    lock = await one.locks.acquire("release", ttl=30)
    await harness.clock.advance("29s")
    with pytest.raises(LockHeld):
        await two.locks.acquire("release")
    await harness.clock.advance("2s")
    assert (await two.locks.acquire("release")).fence_token > lock.fence_token
    with pytest.raises(StaleFence):
        await one.locks.renew(lock)


async def test_advancing_past_the_ttl_cancels_the_body_of_a_hold(harness: MeshHarness) -> None:
    one, two = await harness.node("one"), await harness.node("two")

    async def work() -> None:
        async with one.locks.hold("release", ttl=60):
            await harness.clock.advance("2h")
            raise AssertionError("the body continued without its lock")

    with pytest.raises(LockLost):
        await work()
    assert await states(one) == {"one": NodeState.ALIVE, "two": NodeState.ALIVE}, "advance ran to its end"
    assert (await two.locks.acquire("release")).holder_node == "two"


async def test_advancing_within_the_ttl_renews_a_hold(harness: MeshHarness) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    async with one.locks.hold("release", ttl=60):
        for _ in range(3):
            await harness.clock.advance("45s")
        with pytest.raises(LockHeld):
            await two.locks.acquire("release")


async def test_advancing_keeps_running_nodes_alive_and_marks_killed_ones_dead(harness: MeshHarness) -> None:
    one, _ = await harness.node("one"), await harness.node("two")
    await harness.node("three")
    await harness.kill("two")
    await harness.leave("three")
    assert await states(one) == {"one": NodeState.ALIVE, "two": NodeState.ALIVE, "three": NodeState.LEFT}
    await harness.clock.advance("5m")
    assert await states(one) == {"one": NodeState.ALIVE, "two": NodeState.DEAD, "three": NodeState.LEFT}
    assert [node.node_id for node in await one.nodes.live_nodes_from_db()] == ["one"]


async def test_advancing_redelivers_messages_after_their_lease_and_expires_them(harness: MeshHarness) -> None:
    node = await harness.node()
    await node.messages.send("reader", "lasting", sender="writer")
    await node.messages.send("reader", "passing", sender="other", ttl=600)
    assert len(await node.messages.inbox("reader", lease=60)) == 2
    assert await node.messages.inbox("reader") == []
    await harness.clock.advance("2m")
    assert {each.body for each in await node.messages.inbox("reader", lease=60)} == {"lasting", "passing"}
    await harness.clock.advance("10m")
    assert [each.body for each in await node.messages.inbox("reader")] == ["lasting"]


async def test_advancing_makes_scheduled_jobs_due(harness: MeshHarness) -> None:
    node = await harness.node()

    @node.worker.handles("work")
    async def work(context: JobContext) -> None:
        return None

    await node.worker.start()
    tomorrow = datetime.fromtimestamp(harness.clock.now_ms / 1_000, UTC) + timedelta(days=1)
    job = await node.jobs.schedule("work", run_at=tomorrow)
    await harness.clock.advance("23h")
    assert (await node.jobs.find(job)).state == "pending"
    await harness.clock.advance(timedelta(hours=2))
    assert (await node.jobs.wait(job, timeout=_PATIENCE_S)).state == "succeeded"


async def test_nodes_and_database_share_one_time(harness: MeshHarness) -> None:
    node = await harness.node()
    before = harness.clock.now_ms
    await harness.clock.advance("30d")
    assert harness.clock.now_ms - before >= 30 * _DAY_MS
    assert abs(await node.nodes.now_ms() - harness.clock.now_ms) < 60_000
    assert not node.clock.is_off
    stamp = "SELECT (julianday('now') - 2440587.5) * 86400000, unixepoch() * 1000, datetime('now', '-1 day')"
    julian, epoch, yesterday = (await node.store.read(stamp))[0]
    assert abs(julian - harness.clock.now_ms) < 60_000
    assert abs(epoch - harness.clock.now_ms) < 60_000
    day = time.strftime("%Y-%m-%d", time.gmtime(epoch / 1_000 - 86_400))
    assert yesterday.startswith(day)


@pytest.mark.parametrize("wrong", ["soon", "-5m", timedelta(seconds=-1)])
async def test_the_clock_cannot_be_set_back(harness: MeshHarness, wrong: str | timedelta) -> None:
    before = harness.clock.now_ms
    with pytest.raises((ValueError, BadValue)):
        await harness.clock.advance(wrong)
    assert 0 <= harness.clock.now_ms - before < 60_000


async def test_sql_time_functions_follow_the_manual_clock() -> None:
    at_ms = 1_700_000_000_123
    plain, manual = MemoryEngine(), SharedMemory(lambda: at_ms)
    try:
        for expression in (
            "strftime('%Y-%m-%dT%H:%M:%fZ', {now}, '+30.000 seconds')",
            "strftime('%s', {now})",
            "CAST(round((julianday({now}) - 2440587.5) * 86400000) AS INTEGER)",
            "date({now}), time({now}), datetime({now}, 'start of month')",
            "date('2024-02-28', '+1 day'), julianday('noon'), date(NULL)",
        ):
            own = await manual.query(Statement(f"SELECT {expression.format(now=repr('now'))}"))
            theirs = await plain.query(
                Statement(f"SELECT {expression.format(now=repr('2023-11-14 22:13:20.123'))}")
            )
            assert tuple(own[0]) == tuple(theirs[0])
    finally:
        await plain.close()
        await manual.drop()


# --- nodes ----------------------------------------------------------------------------------------


async def test_a_commit_of_one_node_wakes_the_others(harness: MeshHarness) -> None:
    one, two = await harness.node("one"), await harness.node("two")
    receiving = two.messages.receive("reader")
    waiting = asyncio.ensure_future(anext(receiving))
    await one.messages.send("reader", "hello", sender="writer")
    async with asyncio.timeout(_PATIENCE_S):
        assert (await waiting).body == "hello"
    await receiving.aclose()


async def test_a_killed_node_restarts_with_its_key(harness: MeshHarness) -> None:
    first = await harness.node("one")
    job = await first.jobs.schedule("work")
    await harness.kill("one")
    with pytest.raises(MeshError):
        await first.jobs.schedule("work")
    await harness.clock.advance("5m")
    second = await harness.node("one")
    assert (await second.jobs.find(job)).scheduled_by == "one"
    assert second.identity.key.public == first.identity.key.public
    assert second.incarnation == 2
    assert [report.problem for report in await second.oplog.verify()] == [None]


async def test_a_running_node_is_returned_and_refuses_other_settings(harness: MeshHarness) -> None:
    node = await harness.node("one", agent_id="planner")
    assert await harness.node("one") is node
    assert harness.nodes == ["one"]
    with pytest.raises(BadValue, match="with its own settings"):
        await harness.node("one", agent_id="coder")
    for act in (harness.leave, harness.kill):
        with pytest.raises(NotKnown, match="node two is not running"):
            await act("two")


async def test_variables_and_env_files_of_the_machine_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    monkeypatch.setenv("VOX_MESH_SCOPE_ID", "production")
    (tmp_path / ".env").write_text("VOX_AGENT_ID=coder\n")
    async with MeshHarness() as harness:
        node = await harness.node()
        assert node.store.backend == "memory"
        assert node.store.writer_id.scope_id == ""
        assert node.messages.agent_or_default(None) == "local"
        await node.jobs.schedule("work")
    assert os.listdir(tmp_path) == [".env"]  # noqa: PTH208
