"""Steps of many jobs that are stored in one statement: each is refused alone, and none is stored twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import pytest

from tests.nodes.test_features import another
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext
from vox_mesh.jobs.steps.job_steps import AppendedRows, JobSteps, append_if_held
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.jobs.steps.step_row import NO_LINK, StepRow
from vox_mesh.model.nodes.features import SHARED_SIGNATURES
from vox_mesh.node import MeshNode
from vox_mesh.store.script import Outcome, Script, Statement

_JOBS: Final = 8


@asynccontextmanager
async def running_jobs(node: MeshNode, count: int) -> AsyncIterator[list[Job]]:
    """Have this many jobs running, whose handlers store nothing, until the end."""
    running: asyncio.Queue[Job] = asyncio.Queue()
    is_over = asyncio.Event()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        running.put_nowait(context.job)
        await is_over.wait()

    async with asyncio.timeout(PATIENCE_S), node.worker.running(concurrency=count):
        for number in range(count):
            await node.jobs.schedule("work", number)
        yield [await running.get() for _ in range(count)]
        is_over.set()


def _row(steps: JobSteps, job: Job, after: StepRow | None = None, *, at: int = 1) -> StepRow:
    """Return the next row of a job, signed; without one before it, the row at a number."""
    seq, link = (at, NO_LINK) if after is None else (after.seq + 1, after.link)
    row = StepRow(*(0, seq, "step", "call", "done", '{"result":1}', job.claim_token, 1, 2, NO_LINK, "", None))
    return steps.signed(job.job_id, [row.placed(seq, job.last_op, link)])[0]


def appended_row(steps: JobSteps, job: Job, after: StepRow | None = None) -> AppendedRows:
    return AppendedRows(job, after, [_row(steps, job, after)])


async def _stored(node: MeshNode, *appended: AppendedRows, alone: bool = True) -> list[bool]:
    """Append rows in one statement, alone or among others; return of each job whether they are stored."""
    others = [] if alone else [Script(Statement("SELECT 1"))]
    verdict, *_ = await node.store.write_all([append_if_held(appended), *others])
    assert isinstance(verdict, Outcome)
    found = [row[0] for row in verdict.rows]
    return [found.count(each.job.job_id) == len(each.rows) for each in appended]


@pytest.mark.parametrize("alone", [True, False])
async def test_of_steps_that_are_stored_together_only_those_of_a_late_worker_are_refused(
    node: MeshNode, alone: bool
) -> None:
    steps = node.jobs.steps
    async with running_jobs(node, 3) as jobs:
        late = jobs[1]._replace(claim_token=jobs[1].claim_token - 1)
        appended = [appended_row(steps, job) for job in (jobs[0], late, jobs[2])]
        assert await _stored(node, *appended, alone=alone) == [True, False, True]
        assert [len(await steps.verified(job.job_id)) for job in jobs] == [1, 0, 1]
        other = appended_row(steps, jobs[1]._replace(claimer="another"))
        assert await _stored(node, other, alone=alone) == [False]
        assert await _stored(node, appended_row(steps, jobs[1]), alone=alone) == [True]


@pytest.mark.parametrize("alone", [True, False])
async def test_steps_that_are_sent_twice_are_stored_once(node: MeshNode, alone: bool) -> None:
    steps = node.jobs.steps
    async with running_jobs(node, 2) as jobs:
        appended = [appended_row(steps, job) for job in jobs]
        for sent in (appended, appended, appended[:1]):
            assert all(await _stored(node, *sent, alone=alone))
        assert [len(await steps.verified(job.job_id)) for job in jobs] == [1, 1]


@pytest.mark.parametrize("alone", [True, False])
async def test_a_step_whose_predecessors_are_lost_is_refused_alone(node: MeshNode, alone: bool) -> None:
    steps = node.jobs.steps
    async with running_jobs(node, 2) as jobs:
        appended = [appended_row(steps, job) for job in jobs]
        assert all(await _stored(node, *appended, alone=alone))
        lost, kept = (each.rows[0] for each in appended)
        more = [appended_row(steps, jobs[0], lost._replace(link="lost")), appended_row(steps, jobs[1], kept)]
        assert await _stored(node, *more, alone=alone) == [False, True]
        assert [len(await steps.verified(job.job_id)) for job in jobs] == [1, 2]


async def test_many_jobs_store_their_steps_together_and_one_that_was_yielded_does_not(
    local: MeshNode,
) -> None:
    arrived = asyncio.Semaphore(0)
    is_yielded = asyncio.Event()

    @local.worker.handles("work")
    async def handle(context: JobContext) -> int:
        if context.attempt == 1:
            arrived.release()
            await is_yielded.wait()
        results = [await context.step("number", lambda: context.attempt) for _ in range(3)]
        return sum(results)

    async with asyncio.timeout(PATIENCE_S), local.worker.running(concurrency=_JOBS):
        jobs = [await local.jobs.schedule("work", number) for number in range(_JOBS)]
        for _ in jobs:
            await arrived.acquire()
        await local.jobs.yield_job(jobs[3].job_id)
        is_yielded.set()
        for job in jobs:
            await local.jobs.wait(job)
    results = [await local.jobs.result(job) for job in jobs]
    assert results == [6 if number == 3 else 3 for number in range(_JOBS)]


@pytest.mark.parametrize("taken", [1, 2])
async def test_all_steps_of_a_write_are_stored_though_one_of_their_places_is_taken(
    node: MeshNode, taken: int
) -> None:
    steps = node.jobs.steps

    @node.worker.handles("work")
    async def handle(context: JobContext) -> list[int]:
        await node.store.write(Script(steps.append(context.job.job_id, [_row(steps, context.job, at=taken)])))
        numbers = [context.step("number", partial(int, number)) for number in range(3)]
        return list(await context.gather(*numbers))

    async with asyncio.timeout(PATIENCE_S), node.worker.running():
        job = await node.jobs.schedule("work", max_attempts=1)
        assert await node.jobs.result(job, timeout=PATIENCE_S) == [0, 1, 2]
    assert [row.document for row in await steps.verified(job.job_id)] == [
        {"result": each} for each in range(3)
    ]


async def _signatures(node: MeshNode, count: int) -> list[str]:
    """Have this many jobs store a step at the same time; return the signatures."""
    arrived, may_begin = asyncio.Semaphore(0), asyncio.Event()

    @node.worker.handles("work")
    async def handle(context: JobContext) -> None:
        arrived.release()
        await may_begin.wait()
        await context.now()

    async with asyncio.timeout(PATIENCE_S), node.worker.running(concurrency=count):
        jobs = [await node.jobs.schedule("work", number) for number in range(count)]
        for _ in jobs:
            await arrived.acquire()
        may_begin.set()
        for job in jobs:
            await node.jobs.wait(job)
    rows = [row for job in jobs for row in await node.jobs.steps.verified(job.job_id)]
    return [str(row.signature) for row in rows]


@pytest.mark.parametrize(("count", "shared"), [(1, 0), (2, 1), (9, 1), (19, 3)])
async def test_steps_that_are_stored_together_share_signatures(
    node: MeshNode, count: int, shared: int
) -> None:
    signatures = await _signatures(node, count)
    assert len(signatures) == count
    assert len({own for own, plus, _ in (each.partition("+") for each in signatures) if plus}) == shared


async def test_no_signature_is_shared_while_a_node_lives_that_does_not_know_it(local: MeshNode) -> None:
    await another(local, "older", SHARED_SIGNATURES - 1)
    signatures = await _signatures(local, 2)
    assert len({*signatures}) == 2
    assert not any("+" in each for each in signatures)


async def test_more_steps_at_once_than_one_write_may_have(local: MeshNode) -> None:
    large = "x" * 15_000

    @local.worker.handles("work")
    async def handle(context: JobContext) -> int:
        results = await context.gather(*(context.step("large", partial(str, large)) for _ in range(600)))
        return sum(map(len, results))

    async with asyncio.timeout(PATIENCE_S), local.worker.running():
        job = await local.jobs.schedule("work", max_attempts=1)
        assert await local.jobs.result(job, timeout=PATIENCE_S) == 600 * len(large)
    assert len(await local.jobs.steps.verified(job.job_id)) == 600
