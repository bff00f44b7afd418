"""The tools for locks."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.hosts.mcp.caller import OperationFailed
from vox_mesh.hosts.mcp.rows import clip, own_lock_row
from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.model.locks.key_spelling import prefix_of
from vox_mesh.model.locks.patterns import FILE

_TTL_S: Final = 600.0


def key_of(text: str) -> str:
    """Return the key that is meant: a text without a prefix is a path from the root of the project."""
    return text if prefix_of(text) or not text else FILE + text


async def lock(call: ToolCall) -> dict[str, Any]:
    """Acquire all keys or none; keys that the agent holds already are renewed."""
    body = {
        "keys": [key_of(text) for text in call.arguments["keys"]],
        "agent": call.agent,
        "ttl": call.arguments.get("ttl_s", _TTL_S),
        "or_renew": True,
        **call.given(wait="wait_s", shared="shared"),
    }
    try:
        held = await call.caller.perform("acquire_lock", body=body)
    except OperationFailed as error:
        raise _with_advice(error) from None
    row = own_lock_row(held)
    return {**row, "renewed": True} if held["is_renewed"] else row


def _with_advice(error: OperationFailed) -> OperationFailed:
    """Return the error with what the agent can do about holders, whom its text names."""
    if not error.more.get("holders"):
        return error
    hint = "wait for it with wait_s, do something else first, or send the holder a message"
    return OperationFailed(error.code, error.detail, hint)


async def unlock(call: ToolCall) -> dict[str, Any]:
    """Release locks of the agent: on the given keys, or all."""
    keys = call.arguments.get("keys")
    released: list[Any] = []
    for key in [None] if keys is None else keys:
        body = {"agent": call.agent} | ({} if key is None else {"lock_key": key_of(key)})
        released += await call.caller.perform("release_held_locks", body=body)
    return {"released": [clip(key) for each in released for key in each["lock_keys"]]}
