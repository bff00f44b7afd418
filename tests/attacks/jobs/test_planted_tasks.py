"""Tasks of MCP clients that others guess, steal, or lead elsewhere."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.errors import NotAuthentic, NotKnown
from vox_mesh.jobs.work.mcp_tasks import McpTasks
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.mcp_task import task_hash
from vox_mesh.node import MeshNode
from vox_mesh.store.acting import acting_as_principal

_WORK: Final = Manifest.of(kind="work")


def tasks_of(node: MeshNode) -> McpTasks:
    """The tasks, as a node serves them."""
    return McpTasks(node.store, node.jobs, node.approvals)


async def test_a_task_of_another_agent_is_not_found(owner: MeshNode) -> None:
    tasks = tasks_of(owner)
    with acting_as_principal("amy"):
        task = await tasks.create(_WORK)
    with acting_as_principal("eve"):
        for attempt in (
            tasks.find(task.task_id),
            tasks.wait(task.task_id, PATIENCE_S),
            tasks.cancel(task.task_id),
            tasks.answer(task.task_id, "any", 1),
        ):
            with pytest.raises(NotKnown, match=r"^task not found$"):
                await attempt
    assert (await tasks.find(task.task_id)).status == "working"


@pytest.mark.parametrize("guess", ["", "x", "a" * 32, "é" * 32, "%", "a" * 4_096, "{job}", "{hash}"])
async def test_neither_a_guess_nor_what_the_database_has_is_an_id(owner: MeshNode, guess: str) -> None:
    tasks = tasks_of(owner)
    task = await tasks.create(_WORK)
    text = guess.format(job=task.job_id, hash=task_hash(task.task_id))
    with pytest.raises(NotKnown, match=r"^task not found$"):
        await tasks.find(text)


async def test_a_row_that_leads_to_another_job_is_not_followed(
    owner: MeshNode, hostile: HostileWriter
) -> None:
    tasks = tasks_of(owner)
    with acting_as_principal("amy"):
        mine, other = [await tasks.create(_WORK) for _ in range(2)]
    foreign = await owner.jobs.schedule("work")
    for job_id in (other.job_id, foreign.job_id, "0" * 64, "x"):
        hostile.run(
            "UPDATE mcp_tasks SET job_id = ?3 WHERE scope_id = ?1 AND repository_id = ?2 AND task_hash = ?4",
            job_id,
            task_hash(mine.task_id),
        )
        with pytest.raises(NotKnown, match=r"^task not found$"):
            await tasks.find(mine.task_id)
    hostile.run("UPDATE mcp_tasks SET agent_id = 'eve' WHERE scope_id = ?1 AND repository_id = ?2")
    with acting_as_principal("eve"), pytest.raises(NotKnown):
        await tasks.find(other.task_id)
    for column in ("job_id", "created_ms", "approval_id"):
        hostile.run(f"UPDATE mcp_tasks SET {column} = x'ff00' WHERE scope_id = ?1 AND repository_id = ?2")
        with pytest.raises(NotKnown):
            await tasks.find(other.task_id)


async def test_a_result_that_is_only_a_row_is_not_given(owner: MeshNode, hostile: HostileWriter) -> None:
    tasks = tasks_of(owner)
    with acting_as_principal("amy"):
        task = await tasks.create(_WORK)
    planted = "UPDATE jobs SET state = 'succeeded', ended_ms = 1"
    hostile.run(f"{planted} WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3", task.job_id)
    found = await tasks.find(task.task_id)
    with pytest.raises(NotAuthentic, match="no signed op"):
        await tasks.result(found)
