"""After a commit, a node whose turn it is not only glances at the pending jobs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended
from tests.support.jobs.jobs_in_hand import claim
from tools.homes import MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement
from vox_mesh.jobs.kinds import JobKinds
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.chooser import Chooser, ClaimChoice
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.jobs.rendezvous import GRACE_MS, Ranking
from vox_mesh.node import MeshNode

_OTHER = "other"
_CAPACITY = 4


@pytest.fixture
async def chooser(local: MeshNode) -> Chooser:
    """The chooser of a node that knows another one with the same capacity, and the situation."""
    chooser = local.worker._chooser
    await chooser.refresh_membership()
    own = await local.nodes.require(local.identity.node_id)
    chooser._others = [own._replace(node_id=_OTHER, capacity=_CAPACITY, kinds='["*"]')]
    chooser._known = frozenset({own.node_id, _OTHER})
    await chooser.read_situation()
    return chooser


async def glance(chooser: Chooser, handled: str = "work") -> ClaimChoice | None:
    """Glance, as the worker for one kind of jobs."""
    return await chooser.glance(_CAPACITY, lambda kind: kind == handled)


async def scheduled(node: MeshNode, *, is_own: bool) -> Job:
    """Schedule a job for which the node ranks first, or the other one; abort the others."""
    own = node.identity.node_id
    ranking = Ranking(own, {own: _CAPACITY, _OTHER: _CAPACITY})
    while True:
        job = await node.jobs.queries.find((await node.jobs.schedule("work")).job_id)
        if ranking.is_first(job.job_id, job.seed) == is_own:
            return job
        await node.jobs.abort(job.job_id)


async def test_without_pending_jobs_there_is_nothing_to_wait_for(chooser: Chooser) -> None:
    assert await glance(chooser) == ClaimChoice([], None)


async def test_a_job_of_its_own_has_to_be_surveyed(local: MeshNode, chooser: Chooser) -> None:
    await scheduled(local, is_own=True)
    assert await glance(chooser) is None


async def test_a_job_of_another_node_waits_for_its_patience(local: MeshNode, chooser: Chooser) -> None:
    job = await scheduled(local, is_own=False)
    assert await glance(chooser) == ClaimChoice([], job.not_before_ms + GRACE_MS)
    assert await glance(chooser, "unhandled") == ClaimChoice([], None)


async def test_a_full_node_is_passed_over_by_the_next(local: MeshNode, chooser: Chooser) -> None:
    held = await scheduled(local, is_own=False)
    chooser._others = [each._replace(capacity=1) for each in chooser._others]
    await claim(local, held)
    await local.store.write(Script(Statement("UPDATE jobs SET claimer = ? WHERE id = ?", (_OTHER, held.id))))
    await scheduled(local, is_own=False)
    assert await glance(chooser) is None


async def test_many_pending_jobs_have_to_be_surveyed(local: MeshNode, chooser: Chooser) -> None:
    for _ in range(5):
        await scheduled(local, is_own=False)
    assert await glance(chooser) is None


async def test_a_job_that_waits_for_another_has_to_be_surveyed(local: MeshNode, chooser: Chooser) -> None:
    first = await scheduled(local, is_own=False)
    await local.jobs.schedule("work", after=[first.job_id])
    assert await glance(chooser) is None


async def test_rules_that_keep_a_job_back_are_read_again(local: MeshNode, chooser: Chooser) -> None:
    await JobKinds(local.store, local.jobs.queries, local.permits).pause("work")
    await chooser.read_situation()
    await scheduled(local, is_own=False)
    assert await glance(chooser) is None


async def test_a_job_is_known_to_be_the_turn_of_another_node(local: MeshNode, chooser: Chooser) -> None:
    chooser._grace_ms = 0
    for is_own in (True, False):
        job = await scheduled(local, is_own=is_own)
        ready = await local.jobs.queries.claimable(["work"], 10, at_ms=local.clock.now_ms, but_of=())
        choice = chooser.choose(ready.jobs, _CAPACITY, 1, is_deep=False)
        assert ([each.job_id for each in choice.take], choice.is_others_turn) == ([job.job_id], not is_own)
        await local.jobs.abort(job.job_id)


async def test_only_pending_jobs_of_others_are_claimed_though_the_replica_is_behind(
    tmp_path: Path, shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Mesh.open(MESH_REPLICA.settings(tmp_path, shared_server)) as node:
        worker, queries = node.worker, node.jobs.queries
        own = await node.nodes.require(node.identity.node_id)
        worker._chooser._others = [own._replace(node_id=_OTHER, capacity=_CAPACITY, kinds='["*"]')]
        worker._chooser._seen_s, worker._chooser._grace_ms = float("inf"), 0
        ControlledHandler(node).may_end.set()
        worker._capacity.open(_CAPACITY, ["work"], ())
        job = await scheduled(node, is_own=False)
        await node.store.synced()
        with monkeypatch.context() as behind:
            behind.setattr(queries, "still_pending", AsyncMock(return_value=[]))
            await worker._claim_loop.run_once()
        assert worker.claims_sent == 0
        assert [each.id for each in await queries.still_pending([as_claimable(job)])] == [job.id]
        await worker._claim_loop.run_once()
        assert worker.claims_sent == 1
        assert await queries.still_pending([as_claimable(job)]) == []
        await ended(node, job.job_id)


def as_claimable(job: Job) -> Claimable:
    """Return a job as a survey has it."""
    return Claimable(
        job.id, job.job_id, job.kind, job.priority, job.not_before_ms, job.claim_token, job.seed, None
    )


async def test_an_old_situation_is_read_again(chooser: Chooser) -> None:
    chooser._read_s -= 5.0
    assert await glance(chooser) is None
    await chooser.read_situation()
    assert await glance(chooser) is not None
