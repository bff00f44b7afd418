"""Suspensions while a step is being stored: what was sent is neither removed nor contradicted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.jobs.steps.test_step_batches import appended_row, running_jobs
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext
from vox_mesh.errors import OutcomeUnknown
from vox_mesh.jobs.steps import step_log, step_writer
from vox_mesh.jobs.steps.job_steps import AppendedRows
from vox_mesh.jobs.steps.settled_writes import write_steps
from vox_mesh.jobs.steps.step_writer import StepWriter
from vox_mesh.node import MeshNode
from vox_mesh.store.script import Script, Verdict
from vox_mesh.store.store import Store

_ALONE: Final = step_log
_SHARED: Final = step_writer
_TURNS: Final = 50
"""Of the event loop, which is more than an attempt that waits for nothing needs to end."""


class Answers:
    """Holds back the answer to one write of steps, which is stored by then."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any) -> None:
        self.stored = asyncio.Event()
        self.may_come = asyncio.Event()
        self.is_lost = False
        self.of = ""
        self._is_next = False
        self._write: Callable[..., Any] = module.write_steps
        patch.setattr(module, "write_steps", self._write_steps)

    def hold_next(self) -> None:
        """Hold back the answer to the next write."""
        self._is_next = True

    async def _write_steps(self, store: Store, script: Script, of: str) -> Verdict:
        is_held, self._is_next = self._is_next, False
        verdict: Verdict = await self._write(store, script, of)
        if not is_held:
            return verdict
        self.of = of
        self.stored.set()
        await self.may_come.wait()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return OutcomeUnknown("no answer came", key=script.key) if self.is_lost else verdict


async def _in_two(context: JobContext, first: Any, answers: Answers, pause: str) -> Any:
    """Return the result of a step that is being stored while the other suspends the job."""

    async def sleep() -> None:
        if not answers.stored.is_set():
            await answers.stored.wait()
        await context.sleep(pause)

    async with asyncio.TaskGroup() as group:
        one = group.create_task(first)
        group.create_task(sleep())
    return one.result()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_message_that_is_stored_during_a_suspension_is_not_lost(
    kept_node: MeshNode, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    answers = Answers(monkeypatch, _ALONE)
    answers.is_lost = is_lost

    @kept_node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        await context.sleep("1ms")
        if context.attempt == 2:
            answers.hold_next()
        try:
            return (await _in_two(context, context.wait_message(to="desk"), answers, "1ms")).body
        finally:
            answers.may_come.set()

    sent = await kept_node.messages.send("desk", "the only one", sender="shop")
    job = await kept_node.jobs.schedule("work", max_attempts=1, max_interruptions=1, backoff="1ms")
    async with kept_node.worker.running():
        assert await kept_node.jobs.result(job, timeout=PATIENCE_S) == "the only one"
    assert (await kept_node.messages.queries.get(sent.message_uuid)).state == "acked"
    ended = await kept_node.jobs.find(job.job_id)
    assert (ended.failures, ended.interruptions) == (0, int(is_lost))


@pytest.mark.parametrize("others", [0, 1])
async def test_a_job_is_suspended_after_the_step_that_is_being_stored(
    kept_node: MeshNode, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    answers = Answers(monkeypatch, _SHARED)
    all_run = asyncio.Barrier(others + 1)
    calls: list[Any] = []

    async def call(payload: Any) -> Any:
        calls.append(payload)
        await all_run.wait()
        answers.hold_next()
        return payload

    @kept_node.worker.handles("other")
    async def other(context: JobContext) -> Any:
        return await context.step("call", call, context.payload)

    @kept_node.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        try:
            return await _in_two(context, context.step("call", call, "work"), answers, "1ms")
        finally:
            answers.may_come.set()

    jobs = [await kept_node.jobs.schedule("work", max_attempts=1)]
    jobs += [await kept_node.jobs.schedule("other", "other", max_attempts=1) for _ in range(others)]
    async with kept_node.worker.running(concurrency=2):
        results = [await kept_node.jobs.result(job, timeout=PATIENCE_S) for job in jobs]
    assert results == ["work", "other"][: others + 1]
    assert sorted(calls) == sorted(results)
    assert answers.of == ("jobs=2" if others else f"job_id={jobs[0].job_id}")
    rows = await kept_node.jobs.steps.verified(jobs[0].job_id)
    assert [(row.seq, row.name, row.state) for row in rows] == [(1, "call", "done"), (2, "sleep", "waiting")]


async def test_a_suspension_waits_for_no_answer_once_its_worker_stops(
    kept: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(monkeypatch, _SHARED)
    attempts: list[int] = []
    has_ended = asyncio.Event()

    @kept.worker.handles("work")
    async def handle(context: JobContext) -> Any:
        attempts.append(context.attempt)
        if context.attempt == 1:
            answers.hold_next()
        try:
            return await _in_two(context, context.step("call", lambda: context.attempt), answers, "1ms")
        finally:
            has_ended.set()

    job = await kept.jobs.schedule("work", max_attempts=1)
    async with asyncio.timeout(PATIENCE_S):
        async with kept.worker.running(grace=0):
            await has_ended.wait()
        async with kept.worker.running():
            assert await kept.jobs.result(job) == 1
    assert attempts[:2] == [1, 2]


# --- the writer ----------------------------------------------------------------------------------


class _Source:
    """The steps of an attempt, which are appended once."""

    def __init__(self, appended: AppendedRows) -> None:
        self._appended = appended
        self.stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def take(self) -> AppendedRows:
        return self._appended

    def settle(self, stored: Any) -> None:
        self.stored.set_result(stored is not None)


async def _is_known(_: int) -> bool:
    return True


async def test_of_two_attempts_at_a_job_only_the_later_one_has_stored_its_step(node: MeshNode) -> None:
    steps, writer = node.jobs.steps, StepWriter(node.store, node.jobs.steps, _is_known)
    async with running_jobs(node, 1) as (job,):
        late = job._replace(claim_token=job.claim_token - 1)
        sources = [_Source(appended_row(steps, each)) for each in (late, job)]
        for source in sources:
            writer.submit(source)
        assert [await source.stored for source in sources] == [False, True]
        (row,) = await steps.verified(job.job_id)
        assert row.claim_token == job.claim_token


async def test_others_go_on_though_the_one_that_withdraws_is_cancelled(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def write_slowly(*given: Any) -> Verdict:
        if not begun.is_set():
            begun.set()
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                await may_end.wait()
                raise
        return await write_steps(*given)

    monkeypatch.setattr(step_writer, "write_steps", write_slowly)
    steps, writer = local.jobs.steps, StepWriter(local.store, local.jobs.steps, _is_known)
    async with running_jobs(local, 2) as jobs:
        first, other = (_Source(appended_row(steps, job)) for job in jobs)
        writer.submit(first)
        await begun.wait()
        writer.submit(other)
        withdrawing = asyncio.ensure_future(writer.withdraw(first))
        await asyncio.sleep(0)
        withdrawing.cancel()
        await asyncio.wait([withdrawing])
        may_end.set()
        assert await other.stored
