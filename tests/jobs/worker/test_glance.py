"""After a commit, a node whose turn it is not only glances at the pending jobs."""

from __future__ import annotations

import pytest

from tests.support.jobs.jobs_in_hand import claim
from vox_mesh import Script, Statement
from vox_mesh.jobs.kinds import JobKinds
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


async def test_an_old_situation_is_read_again(chooser: Chooser) -> None:
    chooser._read_s -= 5.0
    assert await glance(chooser) is None
    await chooser.read_situation()
    assert await glance(chooser) is not None
