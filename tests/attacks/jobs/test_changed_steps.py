"""Changed steps: an attempt gets only results that a worker of its job has signed, in their order."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from vox_mesh import JobContext
from vox_mesh.errors import NotKnown
from vox_mesh.model.jobs.steps.step_row import NO_LINK
from vox_mesh.node import MeshNode
from vox_mesh.views.job_steps import StepView, page_of_steps

PATIENCE_S: Final = 30.0
OF_JOB: Final = "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
_FORGED: Final = '{"result":"forged"}'


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        (f"UPDATE job_steps SET value = '{_FORGED}' {OF_JOB} AND seq = 2", 1),
        (f"UPDATE job_steps SET value = '{_FORGED}', signature = NULL {OF_JOB} AND seq = 2", 1),
        (f"UPDATE job_steps SET name = 'c' {OF_JOB} AND seq = 1", 0),
        (f"UPDATE job_steps SET value = X'FF' {OF_JOB} AND seq = 3", 2),
        (f"DELETE FROM job_steps {OF_JOB} AND seq = 3", 2),
        (f"DELETE FROM job_steps {OF_JOB} AND seq = 1", 0),
        (f"UPDATE job_steps SET seq = seq + 1 {OF_JOB} AND seq = 3", 2),
    ],
)
async def test_a_changed_step_and_all_after_it_run_again(
    owner: MeshNode, hostile: HostileWriter, sql: str, kept: int
) -> None:
    ran: list[tuple[int, str]] = []
    seen: list[list[Any]] = []
    may_go_on = asyncio.Event()

    @owner.worker.handles("work")
    async def work(context: JobContext) -> None:
        async def result(name: str) -> str:
            ran.append((context.attempt, name))
            return f"{name} is genuine"

        seen.append([await context.step(name, result, name) for name in "abc"])
        if context.attempt == 1:
            hostile.run(sql, context.job.job_id)
            raise RuntimeError("again")
        may_go_on.set()

    job = await owner.jobs.schedule("work", backoff="10ms")
    async with asyncio.timeout(PATIENCE_S), owner.worker.running():
        await may_go_on.wait()
        assert (await owner.jobs.wait(job)).state == "succeeded"
    # A signature covers all rows before it. One that is changed breaks what comes after it.
    assert seen == [["a is genuine", "b is genuine", "c is genuine"]] * 2
    assert [name for attempt, name in ran if attempt == 2] == [*"abc"][kept:]


async def test_steps_of_another_job_are_not_believed(owner: MeshNode, hostile: HostileWriter) -> None:
    ran: list[str] = []
    was_planted = asyncio.Event()

    @owner.worker.handles("work")
    async def work(context: JobContext) -> str:
        async def result() -> str:
            ran.append(context.payload)
            return f"of {context.payload}"

        if context.payload == "victim" and context.attempt == 1:
            hostile.run(
                "INSERT INTO job_steps SELECT scope_id, repository_id, ?3, seq, place, name, kind, state,"
                " value, claim_token, began_ms, ended_ms, link, start_op, signature FROM job_steps"
                " WHERE scope_id = ?1 AND repository_id = ?2",
                context.job.job_id,
            )
            assert len(await owner.jobs.steps.stored(context.job.job_id)) == 1
            was_planted.set()
            raise RuntimeError("again")
        return str(await context.step("result", result))

    async with asyncio.timeout(PATIENCE_S), owner.worker.running():
        await owner.jobs.wait(await owner.jobs.schedule("work", "other"))
        victim = await owner.jobs.schedule("work", "victim", backoff="10ms")
        assert await owner.jobs.result(victim) == "of victim"
    assert ran == ["other", "victim"]
    assert was_planted.is_set()


async def test_a_forged_step_is_not_believed_though_others_share_its_signature(
    owner: MeshNode, hostile: HostileWriter
) -> None:
    arrived, may_begin = asyncio.Semaphore(0), asyncio.Event()
    signatures: list[str | None] = []
    seen: list[str] = []

    @owner.worker.handles("work")
    async def work(context: JobContext) -> None:
        async def result() -> str:
            return f"of {context.payload}"

        arrived.release()
        await may_begin.wait()
        seen.append(await context.step("result", result))
        if context.attempt == 1:
            (row,) = await owner.jobs.steps.stored(context.job.job_id)
            signatures.append(row.signature)
            if context.payload == "victim":
                forged = row._replace(value=_FORGED).placed(1, row.start_op, NO_LINK)
                sql = f"UPDATE job_steps SET value = '{_FORGED}', link = '{forged.link}' {OF_JOB}"
                hostile.run(sql, context.job.job_id)
            raise RuntimeError("again")

    async with asyncio.timeout(PATIENCE_S), owner.worker.running(concurrency=2):
        jobs = [await owner.jobs.schedule("work", each, backoff="10ms") for each in ("victim", "other")]
        for _ in jobs:
            await arrived.acquire()
        may_begin.set()
        for job in jobs:
            await owner.jobs.wait(job)
    assert len({str(each).partition("+")[0] for each in signatures}) == 1
    assert all("+" in str(each) for each in signatures)
    assert sorted(seen) == ["of other", "of other", "of victim", "of victim"]


@pytest.mark.parametrize(
    "sql",
    [
        f"UPDATE job_steps SET value = '{_FORGED}' {OF_JOB} AND seq = 1",
        f"UPDATE job_steps SET value = '{_FORGED}', signature = NULL {OF_JOB} AND seq = 1",
    ],
)
async def test_a_fork_takes_over_only_what_a_worker_has_signed(
    owner: MeshNode, hostile: HostileWriter, sql: str
) -> None:
    seen: list[list[str]] = []

    @owner.worker.handles("work")
    async def work(context: JobContext) -> None:
        seen.append([await context.step(name, lambda: "genuine") for name in "abc"])

    job = await owner.jobs.schedule("work", max_attempts=1)
    async with asyncio.timeout(PATIENCE_S), owner.worker.running():
        await owner.jobs.wait(job)
    fork = await owner.jobs.forks.fork(job, "c")
    hostile.run(sql, job.job_id)
    with pytest.raises(NotKnown, match="step b"):
        await owner.jobs.forks.fork(job, "b")
    async with asyncio.timeout(PATIENCE_S), owner.worker.running():
        ended = await owner.jobs.wait(fork)
    assert (ended.state, seen) == ("failed", [["genuine"] * 3])
    assert "are not there as they were" in (ended.reason or "")


async def test_no_compensation_runs_for_an_abort_that_no_node_has_signed(
    owner: MeshNode, hostile: HostileWriter
) -> None:
    async def undo() -> None:
        raise AssertionError("the job goes on")

    @owner.worker.handles("work")
    async def work(context: JobContext) -> None:
        await context.on_cancel(undo)
        await context.wait_message()

    job = await owner.jobs.schedule("work")
    async with asyncio.timeout(PATIENCE_S), owner.worker.running():
        async for seen in owner.jobs.watch(job.job_id):
            if seen.state == "pending" and seen.attempts:
                break
    hostile.run(f"UPDATE jobs SET state = 'aborted', ended_ms = 1 {OF_JOB}", job.job_id)
    await owner.store.synced()
    await owner._job_maintenance.run_once()
    assert await owner.jobs.queries.counts() == {"work": {"aborted": 1}}


async def test_a_worker_that_has_lost_its_claim_can_store_no_step(owner: MeshNode) -> None:
    results: list[str] = []
    has_tried = asyncio.Event()

    @owner.worker.handles("work")
    async def work(context: JobContext) -> None:
        if context.attempt == 1:
            await owner.jobs.yield_job(context.job.job_id)
            try:
                await context.step("late", lambda: "from the late worker")
            finally:  # refused, or cancelled because the loss of the claim was noticed first
                has_tried.set()
        await has_tried.wait()
        results.append(await context.step("late", lambda: "from its successor"))

    async with asyncio.timeout(PATIENCE_S), owner.worker.running():
        job = await owner.jobs.schedule("work")
        ended = await owner.jobs.wait(job)
    rows = await owner.jobs.steps.verified(ended.job_id)
    assert results == ["from its successor"]
    assert [(row.claim_token, row.document) for row in rows] == [(ended.claim_token, {"result": results[0]})]


@pytest.mark.parametrize(
    ("sql", "shown", "signed"),
    [
        (f"UPDATE job_steps SET value = '{_FORGED}' {OF_JOB} AND seq = 3", "abcd", "ab"),
        (f"UPDATE job_steps SET place = 'x', seq = 'y' {OF_JOB} AND seq = 4", "abc", "abc"),
        (f"DELETE FROM job_steps {OF_JOB} AND seq = 2", "acd", "ad"),
        (f"UPDATE job_steps SET link = X'FF' {OF_JOB} AND seq = 2", "acd", "ad"),
        (f"UPDATE job_steps SET seq = -9223372036854775808 {OF_JOB} AND seq = 4", "abc", "abc"),
        (f"UPDATE job_steps SET seq = 9223372036854775807 {OF_JOB} AND seq = 4", "abcd", "abc"),
        (f"UPDATE job_steps SET name = X'FF' {OF_JOB} AND seq = 1", "bcd", "cd"),
    ],
)
async def test_pages_show_what_of_their_steps_a_worker_has_signed(
    owner: MeshNode, hostile: HostileWriter, sql: str, shown: str, signed: str
) -> None:
    @owner.worker.handles("work")
    async def work(context: JobContext) -> None:
        for name in "abcd":
            await context.step(name, int)

    job = await owner.jobs.schedule("work")
    async with asyncio.timeout(PATIENCE_S), owner.worker.running():
        finished = await owner.jobs.wait(job)
    hostile.run(sql, job.job_id)
    found: list[StepView] = []
    while page := await page_of_steps(owner, finished, found[-1].place if found else 0, 2):
        found += page
    assert "".join(each.name for each in found) == shown
    assert "".join(each.name for each in found if each.is_signed) == signed
    assert all(each.value is None for each in found if not each.is_signed)
