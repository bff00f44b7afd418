"""Tasks of MCP clients: jobs that clients submit, follow and cancel by ids that only they have."""

from __future__ import annotations

from functools import partial
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from vox_mesh.errors import NotKnown
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState
from vox_mesh.store.acting import acting_as_principal
from vox_mesh.views.agents.mcp_tasks import tasks_of

CLIENT: Final = "client"
KIND: Final = "task.job"
"""No worker has a handler for it."""

_CREATES: Final = 0.3
_CANCELS: Final = 0.3
_FOLLOWED: Final = 20


async def run(context: WorkloadContext) -> None:
    """Create tasks, and follow and cancel the ones that this process has created."""
    known: list[str] = []
    async for _ in context.rounds():
        if not known or context.rng.random() < _CREATES:
            await _create(context, known)
        else:
            what = "task.cancel" if context.rng.random() < _CANCELS else "task.get"
            await _ask(context, what, context.rng.choice(known[-_FOLLOWED:]))


async def _create(context: WorkloadContext, known: list[str]) -> None:
    with context.recorder.operation("task.create") as record, acting_as_principal(CLIENT):
        task = await tasks_of(context.mesh).create(Manifest.of(kind=KIND))
        record.ok(task=task.task_id, job=task.job_id)
        known.append(task.task_id)


async def _ask(context: WorkloadContext, what: str, task_id: str) -> None:
    tasks = tasks_of(context.mesh)
    with context.recorder.operation(what, task=task_id) as record, acting_as_principal(CLIENT):
        try:
            task = await (tasks.cancel if what == "task.cancel" else tasks.find)(task_id)
            record.ok(job=task.job_id, status=task.status.value)
        except NotKnown:
            record.ok(job=None, status=None)


async def drain(context: WorkloadContext) -> None:
    """End the jobs."""
    await settling.until(context, partial(_are_all_ended, context))


async def _are_all_ended(context: WorkloadContext) -> bool:
    waiting = await context.mesh.jobs.queries.listed(state=JobState.PENDING, kind=KIND, limit=100)
    if waiting:
        await context.mesh.jobs.abort(*waiting)
    return not waiting


TASKS: Final = FunctionWorkload("tasks", run, drain)
