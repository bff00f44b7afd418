"""The wire form of tasks: documents of the protocol, made of what the API answers about a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh.hosts.mcp.rows import JOB_DIGITS, clip, present
from vox_mesh.hosts.mcp.tasks.elicitation import input_requests
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.hosts.mcp.toolbox import ToolResult, error_line

EXTENSION: Final = "io.modelcontextprotocol/tasks"
_INTERNAL_ERROR: Final = -32603
_WORKING: Final = "working"


def task_of(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every document about a task has."""
    return {
        "taskId": task["task_id"],
        "status": task["status"],
        "statusMessage": task["message"],
        "createdAt": task["created_at"],
        "lastUpdatedAt": task["changed_at"],
        "ttlMs": task["ttl_ms"],
        "pollIntervalMs": task["poll_ms"],
    }


def detailed_task(call: ToolCall, task: Mapping[str, Any], *, can_elicit: bool) -> dict[str, Any]:
    """Return a task that works, ended without a result, or asks something.

    A client that can't be asked sees a task that works, and who else may answer.
    """
    document = task_of(task)
    if task["status"] == "failed":
        return document | {"error": {"code": _INTERNAL_ERROR, "message": task["message"]}}
    if task["status"] == "input_required":
        if can_elicit:
            return document | {"inputRequests": input_requests(call, task)}
        hint = (
            "by `vox-mesh job answer`" if task["approval_id"] is None else "by `vox-mesh approvals approve`"
        )
        return document | {"status": _WORKING, "statusMessage": f"{task['message']}, {hint}"}
    return document


def result_of_task(call: ToolCall, task: Mapping[str, Any]) -> ToolResult:
    """Return the result of a completed task, as the tool would have returned it."""
    short = task["job_id"][:JOB_DIGITS]
    if task["is_error"]:
        reason = clip(task["reason"])
        detail = f"{task['message']}: {reason}" if reason else task["message"]
        return ToolResult(None, error_line("job_failed", detail, f"look what=job id={short}"))
    row = present(job=short, state="succeeded", is_new=True)
    if task["result"] is not None:
        row["result"] = call.fence(task["result"], author=f"job:{short}")
    elif task["message"] != "job succeeded":
        row["note"] = clip(task["message"])
    return ToolResult(row)
