"""The tools that show an agent its situation, and the mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vox_mesh.hosts.mcp.caller import OperationFailed
from vox_mesh.hosts.mcp.rows import (
    JOB_DIGITS,
    clip,
    job_row,
    lock_row,
    message_row,
    own_lock_row,
    page_of,
    present,
    question_row,
)
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.hosts.mcp.tools.work import result_of_job

_LIMIT: Final = 20
_FEW: Final = 5

RowOf = Callable[[ToolCall, Mapping[str, Any]], dict[str, Any]]


async def brief(call: ToolCall) -> dict[str, Any]:
    """Show the agent who it is and what there is for it."""
    agent = call.agent
    found = await call.caller.perform("show_brief")
    beat = found["beat"]
    most = None if call.is_full else _FEW
    return present(
        agent=agent,
        node=found["node_id"],
        grants=found["grants"][:most],
        unread=found["unread"] or None,
        locks=[own_lock_row(each) for each in found["locks"][:most]],
        ready=[
            {"job": each["job_id"][:JOB_DIGITS], "kind": clip(each["kind"])} for each in found["ready"][:most]
        ],
        beat=f"{beat['beat_index']}/{beat['bar_len_beats']} {beat['phase']}",
        phase_ends=beat["deadline_at"],
        next=_next_step(found),
    )


def _next_step(found: Mapping[str, Any]) -> str:
    if found["unread"]:
        return "inbox"
    return "take" if found["ready"] else ""


@dataclass(frozen=True)
class _Look:
    """How one sort of things is read: the operation, its inputs by our arguments, and the row."""

    operation: str
    row: RowOf
    query: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None
    is_paged: bool = True
    takes_limit: bool = True


async def look(call: ToolCall) -> dict[str, Any]:
    """Read the state of the mesh."""
    what = call.arguments["what"]
    if what == "output":
        return await _look_at_output(call)
    sort = _LOOKS[what]
    query: dict[str, Any] = {}
    if sort.takes_limit:
        query["limit"] = str(call.arguments.get("limit", _LIMIT))
    query |= call.given(**({"cursor": "next"} if sort.is_paged else {}), **sort.query)
    path = {sort.path: _id_of(call)} if sort.path is not None else {}
    answer = await call.caller.perform(sort.operation, path=path, query=query)
    if sort.path is not None:
        return _one(call, sort, answer)
    items = answer["items"] if isinstance(answer, dict) else answer
    if call.is_full:
        return page_of(what, answer, [call.fence(items, author="mesh")] if items else [])
    return page_of(what, answer, (sort.row(call, each) for each in items))


def _id_of(call: ToolCall) -> str:
    given = call.arguments.get("id")
    if given is None:
        what = call.arguments["what"]
        raise OperationFailed("bad_argument", f"argument id must be given to look at a {what}", "pass id")
    return str(given)


def _one(call: ToolCall, sort: _Look, answer: Mapping[str, Any]) -> dict[str, Any]:
    row = sort.row(call, answer)
    return {**row, "all": call.fence(answer, author="mesh")} if call.is_full else row


async def _look_at_output(call: ToolCall) -> dict[str, Any]:
    """Return the result of a job that has succeeded, or the last of its log."""
    path = {"job": _id_of(call)}
    job = await call.caller.perform("show_job", path=path)
    row = job_row(call, job)
    if job["state"] == "succeeded" and "next" not in call.arguments:
        row |= await result_of_job(call, job["job_id"])
    query = {"limit": str(call.arguments.get("limit", _LIMIT)), **call.given(cursor="next")}
    logs = await call.caller.perform("read_job_logs", path=path, query=query)
    if text := "".join(each["text"] for each in logs["items"]):
        row["log"] = call.fence(text, author=f"job:{row['job']}")
    return {**row, **present(next=logs["next"] if logs["items"] else None)}


def _plain(*names: str) -> RowOf:
    """Return the row of these members, as short lines or numbers."""

    def row(_: ToolCall, item: Mapping[str, Any]) -> dict[str, Any]:
        return present(**{name: _short(item[name]) for name in names if name in item})

    return row


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [clip(each) for each in value[:_LIMIT]]
    return value if isinstance(value, int | float) else clip(value)


def _approval(call: ToolCall, item: Mapping[str, Any]) -> dict[str, Any]:
    row = _plain("approval_id", "state", "agent", "operation")(call, item)
    asked = item["asks_for"]
    return row | present(asks_for=call.fence(asked, author=item["agent"]) if asked else None)


def whole_job_row(call: ToolCall, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one job, with what it was asked to do; that is fenced."""
    manifest = job["manifest"]
    asked = manifest.get("payload", manifest.get("command")) if isinstance(manifest, dict) else manifest
    row = job_row(call, job)
    if asked is not None:
        row["asked"] = call.fence(asked, author=str(job["scheduled_by"]))
    return row | present(
        waits_for=[
            each["job_id"][:JOB_DIGITS] for each in job["predecessors"] if each["state"] != "succeeded"
        ],
        held_back=clip(job["held_back"]),
        outputs=[clip(each.get("name")) for each in job["output_artifacts"]],
    )


def _budget(_: ToolCall, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"subject": clip(item["subject"]), **item["budget"]}


_LOOKS: Final = {
    "jobs": _Look("list_jobs", job_row, {"state": "state", "kind": "kind"}),
    "job": _Look("show_job", whole_job_row, path="job", is_paged=False, takes_limit=False),
    "ready": _Look("list_ready_jobs", job_row, {"kind": "kind"}, is_paged=False),
    "locks": _Look("list_locks", lambda _, each: lock_row(each), {"agent": "id"}),
    "messages": _Look("list_messages", message_row, {"thread": "id", "state": "state"}),
    "message": _Look("show_message", message_row, path="message_uuid", is_paged=False, takes_limit=False),
    "agents": _Look("list_agents", _plain("agent_id", "state", "node_id", "last_seen_at", "grants")),
    "nodes": _Look("list_nodes", _plain("node_id", "state", "role", "kinds", "faults")),
    "questions": _Look("list_questions", question_row, {"to": "id"}, is_paged=False, takes_limit=False),
    "conflicts": _Look(
        "list_conflicts", _plain("conflict_id", "table_name", "row_key", "detected_at", "resolved_at")
    ),
    "approvals": _Look("list_approvals", _approval),
    "kinds": _Look("list_kinds", _plain("kind", "is_paused", "max_running", "rate")),
    "budgets": _Look("list_budgets", _budget),
    "spending": _Look(
        "report_tokens",
        _plain("agent", "account", "kind", "model", "day", "input_tokens", "output_tokens", "money"),
        {"agent": "id"},
        is_paged=False,
        takes_limit=False,
    ),
    "log": _Look(
        "list_entries", _plain("op_id", "kind", "node_id", "agent_id", "hlc"), {"agent": "id", "kind": "kind"}
    ),
}
