"""Views of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.errors import NotKnown
from vox_mesh.messages.claims import is_relayed
from vox_mesh.messages.queries import Thread
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


@dataclass(frozen=True)
class ThreadView:
    """Messages that belong together: how many there are, and how many nobody has dealt with."""

    thread_id: str
    messages: int
    open: int
    began_at: str
    last_at: str

    @classmethod
    def of(cls, thread: Thread) -> ThreadView:
        """Return the view of a thread."""
        return cls(*thread)


async def find_message(mesh: MeshServices, beginning: str) -> Message:
    """Return the message whose id begins with this text."""
    message = await mesh.messages.queries.find(beginning) if beginning else None
    if message is None:
        raise NotKnown(f"there is no message {beginning}", hint="see `vox-mesh messages list`")
    return message


async def find_claimed_message(mesh: MeshServices, beginning: str, claim_owner: str) -> Message:
    """Return the message with this claim. Whether the claim is valid is checked by the database."""
    message = (await find_message(mesh, beginning))._replace(claim_owner=claim_owner)
    if is_relayed(message):  # known only to its node
        raise mesh.messages.stats.refuse(message)
    return message
