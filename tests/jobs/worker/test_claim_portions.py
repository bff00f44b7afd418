"""Portions of claims: workers that share a backlog claim many jobs at a time, and not the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended, idle, scheduled
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker import claim_loop
from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.jobs.worker.chooser import Chooser, ClaimChoice
from vox_mesh.jobs.worker.limits import ClaimBlock
from vox_mesh.model.jobs.rendezvous import Ranking
from vox_mesh.node import MeshNode

_CAPACITY = 4
_OTHERS = ("other-1", "other-2")


@pytest.fixture
async def chooser(local: MeshNode) -> Chooser:
    """The chooser of a node that knows two other ones with the same capacity, and the situation."""
    chooser = local.worker._chooser
    await chooser.refresh_membership()
    own = await local.nodes.require(local.identity.node_id)
    chooser._others = [own._replace(node_id=each, capacity=_CAPACITY, kinds='["*"]') for each in _OTHERS]
    chooser._known = frozenset({own.node_id, *_OTHERS})
    await chooser.read_situation()
    return chooser


async def backlog(node: MeshNode, count: int) -> list[Claimable]:
    """Schedule jobs, and return the claimable ones."""
    await scheduled(node, count)
    return (await node.jobs.queries.claimable(["work"], count, at_ms=node.clock.now_ms, but_of=())).jobs


def places(node: MeshNode, jobs: list[Claimable]) -> list[int]:
    """Return the rank of the node for each job."""
    own = node.identity.node_id
    ranking = Ranking(own, dict.fromkeys((own, *_OTHERS), _CAPACITY))
    return [ranking.place(job.job_id, job.seed) for job in jobs]


async def test_jobs_of_others_are_claimed_from_the_end_of_a_backlog(
    local: MeshNode, chooser: Chooser
) -> None:
    chooser._grace_ms = 0
    jobs = await backlog(local, 30)
    others = [job for job, place in zip(jobs, places(local, jobs), strict=True) if place]
    choice = chooser.choose(others, _CAPACITY, len(others), is_deep=True)
    last_first = others[::-1]
    wanted = sorted(last_first, key=lambda job: places(local, [job]))
    assert (choice.take, choice.is_others_turn, choice.own_count) == (wanted, True, 0)


async def test_overdue_jobs_of_others_are_claimed_first(local: MeshNode, chooser: Chooser) -> None:
    chooser._grace_ms = 0
    jobs = await backlog(local, 30)
    others = [job for job, place in zip(jobs, places(local, jobs), strict=True) if place]
    others[:3] = [job._replace(not_before_ms=job.not_before_ms - 3_600_000) for job in others[:3]]
    choice = chooser.choose(others, _CAPACITY, 5, is_deep=True)
    assert choice.take[:3] == others[:3]
    assert not set(choice.take[3:]) & set(others[:5])


async def test_a_survey_with_too_few_own_jobs_is_followed_by_a_wider_one(
    local: MeshNode, chooser: Chooser
) -> None:
    round_ = local.worker._claim_loop._round
    await scheduled(local, 400)
    kinds = await round_.read_kinds()

    async def survey_size(own_count: int) -> int:
        survey = await round_.survey(kinds, 20, ClaimBlock(), ())
        round_.adapt(survey, ClaimChoice([], None, own_count=own_count), 20)
        return len(survey.jobs)

    assert [await survey_size(own) for own in (3, 19, 20, 40, 41, 41, 41)] == [
        60,
        120,
        240,
        240,
        240,
        120,
        60,
    ]
    survey = await round_.survey(kinds, 20, ClaimBlock(), ())
    for _ in range(2):
        round_.adapt(survey, ClaimChoice([], None), 20)
    assert await survey_size(0) == 240
    round_.adapt(survey._replace(is_deep=False), ClaimChoice([], None), 20)
    assert await survey_size(30) == 240, "it was read to the end"


async def test_a_look_waits_for_the_capacity_of_most_attempts_that_are_about_to_end(local: MeshNode) -> None:
    loop, executor, wake = local.worker._claim_loop, local.worker._executor, local.worker._wake
    ControlledHandler(local)
    local.worker._capacity.open(_CAPACITY, ["work"], ())
    local.worker._capacity.taken = executor.ending_count = 3
    gathering = asyncio.create_task(loop._gather_endings())
    for ending, is_over in ((3, False), (2, False), (1, True)):
        executor.ending_count = ending
        wake.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert gathering.done() is is_over


async def test_a_look_does_not_wait_long_for_results_that_are_not_written(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ControlledHandler(local)
    local.worker._capacity.open(_CAPACITY, ["work"], ())
    local.worker._capacity.taken = local.worker._executor.ending_count = _CAPACITY
    monkeypatch.setattr(claim_loop, "_MAX_ENDING_S", 0.001)
    await asyncio.wait_for(local.worker._claim_loop._gather_endings(), PATIENCE_S)


async def test_attempts_are_about_to_end_while_their_results_are_written(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ControlledHandler(local).may_end.set()
    executor, finisher = local.worker._executor, local.worker._finisher
    counts: list[int] = []

    def counted(
        finish: Callable[[AttemptResult], Awaitable[AttemptResult | None]],
    ) -> Callable[[AttemptResult], Awaitable[AttemptResult | None]]:
        async def finish_counted(result: AttemptResult) -> AttemptResult | None:
            counts.append(executor.ending_count)
            return await finish(result)

        return finish_counted

    monkeypatch.setattr(finisher, "finish", counted(finisher.finish))
    async with local.worker.running(concurrency=_CAPACITY):
        await ended(local, *await scheduled(local, _CAPACITY))
        await idle(local)
    assert (min(counts) > 0, executor.ending_count) == (True, 0)


async def test_the_only_claimant_of_the_only_node_reads_few_jobs_for_one(local: MeshNode) -> None:
    round_ = local.worker._claim_loop._round
    await scheduled(local, 20)
    kinds = await round_.read_kinds()
    surveys = [await round_.survey(kinds, 1, ClaimBlock(), (), claimants=count) for count in (1, 2)]
    assert [len(survey.jobs) for survey in surveys] == [4, 16]
    round_.adapt(surveys[0], ClaimChoice([], None), 1)
    assert len((await round_.survey(kinds, 1, ClaimBlock(), ())).jobs) == 8, "none of the first was claimed"
