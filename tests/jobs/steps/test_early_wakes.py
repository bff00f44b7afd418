"""Early wakes: an operator has a suspended job go on before its time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.jobs.steps.test_waits import suspended
from tests.nodes.test_features import another
from tests.support.jobs.job_desks import ended
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext, Question
from vox_mesh.errors import BadValue, IllegalTransition, StepFailed, StepTimedOut
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.nodes.features import EARLY_WAKES
from vox_mesh.node import MeshNode
from vox_mesh.views.job_steps import steps_of

Wait = Callable[[JobContext], Awaitable[Any]]


async def _fail() -> None:
    raise RuntimeError("no")


@asynccontextmanager
async def _asleep(node: MeshNode, wait: Wait) -> AsyncIterator[Job]:
    """Have the worker of a node begin a job that waits, and yield it suspended."""

    async def handle(context: JobContext) -> str:
        await context.step("before", int)
        try:
            return f"{await wait(context)}"
        except (StepTimedOut, StepFailed) as error:
            return error.code

    async def child(context: JobContext) -> None:
        await context.sleep("1d")

    node.worker.handles("work")(handle)
    node.worker.handles("child")(child)
    job = await node.jobs.schedule("work")
    async with node.worker.running():
        yield await suspended(node, job.job_id)


async def _sleep_twice(context: JobContext) -> int:
    await context.sleep("1d")
    await context.sleep("1ms", name="nap")
    return 1


@pytest.mark.parametrize(
    ("wait", "result"),
    [
        (lambda context: context.sleep("1d"), "None"),
        (_sleep_twice, "1"),
        (lambda context: context.step("retried", _fail, retries=1, backoff="1d"), "step_failed"),
        (lambda context: context.wait_message(thread="t", deadline="1d"), "step_timed_out"),
        (lambda context: context.run_job("child", deadline="1d"), "step_timed_out"),
        (
            lambda context: context.gather(
                context.sleep("1d"), context.wait_message(thread="t", deadline="2d")
            ),
            "step_timed_out",
        ),
    ],
    ids=["sleep", "two sleeps", "retry", "message", "job", "gather"],
)
async def test_a_suspended_job_goes_on_when_it_is_woken(kept: MeshNode, wait: Wait, result: str) -> None:
    async with _asleep(kept, wait) as asleep:
        woken = await kept.jobs.wakes.wake(asleep)
        assert (woken.waits, woken.last_op) == (0, asleep.last_op)
        assert await kept.jobs.result(asleep, timeout=PATIENCE_S) == result
    await kept.store.synced()
    rebuild = Rebuild(kept.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])


async def test_a_woken_sleep_stays_over(local: MeshNode) -> None:
    began: list[int] = []

    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        began.append(context.attempt)
        await context.sleep("1d")
        if len(began) == 2:
            raise RuntimeError("again")

    job = await local.jobs.schedule("work", backoff="1ms")
    async with local.worker.running():
        await local.jobs.wakes.wake(await suspended(local, job.job_id))
        (finished,) = await ended(local, job)
    assert (finished.state, began) == ("succeeded", [1, 2, 3])
    assert [step.state for step in await steps_of(local, finished)] == ["done"]


@pytest.mark.parametrize(
    ("wait", "hint"),
    [
        (lambda context: context.ask(Question("Which?")), "waits for an answer"),
        (lambda context: context.gather(context.ask("Which?"), context.sleep("1d")), "waits for an answer"),
        (lambda context: context.wait_message(thread="t"), "send the message"),
        (lambda context: context.run_job("child"), "abort the job"),
    ],
    ids=["answer", "answer in gather", "message", "job"],
)
async def test_a_job_that_waits_for_no_time_is_not_woken(kept: MeshNode, wait: Wait, hint: str) -> None:
    async with _asleep(kept, wait) as asleep:
        with pytest.raises(IllegalTransition) as refused:
            await kept.jobs.wakes.wake(asleep)
    assert hint in (refused.value.hint or "")
    assert await kept.jobs.find(asleep) == asleep


async def test_only_a_suspended_job_is_woken(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def handle(context: JobContext) -> None:
        if context.attempt == 1:
            raise RuntimeError("later")

    waiting = await local.jobs.schedule("work", run_at=datetime(2100, 1, 1, tzinfo=UTC))
    failed = await local.jobs.schedule("work", backoff="1d")
    async with local.worker.running():
        await suspended(local, failed.job_id)
    for job, what in ((waiting, "is pending"), (failed, "is not suspended")):
        with pytest.raises(IllegalTransition) as refused:
            await local.jobs.wakes.wake(job)
        assert what in (refused.value.hint or "")
    await local.jobs.abort(waiting)
    with pytest.raises(IllegalTransition) as refused:
        await local.jobs.wakes.wake(waiting)
    assert "is aborted" in (refused.value.hint or "")


async def test_no_job_is_woken_early_beside_an_older_node(local: MeshNode) -> None:
    async with _asleep(local, lambda context: context.sleep("1d")) as asleep:
        await another(local, "older", EARLY_WAKES - 1)
        with pytest.raises(BadValue, match="does not know"):
            await local.jobs.wakes.wake(asleep)
