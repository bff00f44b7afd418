"""Tasks of MCP clients: durable with their jobs, found by their ids alone, and of one agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import PATIENCE_S, NodeGroup
from tests.support.oplog.authoring import assert_sound
from vox_mesh.errors import ApprovalPending, BadValue, NotKnown, Refused
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.jobs.work import task_rows
from vox_mesh.jobs.work.mcp_tasks import McpTasks
from vox_mesh.jobs.work.reports import failed, needs_input, succeeded
from vox_mesh.jobs.work.task_rows import NOT_NEW, RETENTION_MS, TOO_MANY
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.mcp_task import task_hash
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import SCHEDULE
from vox_mesh.node import MeshNode
from vox_mesh.store.acting import acting_as_principal
from vox_mesh.testing.harness import MeshHarness

_WORK: Final = Manifest.of(kind="work")


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness


def tasks_of(node: MeshNode) -> McpTasks:
    """The tasks, as a node serves them."""
    return McpTasks(node.store, node.jobs, node.approvals)


async def work(node: MeshNode, report: Any) -> None:
    """Take a job, and report this about it."""
    (taken,) = await node.work.take("worker", wait=PATIENCE_S)
    await node.work.report(taken.job, taken.claim_token, report)


async def test_a_task_follows_its_job_to_its_result(node: MeshNode) -> None:
    tasks = tasks_of(node)
    with acting_as_principal("amy"):
        task = await tasks.create(_WORK)
        assert (task.status, task.agent, task.ttl_ms) == ("working", "amy", None)
        assert task.job_id == (await node.jobs.find(task.job_id)).job_id
        waiting = asyncio.create_task(tasks.wait(task.task_id, PATIENCE_S))
    await work(node, succeeded({"n": 3}))
    done = await waiting
    assert (done.status, done.state.is_error, await tasks.result(done)) == ("completed", False, {"n": 3})
    assert done.ttl_ms is not None
    assert done.ttl_ms >= RETENTION_MS
    rebuild = Rebuild(node.store)
    assert (await rebuild.check(), rebuild.findings) == ([], [])
    await assert_sound(node)


async def test_a_task_is_served_by_another_node_and_without_the_one_that_created_it(
    crowd: NodeGroup,
) -> None:
    first, second = await crowd.node("one"), await crowd.node("two")
    task = await tasks_of(first).create(_WORK)
    found = await tasks_of(second).find(task.task_id)
    assert (found.job_id, found.status, found.created_ms) == (task.job_id, "working", task.created_ms)
    cancelled = await tasks_of(second).cancel(task.task_id)
    assert cancelled.status == "cancelled"
    assert (await tasks_of(first).find(task.task_id)).status == "cancelled"


async def test_the_task_is_in_the_transaction_of_its_job_and_only_as_a_hash(local: MeshNode) -> None:
    task = await tasks_of(local).create(_WORK)
    (op,) = await ops(local, SCHEDULE)
    assert task_hash(task.task_id) in op.payload
    rows = await local.store.read("SELECT * FROM mcp_tasks")
    assert [row["task_hash"] for row in rows] == [task_hash(task.task_id)]
    assert task.task_id not in op.payload + str([tuple(row) for row in rows])
    assert len(task.task_id) * 6 >= 128
    others = {(await tasks_of(local).create(_WORK)).task_id for _ in range(20)}
    assert len(others) == 20


async def test_a_question_of_the_job_is_answered_through_its_task(local: MeshNode) -> None:
    tasks = tasks_of(local)
    with acting_as_principal("amy"):
        task = await tasks.create(_WORK)
    await work(local, needs_input(Question("Which?", choices=["a", "b"])))
    with acting_as_principal("amy"):
        asked = await tasks.wait(task.task_id, PATIENCE_S)
        assert asked.question is not None
        assert (asked.status, asked.question.document["text"]) == ("input_required", "Which?")
        question_id = asked.question.question_id
        with pytest.raises(BadValue):
            await tasks.answer(task.task_id, question_id, "c")
        assert (await tasks.answer(task.task_id, "another", "a")).status == "input_required"
        assert (await tasks.answer(task.task_id, question_id, "b")).status == "working"
        assert (await tasks.answer(task.task_id, question_id, "a")).status == "working"  # it is over
    (taken,) = await local.work.take("worker", wait=PATIENCE_S)
    assert taken.answer == "b"
    await local.work.report(taken.job, taken.claim_token, failed("no", retry=False))
    ended = await tasks.find(task.task_id)
    assert (ended.status, ended.state.is_error) == ("completed", True)
    assert (await tasks.cancel(task.task_id)).status == "completed"


async def test_a_question_for_another_agent_is_not_asked_of_the_client(local: MeshNode) -> None:
    tasks = tasks_of(local)
    with acting_as_principal("amy"):
        task = await tasks.create(_WORK)
    await work(local, needs_input(Question("Which?", to="lead")))
    found = await tasks.find(task.task_id)
    assert (found.status, found.question) == ("working", None)
    assert "lead" in found.state.message


async def test_a_task_waits_for_an_approval_and_then_for_its_job(local: MeshNode) -> None:
    tasks = tasks_of(local)
    await local.grants.admit("amy")
    await local.grants.issue("amy", ["ask job.schedule"])
    with acting_as_principal("amy"):
        task = await tasks.create(_WORK)
        assert task.approval is not None
        approval_id = task.approval.request.approval_id
        assert (task.status, task.job) == ("input_required", None)
    with acting_as_principal("eve"), pytest.raises(NotKnown):
        await tasks.find(task.task_id)
    await local.approvals.approve(approval_id)
    with acting_as_principal("amy"):
        found = await tasks.find(task.task_id)
        assert (found.status, found.job_id) == ("working", task.job_id)
        assert found.job is not None
        denied = await tasks.create(_WORK)
        withdrawn = await tasks.cancel((await tasks.create(_WORK)).task_id)
    assert (withdrawn.status, withdrawn.state.is_error) == ("completed", True)
    assert denied.approval is not None
    await local.approvals.deny(denied.approval.request.approval_id)
    ended = await tasks.find(denied.task_id)
    assert (ended.status, ended.state.is_error) == ("completed", True)
    with acting_as_principal("amy"), pytest.raises(ApprovalPending):
        await local.jobs.schedule("work")


async def test_a_job_that_exists_has_no_new_task(local: MeshNode) -> None:
    task = await tasks_of(local).create(_WORK, new=False)
    with pytest.raises(Refused, match=NOT_NEW):
        await tasks_of(local).create(_WORK, new=False)
    assert (await tasks_of(local).create(_WORK)).job_id != task.job_id
    assert (await tasks_of(local).find(task.task_id)).status == "working"


async def test_an_agent_has_a_bounded_number_of_tasks(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_rows, "MAX_TASKS", 2)
    tasks = tasks_of(local)
    with acting_as_principal("amy"):
        first, second = [await tasks.create(_WORK) for _ in range(2)]
        with pytest.raises(Refused, match=TOO_MANY):
            await tasks.create(_WORK)
        await tasks.cancel(second.task_id)
        third = await tasks.create(_WORK)
        for task in (first, third):
            assert (await tasks.find(task.task_id)).status == "working"
        with pytest.raises(NotKnown):
            await tasks.find(second.task_id)
    with acting_as_principal("bob"):
        await tasks.create(_WORK)
    assert len(await local.jobs.queries.listed()) == 4


async def test_a_task_is_pruned_when_its_job_has_ended_long_ago(harness: MeshHarness) -> None:
    node = await harness.node()
    tasks = tasks_of(node)
    open_task, ended = [await tasks.create(_WORK) for _ in range(2)]
    await harness.clock.advance("8d")
    assert (await tasks.cancel(ended.task_id)).status == "cancelled"
    await harness.clock.advance("6d")
    assert (await tasks.find(ended.task_id)).status == "cancelled"
    await harness.clock.advance("2d")
    with pytest.raises(NotKnown):
        await tasks.find(ended.task_id)
    assert (await tasks.find(open_task.task_id)).status == "working"
