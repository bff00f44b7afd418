"""The town: nodes that share a database in memory, and a clock that moves all of them and it."""

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
from vox_mesh.testing import Town

_PATIENCE_S: Final = 30.0
_DAY_MS: Final = 86_400_000


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    """A town without anybody."""
    async with Town() as town:
        yield town


async def states(node: MeshNode) -> dict[str, NodeState]:
    """Who is here, as a node sees it."""
    return {each.node_id: each.state for each in await node.nodes.all()}


# --- the clock ------------------------------------------------------------------------------------


async def test_a_job_whose_worker_died_is_done_by_another_when_its_lease_has_run_out(town: Town) -> None:
    one, two = await town.node("one"), await town.node("two")
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
    await town.kill("one")
    await two.worker.start()
    await town.clock.turn("59s")
    assert (await two.jobs.find(job)).claimer == "one"
    await town.clock.turn("2s")
    done = await two.jobs.wait(job, timeout=_PATIENCE_S)
    assert (done.state, done.claimer, done.attempts, done.failures) == ("succeeded", "two", 2, 1)


async def test_a_lock_that_nobody_renews_is_over_when_its_time_is(town: Town) -> None:
    one, two = await town.node("one"), await town.node("two")
    lock = await one.locks.acquire("release", ttl=30)
    await town.clock.turn("29s")
    with pytest.raises(LockHeld):
        await two.locks.acquire("release")
    await town.clock.turn("2s")
    assert (await two.locks.acquire("release")).fence_token > lock.fence_token
    with pytest.raises(StaleFence):
        await one.locks.renew(lock)


async def test_work_under_a_lock_is_stopped_when_the_clock_is_turned_beyond_its_time(town: Town) -> None:
    one, two = await town.node("one"), await town.node("two")

    async def work() -> None:
        async with one.locks.hold("release", ttl=60):
            await town.clock.turn("2h")
            raise AssertionError("it goes on without a lock")

    with pytest.raises(LockLost):
        await work()
    assert await states(one) == {"one": NodeState.ALIVE, "two": NodeState.ALIVE}, (
        "the turn was made to its end"
    )
    assert (await two.locks.acquire("release")).holder_node == "two"


async def test_a_lock_that_is_held_for_a_body_is_renewed_when_the_clock_is_turned(town: Town) -> None:
    one, two = await town.node("one"), await town.node("two")
    async with one.locks.hold("release", ttl=60):
        for _ in range(3):
            await town.clock.turn("45s")
        with pytest.raises(LockHeld):
            await two.locks.acquire("release")


async def test_who_lives_ticks_when_the_clock_is_turned_and_who_died_is_seen_to_be_dead(town: Town) -> None:
    one, _ = await town.node("one"), await town.node("two")
    await town.node("three")
    await town.kill("two")
    await town.leave("three")
    assert await states(one) == {"one": NodeState.ALIVE, "two": NodeState.ALIVE, "three": NodeState.LEFT}
    await town.clock.turn("5m")
    assert await states(one) == {"one": NodeState.ALIVE, "two": NodeState.DEAD, "three": NodeState.LEFT}
    assert [node.node_id for node in await one.nodes.live_nodes_from_db()] == ["one"]


async def test_messages_come_again_after_their_lease_and_expire_with_their_time(town: Town) -> None:
    node = await town.node()
    await node.messages.send("reader", "lasting", sender="writer")
    await node.messages.send("reader", "passing", sender="other", ttl=600)
    assert len(await node.messages.inbox("reader", lease=60)) == 2
    assert await node.messages.inbox("reader") == []
    await town.clock.turn("2m")
    assert {each.body for each in await node.messages.inbox("reader", lease=60)} == {"lasting", "passing"}
    await town.clock.turn("10m")
    assert [each.body for each in await node.messages.inbox("reader")] == ["lasting"]


async def test_what_was_to_be_done_later_is_due_when_the_clock_is_turned(town: Town) -> None:
    node = await town.node()

    @node.worker.handles("work")
    async def work(context: JobContext) -> None:
        return None

    await node.worker.start()
    tomorrow = datetime.fromtimestamp(town.clock.now_ms / 1_000, UTC) + timedelta(days=1)
    job = await node.jobs.schedule("work", run_at=tomorrow)
    await town.clock.turn("23h")
    assert (await node.jobs.find(job)).state == "pending"
    await town.clock.turn(timedelta(hours=2))
    assert (await node.jobs.wait(job, timeout=_PATIENCE_S)).state == "succeeded"


