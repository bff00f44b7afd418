"""Views of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.model.messages.records import Message, MessageState
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.rhythm import stamp_of


@dataclass(frozen=True)
class MessageView:
    """A message by column, with the bar and the beat of its time; its payload is the value itself."""

    message_uuid: str
    sender_agent: str
    receiver_agent: str
    msg_type: str
    payload: Any
    priority: int
    thread_id: str | None
    correlation_id: str | None
    reply_to: str | None
    expires_ms: int | None
    ack_by_ms: int | None
    max_attempts: int
    hlc: str
    window: str | None
    beat_index: int | None
    sender_node: str
    sender_incarnation: int | None
    traceparent: str | None
    position: int
    created_at: str
    state: str
    delivery_attempts: int
    claim_owner: str | None
    claim_until_ms: int | None
    not_before_ms: int | None
    ended_reason: str | None
    after: str | None
    acknowledged: bool

    @classmethod
    def of(cls, mesh: MeshServices, message: Message) -> MessageView:
        """Return the view of a message in any state."""
        row = message._asdict()
        del row["signature"]
        window, beat_index = stamp_of(mesh, message.hlc)
        is_acked = message.state == MessageState.ACKED
        more = {"window": window, "beat_index": beat_index, "acknowledged": is_acked}
        return cls(**row | more | {"payload": message.body})
