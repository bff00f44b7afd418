"""Drafts: checked messages, without the time, node and signature that they get when they are sent."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from vox_mesh.errors import BadValue
from vox_mesh.model.base.durations import Duration
from vox_mesh.model.messages.records import (
    DEFAULT_TYPE,
    EVERYONE,
    MAX_ATTEMPTS,
    MAX_PAYLOAD_BYTES,
    ROLE,
    Message,
    checked_id,
    checked_priority,
    checked_receiver,
    checked_thread,
    checked_trace,
    checked_word,
    payload_of,
    time_after,
)
from vox_mesh.store.script import new_key

DEFAULT_PRIORITY: Final = 1
_MAX_MAX_ATTEMPTS: Final = 1_000


class DraftOptions(TypedDict, total=False):
    """What a message can have besides its sender, receiver and body; see `Messages.send`."""

    msg_type: str
    priority: int
    thread: str | None
    correlation: str | None
    reply_to: str | None
    ttl: Duration | None
    ack_within: Duration | None
    max_attempts: int
    traceparent: str | None
    ordered: bool


def draft_message(
    sender: str,
    to: str,
    body: Any,
    now_ms: int,
    *,
    msg_type: str = DEFAULT_TYPE,
    priority: int = DEFAULT_PRIORITY,
    thread: str | None = None,
    correlation: str | None = None,
    reply_to: str | None = None,
    ttl: Duration | None = None,
    ack_within: Duration | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    traceparent: str | None = None,
    key: str | None = None,
    ordered: bool = False,
) -> Message:
    """Return a message that can be sent; raise `BadValue` if a field is not allowed."""
    if to == EVERYONE:
        raise BadValue(f"recipient must be an agent or a role, got {to!r}", hint="use broadcast")
    if type(max_attempts) is not int or not 1 <= max_attempts <= _MAX_MAX_ATTEMPTS:
        raise BadValue(f"max_attempts must be between 1 and {_MAX_MAX_ATTEMPTS}, got {max_attempts!r}")
    if traceparent is not None:
        checked_trace(traceparent)
    return Message(
        message_uuid=new_key() if key is None else checked_id(key),
        sender_agent=sender,
        receiver_agent=checked_receiver(to),
        msg_type=checked_word("message type", msg_type),
        payload=payload_of(body, MAX_PAYLOAD_BYTES),
        priority=checked_priority(priority),
        thread_id=None if thread is None else checked_thread(thread),
        correlation_id=None if correlation is None else checked_word("correlation", correlation),
        reply_to=None if reply_to is None else checked_id(reply_to),
        expires_ms=time_after("ttl", ttl, now_ms),
        ack_by_ms=time_after("ack_within", ack_within, now_ms),
        max_attempts=max_attempts,
        hlc="",
        sender_node="",
        sender_incarnation=None,
        traceparent=traceparent,
        is_ordered=int(ordered or not to.startswith(ROLE)),
    )