async def test_the_nodes_and_the_database_show_the_same_time(town: Town) -> None:
    node = await town.node()
    before = town.clock.now_ms
    await town.clock.turn("30d")
    assert town.clock.now_ms - before >= 30 * _DAY_MS
    assert abs(await node.nodes.now_ms() - town.clock.now_ms) < 60_000
    assert not node.clock.is_off
    stamp = "SELECT (julianday('now') - 2440587.5) * 86400000, unixepoch() * 1000, datetime('now', '-1 day')"
    julian, epoch, yesterday = (await node.store.read(stamp))[0]
    assert abs(julian - town.clock.now_ms) < 60_000
    assert abs(epoch - town.clock.now_ms) < 60_000
    day = time.strftime("%Y-%m-%d", time.gmtime(epoch / 1_000 - 86_400))
    assert yesterday.startswith(day)


@pytest.mark.parametrize("wrong", ["soon", "-5m", timedelta(seconds=-1)])
async def test_the_clock_is_turned_on_and_never_back(town: Town, wrong: str | timedelta) -> None:
    before = town.clock.now_ms
    with pytest.raises((ValueError, BadValue)):
        await town.clock.turn(wrong)
    assert 0 <= town.clock.now_ms - before < 60_000


async def test_a_memory_home_by_its_own_clock_answers_as_one_by_the_machines() -> None:
    at_ms = 1_700_000_000_123
    plain, turned = MemoryEngine(), SharedMemory(lambda: at_ms)
    try:
        for asked in (
            "strftime('%Y-%m-%dT%H:%M:%fZ', {now}, '+30.000 seconds')",
            "strftime('%s', {now})",
            "CAST(round((julianday({now}) - 2440587.5) * 86400000) AS INTEGER)",
            "date({now}), time({now}), datetime({now}, 'start of month')",
            "date('2024-02-28', '+1 day'), julianday('noon'), date(NULL)",
        ):
            own = await turned.query(Statement(f"SELECT {asked.format(now=repr('now'))}"))
            theirs = await plain.query(
                Statement(f"SELECT {asked.format(now=repr('2023-11-14 22:13:20.123'))}")
            )
            assert tuple(own[0]) == tuple(theirs[0])
    finally:
        await plain.close()
        await turned.drop()


# --- nodes ----------------------------------------------------------------------------------------


async def test_nodes_hear_of_each_others_commits_at_once(town: Town) -> None:
    one, two = await town.node("one"), await town.node("two")
    receiving = two.messages.receive("reader")
    waiting = asyncio.ensure_future(anext(receiving))
    await one.messages.send("reader", "hello", sender="writer")
    async with asyncio.timeout(_PATIENCE_S):
        assert (await waiting).body == "hello"
    await receiving.aclose()


async def test_a_node_that_died_may_come_again_with_the_key_it_had(town: Town) -> None:
    first = await town.node("one")
    job = await first.jobs.schedule("work")
    await town.kill("one")
    with pytest.raises(MeshError):
        await first.jobs.schedule("work")
    await town.clock.turn("5m")
    second = await town.node("one")
    assert (await second.jobs.find(job)).scheduled_by == "one"
    assert second.identity.key.public == first.identity.key.public
    assert second.incarnation == 2
    assert [report.problem for report in await second.oplog.verify()] == [None]


async def test_a_node_is_there_once_and_has_the_settings_that_it_began_with(town: Town) -> None:
    node = await town.node("one", agent_id="planner")
    assert await town.node("one") is node
    assert town.nodes == ["one"]
    with pytest.raises(BadValue, match="settings of its own"):
        await town.node("one", agent_id="coder")
    for act in (town.leave, town.kill):
        with pytest.raises(NotKnown, match="no node two"):
            await act("two")


async def test_nothing_of_the_machine_reaches_a_town(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    monkeypatch.setenv("VOX_MESH_SCOPE_ID", "production")
    (tmp_path / ".env").write_text("VOX_AGENT_ID=somebody\n")
    async with Town() as town:
        node = await town.node()
        assert node.store.home == "memory"
        assert node.store.tenant.scope_id == ""
        assert node.messages.agent_or_default(None) == "local"
        await node.jobs.schedule("work")
    assert os.listdir(tmp_path) == [".env"]  # noqa: PTH208
