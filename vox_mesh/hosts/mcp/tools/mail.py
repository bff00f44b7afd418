"""The tools for messages."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.hosts.mcp.caller import OperationFailed
from vox_mesh.hosts.mcp.rows import message_row, present
from vox_mesh.hosts.mcp.tool_call import ToolCall

_LEASE_S: Final = 600.0
_FEW: Final = 10
_URGENT: Final = 3
_CLAIM: Final = "~"
_MAX_IDS: Final = 100


async def send(call: ToolCall) -> dict[str, Any]:
    """Send a message."""
    body = {
        "to": call.arguments["to"],
        "sender": call.agent,
        "payload": call.arguments["body"],
        **call.given(reply_to="reply_to", thread="thread"),
        **({"priority": _URGENT} if call.arguments.get("urgent") else {}),
    }
    sent = await call.caller.perform("send_message", body=body)
    return {"sent": [{"id": each["message_uuid"], "to": each["receiver_agent"]} for each in sent]}


async def inbox(call: ToolCall) -> dict[str, Any]:
    """Receive messages under a visibility timeout; wait for one if there is none."""
    claim = {"limit": call.arguments.get("limit", _FEW), "lease": _LEASE_S, **call.given(roles="roles")}
    path = {"agent": call.agent}
    received = await call.caller.perform("claim_messages", path=path, body=claim)
    if not received and call.arguments.get("wait_s"):
        query = {"timeout": call.arguments["wait_s"], **_roles(call)}
        await call.caller.perform("wait_for_messages", path=path, query=query)
        received = await call.caller.perform("claim_messages", path=path, body=claim)
    rows = [_received_row(call, each) for each in received]
    return {"messages": rows, **present(next="ack the ids you have dealt with" if rows else "")}


def _roles(call: ToolCall) -> dict[str, str]:
    roles = call.arguments.get("roles")
    return {"roles": ",".join(roles)} if roles else {}


def _received_row(call: ToolCall, message: dict[str, Any]) -> dict[str, Any]:
    row = message_row(call, message)
    row.pop("state", None)
    if message["receiver_agent"] == call.agent:
        row.pop("to", None)
    else:  # another agent with the role might have claimed it since
        row["id"] = f"{row['id']}{_CLAIM}{message['claim_owner']}"
    if call.is_full:
        rest = {name: value for name, value in message.items() if name not in ("payload", "claim_owner")}
        row["all"] = call.fence(rest, author=message["sender_agent"])
    return row


async def ack(call: ToolCall) -> dict[str, Any]:
    """Acknowledge received messages, or reject them."""
    ids = call.arguments["ids"]
    if len(ids) > _MAX_IDS:
        raise OperationFailed("bad_argument", f"ids must be at most {_MAX_IDS}, got {len(ids)}", "split them")
    reason = call.arguments.get("reject")
    done = [await _settle(call, each, reason) for each in ids]
    return {"acked" if reason is None else "rejected": done}


async def _settle(call: ToolCall, handle: str, reason: str | None) -> str:
    name, _, claim_owner = handle.partition(_CLAIM)
    path = {"message_uuid": name}
    if not claim_owner:
        message = await call.caller.perform("show_message", path=path)
        if message["state"] == "acked":
            return str(message["message_uuid"])
        path = {"message_uuid": message["message_uuid"]}
        claim_owner = message["claim_owner"] or ""
        if message["receiver_agent"] != call.agent or not claim_owner:
            raise OperationFailed(
                "not_received", f"message {name[:64]} is not one that you have received", "call inbox first"
            )
    operation, more = ("ack_message", {}) if reason is None else ("nack_message", {"reason": reason})
    settled = await call.caller.perform(operation, path=path, body={"claim_owner": claim_owner, **more})
    return str(settled["message_uuid"])
