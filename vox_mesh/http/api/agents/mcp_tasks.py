"""Tasks of MCP clients: a job under an unguessable id, which any node serves."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from pydantic import Field

from vox_mesh.http.access import Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.api.jobs.manifests import GivenManifest
from vox_mesh.http.api.operations import CALL_S, MAX_WAIT_S, Operations, RequestModel, Text, Wait
from vox_mesh.http.principals.needs import NOTHING, writes
from vox_mesh.http.principals.outputs import refuse_unread_predecessors
from vox_mesh.model.jobs.question import ANSWER
from vox_mesh.model.jobs.records import SCHEDULE
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.agents.mcp_tasks import McpTaskView, tasks_of, view_of

TASKS: Final = Operations("tasks")

TaskId = Annotated[str, Field(min_length=1, max_length=128)]
"""The id of a task, as its client was given it."""


class TaskRequest(RequestModel):
    """The job to schedule; with `new`, also if a job with the same manifest exists."""

    manifest: GivenManifest
    new: bool = False


@TASKS.post("/v1/tasks", needs=writes(SCHEDULE), status=HTTPStatus.CREATED, opens="jobs")
async def create_task(mesh: MeshServices, body: TaskRequest) -> McpTaskView:
    """Schedule a job and return its task; if it needs an approval, the task waits for that."""
    await refuse_unread_predecessors(mesh, [body.manifest])
    return await view_of(mesh, await tasks_of(mesh).create(body.manifest, new=body.new))


class TaskQuery(RequestModel):
    """How long to wait while the task works, by default not at all."""

    wait: Wait = 0.0

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.wait


@TASKS.get("/v1/tasks/{task}", needs=NOTHING, scope=Scope.WRITE, takes_s=MAX_WAIT_S + CALL_S, load=Load.WAIT)
async def show_task(mesh: MeshServices, task: TaskId, query: TaskQuery) -> McpTaskView:
    """Show a task of the acting agent; its job's result, or what it waits for."""
    tasks = tasks_of(mesh)
    return await view_of(mesh, await (tasks.wait(task, query.wait) if query.wait else tasks.find(task)))


@TASKS.post("/v1/tasks/{task}/cancel", needs=NOTHING)
async def cancel_task(mesh: MeshServices, task: TaskId) -> McpTaskView:
    """Abort the job of a task of the acting agent; one that has ended is unchanged."""
    return await view_of(mesh, await tasks_of(mesh).cancel(task))


class TaskAnswerRequest(RequestModel):
    """The question that a task shows, and the answer to it, a JSON value."""

    question_id: Text
    answer: Any


@TASKS.post("/v1/tasks/{task}/answer", needs=writes(ANSWER))
async def answer_task(mesh: MeshServices, task: TaskId, body: TaskAnswerRequest) -> McpTaskView:
    """Answer the question of a task of the acting agent; answers to other questions are ignored."""
    return await view_of(mesh, await tasks_of(mesh).answer(task, body.question_id, body.answer))
