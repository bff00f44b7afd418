"""The tools of operators."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.hosts.mcp.caller import OperationFailed
from vox_mesh.hosts.mcp.rows import clip, lock_row, present, question_row
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.hosts.mcp.tools.locks import key_of

_SIDES: Final = ("left", "right", "merge")
_DECISIONS: Final = ("approve", "deny")


async def resolve(call: ToolCall) -> dict[str, Any]:
    """Settle a conflict, a question or an approval."""
    what, given, value = call.arguments["what"], call.arguments["id"], call.arguments["value"]
    reason = call.given(reason="reason")
    if what == "question":
        asked = await call.caller.perform("answer_question", path={"job": given}, body={"answer": value})
        return question_row(call, asked)
    if what == "approval":
        if value not in _DECISIONS:
            raise OperationFailed("bad_argument", "value must be approve or deny for an approval")
        decided = await call.caller.perform(value, path={"approval": given}, body=reason)
        return present(approval=decided["approval_id"], state=decided["state"])
    if not isinstance(value, dict) and value not in _SIDES:
        raise OperationFailed("bad_argument", "value must be left, right, merge or a row for a conflict")
    chosen = {"value": value} if isinstance(value, dict) else {"take": value}
    done = await call.caller.perform("resolve_conflict", path={"conflict_id": given}, body=chosen | reason)
    return present(**{name: clip(each) for name, each in done.items()})


async def break_lock(call: ToolCall) -> dict[str, Any]:
    """Break the locks on a key."""
    body = {"lock_key": key_of(call.arguments["key"]), "reason": call.arguments["reason"]}
    done = await call.caller.perform("break_lock", body=body)
    return {"op": done["op_id"], "broken": [lock_row(each) for each in done["broken"]]}


async def pause(call: ToolCall) -> dict[str, Any]:
    """Pause a kind of jobs, or resume it."""
    operation = "resume_kind" if call.arguments.get("resume") else "pause_kind"
    rules = await call.caller.perform(operation, path={"kind": call.arguments["kind"]})
    return {"kind": clip(rules["kind"]), "paused": rules["is_paused"]}


async def budget(call: ToolCall) -> dict[str, Any]:
    """Set or remove a budget."""
    limits = call.given(max_tokens="max_tokens", max_money="max_money")
    body = {"subject": call.arguments["subject"], "budget": limits or None, **call.given(anew="restart")}
    done = await call.caller.perform("set_budget", body=body)
    return {"subject": clip(done["subject"]), "budget": done["budget"], "removed": not limits}
