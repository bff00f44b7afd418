"""Tasks of MCP clients: every state of a job has one status, and ids can't be guessed."""

from __future__ import annotations

from typing import Any, Final

import pytest

from vox_mesh.model.grants.approval import Approval, ApprovalRequest, ApprovalState, AskedOperation
from vox_mesh.model.jobs.mcp_task import (
    ID_BYTES,
    McpTaskStatus,
    is_task_id,
    names_task,
    state_of_approval,
    state_of_job,
    task_hash,
    task_id_of,
)
from vox_mesh.model.jobs.question import AskedQuestion
from vox_mesh.model.jobs.records import SCHEDULE, Job, JobState

_ID: Final = "ab" * 32
_ASKED: Final = AskedQuestion(_ID, "q", "worker", None, 70, None, None, None, "{}", None)


def job(state: str, **columns: Any) -> Job:
    """A job in a state, created at 10, started at 20 and ended at 90."""
    times = {"created_ms": 10, "started_ms": 20, "ended_ms": 90}
    blank: dict[str, Any] = dict.fromkeys(Job._fields)
    return Job(**blank | {"job_id": _ID, "state": state, "attempts": 0} | times | columns)


@pytest.mark.parametrize(
    ("state", "asked", "status", "changed_ms", "is_error"),
    [
        ("pending", None, "working", 20, False),
        ("pending", _ASKED, "input_required", 70, False),
        ("pending", _ASKED._replace(asked_of="amy"), "input_required", 70, False),
        ("pending", _ASKED._replace(asked_of="role:lead"), "input_required", 70, False),
        ("pending", _ASKED._replace(asked_of="lead"), "working", 70, False),
        ("pending", _ASKED._replace(answered_by="lead"), "working", 20, False),
        ("claimed", None, "working", 20, False),
        ("claimed", _ASKED, "working", 20, False),
        ("running", None, "working", 20, False),
        ("running", _ASKED, "working", 20, False),
        ("succeeded", None, "completed", 90, False),
        ("succeeded", _ASKED, "completed", 90, False),
        ("failed", None, "completed", 90, True),
        ("failed", _ASKED, "completed", 90, True),
        ("aborted", None, "cancelled", 90, False),
        ("aborted", _ASKED, "cancelled", 90, False),
        ("planted", None, "failed", 10, False),
    ],
)
def test_a_job_has_one_status_in_each_state(
    state: str, asked: AskedQuestion | None, status: str, changed_ms: int, is_error: bool
) -> None:
    found = state_of_job(job(state), asked, "amy")
    assert (found.status, found.changed_ms, found.is_error) == (status, changed_ms, is_error)
    assert found.ended_ms == (changed_ms if found.status.is_end else None)
    if state != "planted":
        assert found.status.is_end == JobState(state).is_end, "a task ends when its job does"


@pytest.mark.parametrize(
    ("state", "status", "is_error"),
    [
        (ApprovalState.PENDING, McpTaskStatus.INPUT_REQUIRED, False),
        (ApprovalState.APPROVED, McpTaskStatus.WORKING, False),
        (ApprovalState.APPLIED, McpTaskStatus.FAILED, False),
        (ApprovalState.DENIED, McpTaskStatus.COMPLETED, True),
        (ApprovalState.REFUSED, McpTaskStatus.COMPLETED, True),
        (ApprovalState.EXPIRED, McpTaskStatus.COMPLETED, True),
    ],
)
def test_a_job_that_is_not_scheduled_has_the_status_of_its_approval(
    state: ApprovalState, status: McpTaskStatus, is_error: bool
) -> None:
    request = ApprovalRequest("id", "amy", "grant", AskedOperation(SCHEDULE, "{}"), 50, "op", 5)
    found = state_of_approval(Approval(request, state))
    assert (found.status, found.is_error) == (status, is_error)
    assert found.changed_ms == (50 if found.status.is_end else 5)


def test_an_id_has_more_than_128_random_bits_and_fits_a_header() -> None:
    made = task_id_of(bytes(range(ID_BYTES)))
    assert ID_BYTES * 8 >= 128
    assert is_task_id(made)
    assert made.isascii()
    assert task_id_of(bytes(ID_BYTES)) != made
    assert not any(map(is_task_id, ("", made[1:], made + "a", f"{made[1:]}\n", f"{made[1:]}/", "é" * 32)))


def test_only_the_entry_with_its_hash_names_a_task() -> None:
    hashed = task_hash("a" * 32)
    assert names_task({"job_id": _ID, "task": hashed}, hashed)
    assert not any(names_task(item, hashed) for item in ({}, {"task": "a" * 32}, None, hashed, [hashed]))
