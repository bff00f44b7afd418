"""Who gets the work: all that are free, no one twice, and no one waits for the dead longer than one grace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended, scheduled
from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import PATIENCE_S, NodeGroup, crowd_on
from tests.support.running.lengths import SOAK, in_soak
from tools.homes import FILE, MESH_REPLICA, HomeCase
from vox_mesh.model.jobs.records import CLAIM, Job
from vox_mesh.model.jobs.rendezvous import GRACE_MS, RANKS, Ranking
from vox_mesh.node import MeshNode

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

_MANY: Final = 50 if SOAK else 12
_SLACK_MS: Final = 600
"""For a machine on which much else goes on."""

HOMES: Final = pytest.mark.parametrize("case", [FILE, *in_soak(MESH_REPLICA)], ids=str)


class WorkerGroup:
    """Nodes with workers, all on one home."""

    def __init__(self, crowd: NodeGroup, stack: AsyncExitStack) -> None:
        self._crowd = crowd
        self._stack = stack
        self.nodes: list[MeshNode] = []

    async def open(self, count: int, concurrency: int = 4) -> list[ControlledHandler]:
        """This many nodes whose workers are ready, and know of each other."""
        self.nodes = [await self._crowd.node(f"node-{n}") for n in range(count)]
        desks = [ControlledHandler(node) for node in self.nodes]
        for node in self.nodes:
            await node.worker.start(concurrency=concurrency)
            self._stack.push_async_callback(node.worker.stop, 0)
        for node in self.nodes:
            await node.store.synced()
            node.worker._chooser._seen_s = float("-inf")
            await node.worker._chooser.refresh_membership()
            assert node.worker._chooser.count == count
        return desks

    async def stranger(self, name: str) -> MeshNode:
        """One more node, of which the others have not heard."""
        node = await self._crowd.node(name)
        ControlledHandler(node)
        self._stack.push_async_callback(node.worker.stop, 0)
        return node

    async def until_started(self, job_id: str) -> Job:
        """The job, as soon as someone works on it."""
        async with asyncio.timeout(PATIENCE_S):
            async for job in self.nodes[0].jobs.watch(job_id):
                if job.state == "running":
                    return job
        raise AssertionError(job_id)

    @property
    def claims_sent(self) -> int:
        """How many claims all of them have sent."""
        return sum(node.worker.claims_sent for node in self.nodes)


@pytest.fixture
async def shop(request: pytest.FixtureRequest, tmp_path: Path, case: HomeCase) -> AsyncIterator[WorkerGroup]:
    """One on each home."""
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with crowd_on(case, tmp_path, server) as crowd, AsyncExitStack() as stack:
        yield WorkerGroup(crowd, stack)


@HOMES
async def test_equal_work_is_spread_over_all(shop: WorkerGroup) -> None:
    desks = await shop.open(3)
    for desk in desks:
        desk.may_end.set()
    jobs = await scheduled(shop.nodes[0], count := 300 if SOAK else 120)
    done = await ended(shop.nodes[0], *jobs)
    assert {(job.state, job.attempts) for job in done} == {("succeeded", 1)}
    shares = Counter(job.claimer for job in done)
    assert len(shares) == 3
    assert min(shares.values()) >= count / 3 / 3, shares


@HOMES
async def test_of_many_idle_workers_one_claims_a_new_job(shop: WorkerGroup) -> None:
    for desk in await shop.open(_MANY):
        desk.may_end.set()
    for number in range(3):
        await ended(shop.nodes[0], await shop.nodes[0].jobs.schedule("work", number))
    assert shop.claims_sent <= 3 * 4, [node.worker.stats for node in shop.nodes]


@HOMES
async def test_the_one_that_is_free_among_many_busy_ones_begins_at_once(shop: WorkerGroup) -> None:
    desks = await shop.open(_MANY, concurrency=1)
    busy = await scheduled(shop.nodes[0], _MANY - 1)
    await asyncio.gather(*(shop.until_started(job.job_id) for job in busy))
    job = await shop.until_started((await shop.nodes[0].jobs.schedule("work", "now")).job_id)
    assert (job.started_ms or 0) - job.created_ms <= RANKS * GRACE_MS
    for desk in desks:
        await desk.next()
    assert {desk.most for desk in desks} == {1}


@HOMES
async def test_a_job_whose_winner_is_dead_is_begun_by_the_next_after_one_grace(shop: WorkerGroup) -> None:
    for desk in await shop.open(3):
        desk.may_end.set()
    dead = shop.nodes.pop()  # its last tick says that it has places
    for task in dead.worker._tasks:
        task.cancel()
    weights = {"node-0": 4, "node-1": 4, "node-2": 4}
    waits: dict[int, list[int]] = {0: [], 1: []}
    while len(waits[1]) < 3:
        (job,) = await ended(shop.nodes[0], await shop.nodes[0].jobs.schedule("work"))
        place = Ranking("node-2", weights).place(job.job_id, job.seed)
        waits[min(place, 1)].append((job.started_ms or 0) - job.created_ms)
    while not waits[0]:
        (job,) = await ended(shop.nodes[0], await shop.nodes[0].jobs.schedule("work"))
        place = Ranking("node-2", weights).place(job.job_id, job.seed)
        waits[min(place, 1)].append((job.started_ms or 0) - job.created_ms)
    assert all(GRACE_MS <= wait < GRACE_MS + _SLACK_MS for wait in waits[0]), waits
    assert min(waits[1]) < GRACE_MS, waits


@HOMES
async def test_a_crowd_that_wants_the_same_jobs_rarely_claims_without_success(shop: WorkerGroup) -> None:
    for desk in await shop.open(6):
        desk.may_end.set()
    jobs = await scheduled(shop.nodes[0], 200)
    done = await ended(shop.nodes[0], *jobs)
    assert {job.attempts for job in done} == {1}
    refused = [entry for entry in await ops(shop.nodes[0], CLAIM) if not entry.accepted]
    assert len(refused) <= shop.claims_sent / 2, f"{len(refused)} of {shop.claims_sent}"


@pytest.mark.parametrize("case", [FILE], ids=str)
async def test_who_loses_a_job_to_one_it_has_not_seen_looks_around_soon(shop: WorkerGroup) -> None:
    await shop.open(1)
    chooser = shop.nodes[0].worker._chooser
    stranger = await shop.stranger("node-x")
    await stranger.worker.start(concurrency=4)

    async def count_after(seconds: float) -> int:
        chooser._seen_s -= seconds
        await chooser.refresh_membership()
        return chooser.count

    assert await count_after(0.1) == 1, "nodes come and go more slowly than that"
    job = await stranger.jobs.queries.find((await stranger.jobs.schedule("unknown.kind")).job_id)
    assert len(await stranger.worker._claimer.claim([job], 30_000)) == 1
    assert await shop.nodes[0].worker._claimer.claim([job], 30_000) == []
    assert await count_after(0.1) == 2
    chooser.invalidate_membership()
    seen_s = chooser._seen_s
    await chooser.refresh_membership()
    assert chooser._seen_s == seen_s, "not with every job"


@HOMES
async def test_who_has_jobs_and_is_not_known_is_looked_for(shop: WorkerGroup) -> None:
    await shop.open(1)
    chooser = shop.nodes[0].worker._chooser
    await shop.nodes[0].worker.stop()
    stranger = await shop.stranger("stranger")
    await stranger.worker.start(concurrency=4)
    (job,) = await scheduled(stranger, 1)
    await shop.until_started(job.job_id)
    await shop.nodes[0].store.synced()
    chooser._seen_s -= 0.1  # it was looked around a while ago, but less than after which that is done anyway
    assert chooser.count == 1
    await chooser.read_situation()
    assert chooser.count == 2
