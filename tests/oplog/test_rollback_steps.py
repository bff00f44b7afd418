"""What a rollback does to jobs, patterns, epochs and commands, step by step on a database in memory."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import orjson
import pytest

from tests.support.jobs.staging import LEASE_MS, held, schedule
from tests.support.oplog.authoring import NOTE, RestartableNodes, scene
from vox_mesh import Script, Statement
from vox_mesh.errors import ChainBroken, StaleClaim, StaleFence
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.nodes.store_memory import ROLLED_BACK, TOKENS_RAISED_BY
from vox_mesh.node import MeshNode
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.rows import Rows


class Volume:
    """A database in memory that can be put back."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._connection = engine._connection

    def image(self) -> sqlite3.Connection:
        """A snapshot."""
        image = sqlite3.connect(":memory:")
        self._connection.backup(image)
        return image

    def put_back(self, image: sqlite3.Connection) -> None:
        """Have it be as it was then."""
        image.backup(self._connection)


@pytest.fixture
async def volume() -> AsyncIterator[tuple[RestartableNodes, Volume]]:
    engine = MemoryEngine()
    async with scene(engine) as there:
        yield there, Volume(engine)


async def rollbacks(node: MeshNode) -> list[dict[str, Any]]:
    """What the log says of rollbacks."""
    return [orjson.loads(entry.payload) for entry in await node.oplog.tail(100, kind=ROLLED_BACK)]


async def epochs(node: MeshNode) -> list[int]:
    """The epochs that the database knows."""
    rows = await node.store.read("SELECT epoch FROM store_epochs ORDER BY epoch", fresh=True)
    return [row[0] for row in rows]


async def test_a_claim_of_the_lost_time_is_over_and_the_next_has_a_higher_token(
    volume: tuple[RestartableNodes, Volume],
) -> None:
    there, disk = volume
    async with there.node("a") as a, there.node("b") as b:
        kept, lost, done = [await schedule(a) for _ in range(3)]
        (old,) = await a.worker._claimer.claim([await a.jobs.find(kept)], LEASE_MS)
        image = disk.image()
        claimed = await a.worker._claimer.claim([await a.jobs.find(each) for each in (lost, done)], LEASE_MS)
        await a.run_once()
        disk.put_back(image)
        ended = [held(each.job.job_id, each.job.claim_token, state="succeeded") for each in claimed]
        with pytest.raises(StaleClaim):
            await a.store.write(a.jobs.transitions.complete(ended[:1]))
        (again,) = await b.worker._claimer.claim([await b.jobs.find(lost)], LEASE_MS)
        assert again.job.claim_token > claimed[0].job.claim_token
        assert (await b.jobs.find(done)).claim_token == TOKENS_RAISED_BY
        finished = held(kept, old.job.claim_token, state=JobState.SUCCEEDED)
        await a.store.write(a.jobs.transitions.complete([finished]))  # that claim was there all the time
        assert await Rebuild(a.store).check() == []
        assert len(await rollbacks(a)) == 1


async def test_a_pattern_that_reappears_is_learnt_again(volume: tuple[RestartableNodes, Volume]) -> None:
    there, disk = volume
    async with there.node("a") as a, there.node("b") as b:
        pattern = await a.locks.acquire("file:src/**", ttl=300.0)
        await a.run_once()
        image = disk.image()
        await a.locks.release(pattern)
        await a.locks.sweep_expired_distributed_locks()
        await b.locks.release(await b.locks.acquire("file:doc/*"))
        await b.locks.release(await b.locks.acquire("file:src/x"))
        await b.run_once()
        disk.put_back(image)
        with pytest.raises(Exception, match="file:src/x was not acquired"):
            await b.locks.acquire("file:src/x")


async def test_of_many_that_notice_at_once_one_fences(volume: tuple[RestartableNodes, Volume]) -> None:
    there, disk = volume
    async with there.node("a") as a, there.node("b") as b, there.node("c") as c:
        nodes = (a, b, c)
        for node in nodes:
            await node.oplog.append(NOTE, {})
        image = disk.image()
        for node in nodes:
            await node.run_once()
            await node.oplog.append(NOTE, {})
        disk.put_back(image)
        await asyncio.gather(*(node.oplog.append(NOTE, {}) for node in nodes))
        assert await epochs(a) == [0, 1]
        assert len(await rollbacks(a)) == 1
        assert not [report for report in await a.oplog.verify() if report.problem]
        assert [node.rollbacks for node in nodes] == [1, 1, 1]


async def test_an_epoch_that_has_the_number_of_another_is_distinguished_from_it(
    volume: tuple[RestartableNodes, Volume],
) -> None:
    there, disk = volume
    async with there.node("a") as a, there.node("b") as b:
        for node in (a, b):
            await node.run_once()
        image = disk.image()
        await a.run_once()
        disk.put_back(image)
        await a.run_once()  # which makes epoch 1; b does not hear of it
        disk.put_back(image)
        b._writer.witness.seen = b._writer.witness.memory._replace(beats=2**20)
        await b.run_once()  # which makes another epoch 1
        await a.run_once()
        assert await epochs(a) == [0, 1]
        assert (a.rollbacks, b.rollbacks) == (2, 1)


