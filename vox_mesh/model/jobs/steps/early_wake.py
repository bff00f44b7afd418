"""Early wake: which waits an op can end before their time, and which ones it has ended."""

from __future__ import annotations

from typing import Any

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.jobs.steps.step_row import StepKind, StepRow, StepState


def can_end_early(row: StepRow, now_ms: int) -> bool:
    """Return whether the last row of a step waits for a time: a sleep, a retry or a deadline."""
    try:
        at_ms = row.document.get(_field_of(row))
    except (AttributeError, BadValue):  # the workers of a mesh need not have the same version
        return False
    return type(at_ms) is int and at_ms > now_ms


def _field_of(row: StepRow) -> str | None:
    """Return the field of a row that has its time, if it may have one."""
    if row.state == StepState.FAILED:
        return "retry_ms"
    if row.state != StepState.WAITING:
        return None
    return "until_ms" if row.kind == StepKind.SLEEP else "deadline_ms"


def ended_rows(payload: str, job_id: str) -> list[int]:
    """Return the rows of a job that an op has ended; none if it can't be read."""
    try:
        items: Any = parse(payload)["jobs"]
        return [row for item in items if item["job_id"] == job_id for row in item["rows"] if type(row) is int]
    except (BadValue, KeyError, TypeError):
        return []
