"""The checks of tasks find ones that are gone, lead elsewhere, or do not stay ended."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest

from proof.checkers.tasks import TASK_CHECKS
from tests.proof.checkers.story import Story, faults

_HASH = hashlib.sha256(b"id").hexdigest()


def _kept(*, row: dict[str, Any] | None, item: dict[str, Any] | None, accepted: int = 1) -> Story:
    story = Story()
    story.did("ann", "task.create", {}, task="id", job="j1")
    if row is not None:
        story.final("mcp_tasks", **row)
    if item is not None:
        payload = orjson.dumps({"jobs": [{"job_id": "j0"}, item]}).decode()
        story.final("agent_oplog", kind="ScheduleJob", accepted=accepted, payload=payload)
    return story


_ROW = {"task_hash": _HASH, "job_id": "j1"}
_ITEM = {"task": _HASH, "job_id": "j1"}


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_kept(row=_ROW, item=_ITEM), ""),
        (_kept(row=None, item=_ITEM), "leads to None in the table"),
        (_kept(row={**_ROW, "job_id": "j2"}, item=_ITEM), "leads to j2 in the table"),
        (_kept(row={**_ROW, "task_hash": "id"}, item=_ITEM), "leads to None in the table"),
        (_kept(row=_ROW, item=None), "leads to None in the log"),
        (_kept(row=_ROW, item={**_ITEM, "job_id": "j2"}), "leads to j2 in the log"),
        (_kept(row=_ROW, item=_ITEM, accepted=0), "leads to None in the log"),
    ],
)
def test_a_task_that_does_not_lead_to_its_job_is_found(story: Story, fault: str) -> None:
    found = " ".join(faults(TASK_CHECKS, "tasks-none-lost", story))
    assert fault in found
    assert bool(found) is bool(fault)


def _seen(*seen: tuple[str | None, str | None]) -> Story:
    story = Story()
    story.did("ann", "task.create", {}, task="id", job="j1")
    for job, status in seen:
        story.did("ann", "task.get", {"task": "id"}, job=job, status=status)
    return story


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        (_seen(("j1", "working"), ("j1", "input_required"), ("j1", "working"), ("j1", "completed")), ""),
        (_seen(("j1", "cancelled"), ("j1", "cancelled")), ""),
        (_seen(("j1", "cancelled"), ("j1", "completed")), "was cancelled, and later completed"),
        (_seen(("j1", "completed"), ("j1", "working")), "was completed, and later working"),
        (_seen((None, None)), "was found with job None"),
        (_seen(("j2", "working")), "was found with job j2"),
    ],
)
def test_a_task_that_is_gone_or_goes_on_after_its_end_is_found(story: Story, fault: str) -> None:
    found = " ".join(faults(TASK_CHECKS, "tasks-end-once", story))
    assert fault in found
    assert bool(found) is bool(fault)