async def test_a_store_that_goes_back_to_before_it_was_fenced_is_fenced_again(
    volume: tuple[RestartableNodes, Volume],
) -> None:
    there, disk = volume
    async with there.node("a") as a, there.node("b") as b:
        pattern = await a.locks.acquire("file:src/**", ttl=300.0)
        for node in (a, b):
            await node.run_once()
        image = disk.image()
        await a.run_once()
        disk.put_back(image)
        for node in (a, b):
            await node.run_once()
        assert await epochs(a) == [0, 1]
        await a.locks.release(pattern)
        await a.locks.sweep_expired_distributed_locks()
        await b.locks.release(await b.locks.acquire("file:doc/*"))
        disk.put_back(image)
        for node in (a, b):
            await node.run_once()
        assert await epochs(a) == [0, 2]
        assert [each["evidence"] for each in await rollbacks(a)] == ["epoch 0 is below 1"]
        assert [node.rollbacks for node in (a, b)] == [2, 2]
        with pytest.raises(Exception, match="file:src/x was not acquired"):
            await b.locks.acquire("file:src/x")


async def test_the_lease_of_an_inbox_ends_with_a_rollback(volume: tuple[RestartableNodes, Volume]) -> None:
    there, disk = volume
    async with there.node("a") as a:
        await a.run_once()
        image = disk.image()
        await a.messages._leases.run_once(["z"], list)
        assert a.messages._leases.until("z") is not None
        await a.run_once()
        disk.put_back(image)
        await a.run_once()
        assert a.messages._leases.until("z") is None, "the database knows nothing of it"
        await a.messages._leases.run_once(["z"], list)
        assert a.messages._leases.until("z") is not None


@pytest.mark.parametrize("way", ["tick", "lock of two keys"])
async def test_the_loss_of_a_single_entry_is_noticed_by_the_next_tick_or_transaction(
    volume: tuple[RestartableNodes, Volume], way: str
) -> None:
    there, disk = volume
    async with there.node("a") as a:
        await a.run_once()
        await a.locks.release(await a.locks.acquire("task:0"))
        image = disk.image()
        entry = await a.oplog.append(NOTE, {})
        disk.put_back(image)
        if way == "tick":
            await a.run_once()
        else:
            await a.locks.acquire(["task:1", "task:2"])
        (answer,) = await rollbacks(a)
        assert answer["chains"]["a"]["from_seq"] == answer["chains"]["a"]["to_seq"]
        assert entry.key not in {each.op_id for each in await a.oplog.tail(100)}


async def test_the_loss_of_a_lock_alone_gives_no_two_holds_the_same_identity(
    volume: tuple[RestartableNodes, Volume],
) -> None:
    there, disk = volume
    async with there.node("a") as a, there.node("b") as b:
        await a.locks.release(await a.locks.acquire("task:0"))
        image = disk.image()
        lost = await a.locks.acquire("task:1")
        disk.put_back(image)
        new = await b.locks.acquire("task:1")
        assert new.fence_token >= lost.fence_token  # within a millisecond, the request tells them apart
        with pytest.raises(StaleFence):
            await a.store.write(Script(a.locks.guard(lost)))
        with pytest.raises(StaleFence):
            await a.locks.renew(lost)
        assert not await a.locks.release(lost)
        await b.locks.renew(new)
        assert await rollbacks(a) == []


async def test_an_entry_that_was_removed_is_no_rollback(volume: tuple[RestartableNodes, Volume]) -> None:
    there, _ = volume
    async with there.node("a") as a:
        await a.oplog.append(NOTE, {})
        await a.store.write(Script(Statement("DELETE FROM agent_oplog WHERE kind = 'note'")))
        with pytest.raises(ChainBroken):
            await a.oplog.append(NOTE, {})
        assert await epochs(a) == [0]


async def test_who_follows_the_log_hears_of_the_rollback_and_of_what_comes_after(
    volume: tuple[RestartableNodes, Volume],
) -> None:
    there, disk = volume
    async with there.node("a") as a:
        await a.oplog.append(NOTE, {})
        image = disk.image()
        for _ in range(5):
            await a.oplog.append(NOTE, {})
        following = a.oplog.follow(await a.oplog.last_id())
        heard = asyncio.create_task(anext(following))
        await asyncio.sleep(0)
        disk.put_back(image)
        await a.oplog.append(NOTE, {"n": 2})
        assert (await heard).kind == ROLLED_BACK
        assert orjson.loads((await anext(following)).payload) == {"n": 2}
        await following.aclose()


class YieldingEngine(MemoryEngine):
    """A database in memory that lets others run before each query."""

    async def query(self, statement: Statement) -> Rows:
        """Run a query, later."""
        await asyncio.sleep(0)
        return await super().query(statement)


async def test_a_log_that_goes_back_while_it_is_verified_is_judged_as_one_log() -> None:
    """It goes back before each query: an anchor that was read must not be held against the restored log."""
    engine = YieldingEngine()
    async with scene(engine) as there, there.node("a") as a, there.node("b") as b:
        disk = Volume(engine)
        await b.oplog.append(NOTE, {})
        image, after = disk.image(), await a.oplog.verify()
        await b.oplog.append(NOTE, {})
        await a.oplog.anchor()
        lost, before = disk.image(), await a.oplog.verify()
        for queries in count():
            disk.put_back(lost)
            verifying = asyncio.create_task(a.oplog.verify())
            for _ in range(queries + 1):
                await asyncio.sleep(0)
            if verifying.done():
                break
            disk.put_back(image)
            assert await verifying in (before, after), f"it went back after {queries} queries"
        assert not [report for report in (*before, *after) if report.problem]
