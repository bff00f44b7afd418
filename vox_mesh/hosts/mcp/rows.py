"""Rows: short forms of what operations answer, with the members that a model decides by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from vox_mesh.hosts.mcp.tool_call import ToolCall
from vox_mesh.model.messages.fence import without_hidden

Row = Callable[[Mapping[str, Any]], dict[str, Any]]

JOB_DIGITS: Final = 12
_CLIP: Final = 160
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def clip(text: Any, most: int = _CLIP) -> str | None:
    """Return a text of others as one short line; `None` stays."""
    if text is None:
        return None
    line = without_hidden(_CONTROLS.sub(" ", str(text)))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def present(**members: Any) -> dict[str, Any]:
    """Return the members that say something: neither null, nor empty, nor false."""
    return {name: value for name, value in members.items() if value not in (None, "", False, [], {})}


def seconds(milliseconds: float | None) -> int | None:
    """Return milliseconds as whole seconds."""
    return None if milliseconds is None else round(milliseconds / 1_000)


def job_row(call: ToolCall, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a job; what its worker wrote is fenced."""
    name = job["job_id"][:JOB_DIGITS]
    written = {
        ours: call.fence(clip(text), author=f"job:{name}")
        for ours, theirs in (("reason", "reason"), ("note", "message"))
        if (text := job.get(theirs))
    }
    row = present(
        job=name,
        kind=clip(job["kind"]),
        state=job["state"],
        by=clip(job.get("claimer")),
        attempts=job.get("attempts"),
        progress=job.get("progress"),
    )
    return row | written


def lock_row(hold: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a lock, as others see it."""
    return present(
        key=clip(hold["lock_key"]),
        holder=clip(hold["holder_agent"]),
        left_s=seconds(hold.get("left_ms")),
        until=hold["expires_at"],
        shared=bool(hold.get("is_shared")),
    )


def own_lock_row(lock: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a lock, for its holder."""
    keys = lock.get("lock_keys") or [lock["lock_key"]]
    return present(
        keys=[clip(key) for key in keys],
        token=lock["fence_token"],
        until=lock["expires_at"],
        shared=bool(lock.get("is_shared")),
    )


def message_row(call: ToolCall, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a message; its body is fenced."""
    sender = message["sender_agent"]
    row = present(
        id=message["message_uuid"],
        sender=clip(sender),
        to=clip(message["receiver_agent"]),
        type=clip(message["msg_type"]) if message["msg_type"] != "message" else None,
        urgent=message["priority"] > 2,
        thread=clip(message.get("thread_id")),
        reply_to=message.get("reply_to"),
        state=message["state"],
        sent=message["created_at"],
        tries=message["delivery_attempts"] if message["delivery_attempts"] > 1 else None,
    )
    if message["payload"] is not None:
        row["body"] = call.fence(
            message["payload"], author=sender, signature_state=message["signed_by_agent"]
        )
    return row


def taken_row(call: ToolCall, taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a taken job; what others wrote is fenced."""
    author = f"job:{taken['job_id'][:JOB_DIGITS]}"
    row = present(
        job=taken["job_id"][:JOB_DIGITS],
        token=taken["claim_token"],
        kind=clip(taken["kind"]),
        attempt=taken["attempt"],
        lease_s=seconds(taken["lease_ms"]),
    )
    for name in ("payload", "checkpoint", "answer"):
        if taken[name] is not None:
            row[name] = call.fence(taken[name], author=author)
    if call.is_full:
        row["manifest"] = call.fence(taken["manifest"], author=author)
    elif command := taken["manifest"].get("command"):
        row["command"] = call.fence([*command, *taken["manifest"].get("args", ())], author=author)
    return row


def question_row(call: ToolCall, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a question of a job."""
    return present(
        job=asked["job_id"][:JOB_DIGITS],
        asked_by=clip(asked["asked_by"]),
        question=call.fence(asked["text"], author=asked["asked_by"]),
        choices=call.fence(asked["choices"], author=asked["asked_by"]) if asked["choices"] else None,
        answered_by=clip(asked["answered_by"]),
    )


def page_of(name: str, answer: Any, rows: Iterable[Any]) -> dict[str, Any]:
    """Return the rows of an answer, with where it goes on."""
    goes_on = answer.get("next") if isinstance(answer, dict) else None
    return {name: [*rows], **present(next=goes_on)}
