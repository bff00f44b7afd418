"""Forks: a new job begins with the stored steps of another one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs.job_desks import ended
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext, Script, Statement
from vox_mesh.errors import IllegalTransition, NotKnown
from vox_mesh.node import MeshNode


class Counted:
    """A handler of five steps that counts how often each has run."""

    def __init__(self, node: MeshNode, fails: bool = False) -> None:
        self.ran: list[str] = []
        self.fails = fails
        node.worker.handles("work")(self.handle)

    async def handle(self, context: JobContext) -> list[Any]:
        """Run them, two at the same time."""
        first = await context.step("a", self._run, "a")
        both = await context.gather(context.step("b", self._run, "b"), context.step("c", self._run, "c"))
        await context.sleep("1ms")
        last = await context.step("d", self._fail_or_run)
        return [first, *both, last, context.payload]

    async def _run(self, name: str) -> str:
        self.ran.append(name)
        return f"{name}{len(self.ran)}"

    async def _fail_or_run(self) -> str:
        if self.fails:
            raise RuntimeError("not yet")
        return await self._run("d")


@pytest.mark.parametrize(
    ("step", "again"), [("a", "abcd"), ("b", "bcd"), ("c", "cd"), ("d", "d"), ("5", "d")]
)
async def test_a_fork_runs_the_steps_from_one_on(local: MeshNode, step: str, again: str) -> None:
    counted = Counted(local)
    job = await local.jobs.schedule("work", "payload")
    async with local.worker.running():
        result = await local.jobs.result(job, timeout=PATIENCE_S)
        counted.ran.clear()
        fork = await local.jobs.forks.fork(job, step)
        forked = await local.jobs.result(fork, timeout=PATIENCE_S)
    assert "".join(sorted(counted.ran)) == again
    kept = 4 - len(again)
    assert forked[:kept] == result[:kept]
    assert forked[-1] == "payload"
    rows = await local.jobs.steps.verified(fork.job_id)
    assert len({row.place for row in rows}) == 5
    assert (await local.jobs.find(fork)).state == "succeeded"


async def test_a_fork_is_another_job_each_time(local: MeshNode) -> None:
    Counted(local)
    job = await local.jobs.schedule("work")
    async with local.worker.running():
        await ended(local, job)
        forks = [await local.jobs.forks.fork(job, "d") for _ in range(2)]
        await ended(local, *forks)
        again = await local.jobs.forks.fork(forks[0], "c")
        assert {each.state for each in await ended(local, *forks, again)} == {"succeeded"}
    assert len({job.job_id, again.job_id, *(fork.job_id for fork in forks)}) == 4


async def test_a_failed_job_goes_on_from_its_stored_steps(local: MeshNode) -> None:
    counted = Counted(local, fails=True)
    job = await local.jobs.schedule("work", max_attempts=1)
    async with local.worker.running():
        assert (await ended(local, job))[0].state == "failed"
        counted.ran.clear()
        counted.fails = False
        resumed = await local.jobs.forks.resume(job)
        assert (await local.jobs.forks.resume(job)).job_id == resumed.job_id
        assert (await ended(local, resumed))[0].retry_of == job.job_id
    assert counted.ran == ["d"]


async def test_only_what_has_failed_is_resumed_and_only_a_stored_step_is_forked(local: MeshNode) -> None:
    Counted(local)
    job = await local.jobs.schedule("work")
    with pytest.raises(IllegalTransition):
        await local.jobs.forks.resume(job)
    with pytest.raises(NotKnown, match="step a"):
        await local.jobs.forks.fork(job, "a")


async def test_a_job_without_steps_is_resumed_from_its_beginning(local: MeshNode) -> None:
    @local.worker.handles("plain")
    async def handle(context: JobContext) -> int:
        return context.attempt

    job = await local.jobs.schedule("plain")
    await local.jobs.abort(job)
    async with local.worker.running():
        assert await local.jobs.result(await local.jobs.forks.resume(job), timeout=PATIENCE_S) == 1


async def test_a_fork_fails_if_the_steps_are_not_there_any_more(local: MeshNode) -> None:
    Counted(local)
    job = await local.jobs.schedule("work")
    async with local.worker.running():
        await ended(local, job)
    fork = await local.jobs.forks.fork(job, "d")
    await local.store.write(_drop(job.job_id))
    async with local.worker.running():
        (failed,) = await ended(local, fork)
    assert failed.state == "failed"
    assert "are not there as they were" in (failed.reason or "")


def _drop(job_id: str) -> Script:
    return Script(Statement("DELETE FROM job_steps WHERE job_id = ? AND seq = 3", (job_id,)))
