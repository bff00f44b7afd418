"""Tasks of MCP clients: the state of a job that a client has submitted, in the words of the protocol; pure.

The client has the id of its task, and the mesh keeps a hash of it: in the op that schedules the job, and in a
table. The database alone is not enough to use a task.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from vox_mesh.model.grants.approval import Approval, ApprovalState
from vox_mesh.model.jobs.question import AskedQuestion
from vox_mesh.model.jobs.records import TASK, Job, JobState
from vox_mesh.model.messages.records import ROLE

ID_BYTES: Final = 24
"""The random bytes of an id: 192 bits, so that no id can be guessed."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{32}", re.ASCII)


class McpTaskStatus(StrEnum):
    """The status of a task, as the protocol names it."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    """Also if the job has failed: that is a result, too."""
    FAILED = "failed"
    """The mesh can't say what became of the job."""
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        """Return whether the status is terminal."""
        return self not in (McpTaskStatus.WORKING, McpTaskStatus.INPUT_REQUIRED)


class McpTaskState(NamedTuple):
    """The status of a task, and why; `changed_ms` is when it became so."""

    status: McpTaskStatus
    message: str
    changed_ms: int
    is_error: bool = False
    """Whether it is completed without success."""

    @property
    def ended_ms(self) -> int | None:
        """Return when the task ended."""
        return self.changed_ms if self.status.is_end else None


def task_id_of(secret: bytes) -> str:
    """Return the id of a task, made of random bytes. Its hash needs no salt."""
    return base64.urlsafe_b64encode(secret).decode()


def is_task_id(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def task_hash(task_id: str) -> str:
    """Return the hash by which the mesh knows a task."""
    return hashlib.sha256(task_id.encode(errors="replace")).hexdigest()


def names_task(item: Any, hashed: str) -> bool:
    """Return whether the entry of a job, in the op that schedules it or asks for that, names a task."""
    return isinstance(item, Mapping) and item.get(TASK) == hashed


def can_answer(asked: AskedQuestion, agent: str) -> bool:
    """Return whether an agent that has submitted a job is asked its question: it names no other agent."""
    return asked.asked_of is None or asked.asked_of == agent or asked.asked_of.startswith(ROLE)


_STATUS: Final = {
    JobState.SUCCEEDED: McpTaskStatus.COMPLETED,
    JobState.FAILED: McpTaskStatus.COMPLETED,
    JobState.ABORTED: McpTaskStatus.CANCELLED,
}


def state_of_job(job: Job, asked: AskedQuestion | None, agent: str) -> McpTaskState:
    """Return the state of the task of a job, which an agent has submitted; `asked` is its last question."""
    started_ms = job.started_ms or job.created_ms
    if job.state in _STATUS:
        is_error = job.state == JobState.FAILED
        ended_ms = job.ended_ms or started_ms
        return McpTaskState(_STATUS[JobState(job.state)], f"job {job.state}", ended_ms, is_error)
    if job.state == JobState.PENDING and asked is not None and asked.answered_by is None:
        if can_answer(asked, agent):
            return McpTaskState(McpTaskStatus.INPUT_REQUIRED, "job waits for an answer", asked.asked_ms)
        return McpTaskState(
            McpTaskStatus.WORKING, f"job waits for an answer of {asked.asked_of}", asked.asked_ms
        )
    if job.state not in tuple(JobState):
        return McpTaskState(McpTaskStatus.FAILED, "job has no known state", job.created_ms)
    attempt = f", attempt {job.attempts}" if job.attempts else ""
    return McpTaskState(McpTaskStatus.WORKING, f"job {job.state}{attempt}", started_ms)


_UNDECIDED: Final = {
    ApprovalState.PENDING: (McpTaskStatus.INPUT_REQUIRED, "job waits for an approval"),
    ApprovalState.APPROVED: (McpTaskStatus.WORKING, "job approved, and not scheduled yet"),
}


def state_of_approval(approval: Approval) -> McpTaskState:
    """Return the state of the task of a job that is not scheduled: it needs an approval."""
    request = approval.request
    if approval.state in _UNDECIDED:
        return McpTaskState(*_UNDECIDED[approval.state], request.asked_ms)
    at_ms = request.expires_ms if approval.decided_ms is None else approval.decided_ms
    if approval.state is ApprovalState.APPLIED:
        return McpTaskState(McpTaskStatus.FAILED, "job approved and scheduled, and it is not there", at_ms)
    return McpTaskState(McpTaskStatus.COMPLETED, f"job not scheduled: approval {approval.state}", at_ms, True)
