"""Tasks of MCP clients: submit a job under an unguessable id, and follow, answer and cancel it by that id.

A task needs no process: every node can serve it, as long as the mesh keeps it. What a task is, the op says
that scheduled its job; its row only tells which job to look at.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vox_mesh.errors import ApprovalPending, BadValue, MeshError, NotAuthentic, NotKnown, Refused
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.results import ReadArtifact
from vox_mesh.jobs.work.task_rows import (
    MAX_TASKS,
    NOT_NEW,
    RETENTION_MS,
    TOO_MANY,
    TaskRow,
    find_row,
    record_asked,
)
from vox_mesh.model.grants.approval import Approval, ApprovalState
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.mcp_task import (
    ID_BYTES,
    McpTaskState,
    McpTaskStatus,
    can_answer,
    is_task_id,
    names_task,
    state_of_approval,
    state_of_job,
    task_hash,
    task_id_of,
)
from vox_mesh.model.jobs.question import AskedQuestion
from vox_mesh.model.jobs.records import TASK, Job, JobState
from vox_mesh.oplog.grants.approvals import Approvals
from vox_mesh.store.acting import current_principal
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

CANCELLED: Final = "cancelled by its task"
"""The reason of a job that is aborted because its task was cancelled."""

_DEBOUNCE_S: Final = 0.05
_HINTS: Final = {
    NOT_NEW: "the same job exists: pass `new`, or schedule it without a task",
    TOO_MANY: f"an agent may have {MAX_TASKS:,} tasks whose jobs are open: cancel some, or wait for them",
}


class McpTask(NamedTuple):
    """A task as its client sees it, and what it waits for."""

    task_id: str
    job_id: str
    agent: str
    created_ms: int
    state: McpTaskState
    job: Job | None = None
    question: AskedQuestion | None = None
    """What the client is asked."""
    approval: Approval | None = None
    """What the job needs before it is scheduled."""

    @property
    def status(self) -> McpTaskStatus:
        """Return the status."""
        return self.state.status

    @property
    def ttl_ms(self) -> int | None:
        """Return how long the task is kept, from its creation; `None` while its job has not ended."""
        ended_ms = self.state.ended_ms
        return None if ended_ms is None else max(0, ended_ms - self.created_ms) + RETENTION_MS


class _Found(NamedTuple):
    """A task whose agent and job a signed op names."""

    hashed: str
    row: TaskRow
    agent: str


class McpTasks:
    """Creates, finds, answers and cancels tasks."""

    def __init__(self, store: Store, jobs: Jobs, approvals: Approvals) -> None:
        self._store = store
        self._jobs = jobs
        self._approvals = approvals

    async def create(self, manifest: Manifest, *, new: bool = True) -> McpTask:
        """Schedule a job, and its task in the same transaction: any node can serve it from now on.

        If the agent's grant needs an approval, the task waits for that. Raises `Refused` as `job_not_new` if
        the job exists, which only happens without `new`, and `DatabaseUnavailable` while the database is
        unreachable: a task is never spooled.
        """
        task_id = task_id_of(self._jobs.random_bytes(ID_BYTES))
        (item,) = await self._jobs.items_for([manifest], new=new)
        item = {**item, TASK: task_hash(task_id)}
        try:
            await self._jobs.schedule_items([item], new=True, spool=False)
        except ApprovalPending as pending:
            approval = await self._approvals.find(pending.approval_id)
            agent = approval.request.agent
            row = (task_hash(task_id), item["job_id"], agent, pending.approval_id)
            await self._store.write(record_asked(self._store.mesh_id, *row))
        except Refused as refused:
            refused.hint = _HINTS.get(refused.reason, refused.hint)
            raise
        return await self.find(task_id)

    async def find(self, task_id: str) -> McpTask:
        """Return a task. Raises `NotKnown` if there is none, or if it is of another agent."""
        return await self._read(task_id, await self._find(task_id))

    async def wait(self, task_id: str, timeout_s: float) -> McpTask:
        """Return a task as soon as it has ended or asks for something, or after this time."""
        found = await self._find(task_id)
        task = await self._read(task_id, found)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                if task.status is not McpTaskStatus.WORKING:
                    return task
                async for turn in self._store.changes(debounce_s=_DEBOUNCE_S):
                    with turn.retry_if_unavailable():
                        task = await self._read(task_id, found, fresh=False)
                        if task.status is not McpTaskStatus.WORKING:
                            return task
        return task

    async def cancel(self, task_id: str) -> McpTask:
        """Abort the job of a task, or withdraw what it asks an approval for; an ended one is unchanged."""
        task = await self.find(task_id)
        if task.status.is_end:
            return task
        if task.job is not None:
            with suppress(Refused):  # it has ended meanwhile
                await self._jobs.abort(task.job, reason=CANCELLED)
        elif task.approval is not None:
            with suppress(Refused):  # it was decided meanwhile
                await self._approvals.deny(task.approval.request.approval_id, CANCELLED)
        return await self.find(task_id)

    async def answer(self, task_id: str, question_id: str, answer: Any) -> McpTask:
        """Answer what a task asks. An answer to anything else is ignored.

        Raises `BadValue` if the answer does not fit the question.
        """
        task = await self.find(task_id)
        asked = task.question
        if task.job is None or asked is None or asked.question_id != question_id:
            return task
        await self._jobs.questions.answer(task.job, answer, question_id=question_id)
        return await self.find(task_id)

    async def result(self, task: McpTask, read: ReadArtifact | None = None) -> Any:
        """Return the result of a job that has succeeded, as signed ops say; `read` reads its artifact.

        Raises `NotAuthentic` if no signed op says so, and others if it can't be read.
        """
        assert task.job is not None
        return await self._jobs.predecessor_results.result_of(task.job, read)

    # --- finding ---------------------------------------------------------------------------------

    async def _find(self, task_id: str) -> _Found:
        """Return a task of the acting agent, or any for the owner's side. Raises `NotKnown` otherwise."""
        hashed = task_hash(task_id)
        row = await find_row(self._store, hashed) if is_task_id(task_id) else None
        agent = None if row is None else await self._agent_of(row, hashed)
        principal = current_principal()
        if row is None or agent is None or principal not in (None, agent):
            raise NotKnown("task not found", hint="it may have expired: look for its job")
        return _Found(hashed, row, agent)

    async def _agent_of(self, row: TaskRow, hashed: str) -> str | None:
        """Return the agent that has submitted the job of a task; `None` if no signed op says so."""
        try:
            named = await self._named_in_log(row, hashed)
        except MeshError as error:
            if not isinstance(error, NotKnown | NotAuthentic | BadValue):
                raise
            named = None
        if named is None:
            _log.error("task ignored, no signed op names it: job_id=%s", str(row.job_id)[:64])
        return named

    async def _named_in_log(self, row: TaskRow, hashed: str) -> str | None:
        job = await self._find_job(row.job_id)
        if job is None:
            return None if row.approval_id is None else await self._named_in_request(row, hashed)
        (scheduled,) = await self._jobs.authorship.scheduled_as([job])
        if scheduled is None or not names_task(scheduled.item, hashed):
            return None
        op = await self._jobs.authorship.ends.find_op(scheduled.op_id)
        return None if op is None else op.agent

    async def _named_in_request(self, row: TaskRow, hashed: str) -> str | None:
        request = (await self._approvals.find(str(row.approval_id))).request
        items = request.operation.values.get("jobs")
        named = [each for each in items or () if names_task(each, hashed)]
        return request.agent if any(each.get("job_id") == row.job_id for each in named) else None

    async def _find_job(self, job_id: str, *, fresh: bool = True) -> Job | None:
        return (await self._jobs.queries.find_all([job_id], fresh=fresh)).get(job_id)

    # --- reading ---------------------------------------------------------------------------------

    async def _read(self, task_id: str, found: _Found, *, fresh: bool = True) -> McpTask:
        row = found.row
        task = McpTask(
            task_id, row.job_id, found.agent, row.created_ms, _LOST._replace(changed_ms=row.created_ms)
        )
        job, approval = await self._find_job(row.job_id, fresh=fresh), None
        if job is None and row.approval_id is not None:
            approval = await self._approvals.find(row.approval_id)
            if approval.state is ApprovalState.APPLIED:
                job = await self._find_job(row.job_id)
        if job is not None:
            return await self._with_job(task._replace(job=job), job)
        if approval is not None:
            return task._replace(state=state_of_approval(approval), approval=approval)
        return task

    async def _with_job(self, task: McpTask, job: Job) -> McpTask:
        times = (job.created_ms, job.started_ms, job.ended_ms)
        if job.fault is not None or not all(isinstance(each, int | None) for each in times):
            return task._replace(state=_UNREADABLE._replace(changed_ms=task.created_ms))
        asked = await self._jobs.questions.of(job.job_id) if job.state == JobState.PENDING else None
        state = state_of_job(job, asked, task.agent)
        is_asked = asked is not None and asked.answered_by is None and can_answer(asked, task.agent)
        return task._replace(state=state, question=asked if is_asked else None)


_LOST: Final = McpTaskState(McpTaskStatus.FAILED, "job not found: the database was rolled back", 0)
_UNREADABLE: Final = McpTaskState(McpTaskStatus.FAILED, "job can't be read: its row was changed", 0)
