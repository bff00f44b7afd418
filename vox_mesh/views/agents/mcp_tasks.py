"""Views of the tasks of MCP clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from vox_mesh.errors import BadValue, JobNotSucceeded, NotAuthentic
from vox_mesh.jobs.work.mcp_tasks import McpTask, McpTasks
from vox_mesh.model.jobs.mcp_task import McpTaskStatus
from vox_mesh.model.locks.records import iso_of
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.work import AskedView

_MAX_RESULT: Final = 2**20
"""The bytes of a result that is shown; larger ones are read as artifacts."""

POLL_MS: Final = 1_000
"""How often a client should ask for a task that works; a request may wait as long."""


@dataclass(frozen=True)
class McpTaskView:
    """A task. Who has its id, and is the agent that submitted its job, may follow, answer and cancel it.

    `status` is `working`, `input_required`, `completed`, `failed` or `cancelled`. A job that has failed is
    `completed`, with `is_error`; a task is `failed` if the mesh can't say what became of its job. `ttl_ms`:
    how long it is kept from its creation on, null while the job has not ended. `question` and `approval_id`:
    what the task waits for.
    """

    task_id: str
    job_id: str
    status: str
    message: str
    created_at: str
    changed_at: str
    ttl_ms: int | None
    poll_ms: int
    is_error: bool
    reason: str | None
    result: Any
    question: AskedView | None
    approval_id: str | None


def tasks_of(mesh: MeshServices) -> McpTasks:
    """Return the tasks of a mesh."""
    return McpTasks(mesh.store, mesh.jobs, mesh.approvals)


async def view_of(mesh: MeshServices, task: McpTask) -> McpTaskView:
    """Return the view of a task, with the result of its job if that has succeeded."""
    state, result = task.state, None
    if state.status is McpTaskStatus.COMPLETED and not state.is_error:
        read = partial(mesh.artifacts.body, limit=_MAX_RESULT)
        try:
            result = await tasks_of(mesh).result(task, read)
        except (NotAuthentic, JobNotSucceeded) as error:
            state = state._replace(status=McpTaskStatus.FAILED, message=str(error))
        except BadValue as error:  # it is too large, or no JSON
            state = state._replace(message=f"job succeeded; result not shown: {error}")
    approval = task.approval
    reason = task.job.reason if task.job is not None else approval and (approval.reason or approval.refusal)
    return McpTaskView(
        task_id=task.task_id,
        job_id=task.job_id,
        status=state.status.value,
        message=state.message,
        created_at=iso_of(task.created_ms),
        changed_at=iso_of(state.changed_ms),
        ttl_ms=task.ttl_ms,
        poll_ms=POLL_MS,
        is_error=state.is_error,
        reason=reason or None,
        result=result,
        question=None if task.question is None else AskedView.of(task.question),
        approval_id=None if approval is None else approval.request.approval_id,
    )
