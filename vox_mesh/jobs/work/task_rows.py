"""Rows of tasks of MCP clients: recorded in the transaction that schedules their jobs, and later pruned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

MAX_TASKS: Final = 1_000
"""The maximum number of tasks of an agent. The oldest go whose jobs have ended."""

RETENTION_MS: Final = 7 * 24 * 3_600_000
"""How long a task is kept after its job has ended."""

NOT_NEW: Final = "job_not_new"
"""The refusal of a task for a job that existed before."""

TOO_MANY: Final = "too_many_tasks"
"""The refusal of a task if too many jobs of the agent's tasks are open."""

_SQL: Final = named("mcp_tasks")
_PRUNED_AT_ONCE: Final = 500

_MeshId = tuple[str, str]


class TaskRow(NamedTuple):
    """Where to look for a task: a row alone proves nothing."""

    job_id: str
    approval_id: str | None
    created_ms: int


def record_tasks(
    mesh: _MeshId, op_id: str, agent: str, tasks: Sequence[tuple[str, str]]
) -> tuple[Statement, ...]:
    """Return what records the tasks of jobs that an op schedules: pairs of a job's id and a hash.

    They must follow the statement that schedules the jobs.
    """
    values = (*mesh, op_id, agent, orjson.dumps(tasks).decode())
    return (
        Statement(_SQL["record"], values),
        Statement(_SQL["refuse_unless_recorded"], values, refusal=NOT_NEW),
        *_bound(mesh, agent),
    )


def record_asked(mesh: _MeshId, hashed: str, job_id: str, agent: str, approval_id: str) -> Script:
    """Return what records the task of a job that is scheduled after an approval only."""
    values = (*mesh, hashed, job_id, agent, approval_id)
    return Script(Statement(_SQL["record_asked"], values), *_bound(mesh, agent))


def _bound(mesh: _MeshId, agent: str) -> tuple[Statement, ...]:
    limit = (*mesh, agent, MAX_TASKS)
    return (
        Statement(_SQL["make_room"], limit),
        Statement(_SQL["refuse_if_many"], limit, refusal=TOO_MANY),
    )


async def find_row(store: Store, hashed: str) -> TaskRow | None:
    """Return the row of a task; `None` if there is none, or none that a node can have written."""
    rows = await store.read(_SQL["find"], (*store.mesh_id, hashed), fresh=True)
    if not rows:
        return None
    job_id, approval_id, created_ms = rows[0]
    is_sound = isinstance(job_id, str) and isinstance(approval_id, str | None) and type(created_ms) is int
    return TaskRow(job_id, approval_id, created_ms) if is_sound else None


async def forget_tasks(store: Store, now_ms: int) -> None:
    """Remove the tasks whose jobs ended long ago, and old ones without a job."""
    values = (*store.mesh_id, now_ms - RETENTION_MS)
    if (await store.read(_SQL["is_any_over"], values)).value:
        await store.write(Script(Statement(_SQL["forget"], (*values, _PRUNED_AT_ONCE))))
