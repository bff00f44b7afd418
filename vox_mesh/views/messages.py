"""Views of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vox_mesh.model.messages.records import Message, MessageState
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView


@dataclass(frozen=True)
class MessageView(RecordView, record=Message, without=("signature", "agent_signature")):
    """A message by column, with the bar and the beat of its time; its payload is the value itself."""

    payload: Any
    hlc: str
    window: str | None
    beat_index: int | None
    position: int
    after: str | None
    acknowledged: bool
    is_ordered: bool

    @classmethod
    def of(cls, mesh: MeshServices, message: Message) -> MessageView:
        """Return the view of a message in any state."""
        from vox_mesh.views.rhythm import stamp_of  # imported late: few commands show the rhythm

        return cls.stamped(message, **stamp_of(mesh, message.hlc)._asdict())

    @classmethod
    def stamped(cls, message: Message, window: str | None, beat_index: int | None) -> MessageView:
        """Return the view of a message whose bar and beat are known."""
        return cls.from_record(
            message,
            payload=message.body,
            window=window,
            beat_index=beat_index,
            acknowledged=message.state == MessageState.ACKED,
            is_ordered=bool(message.is_ordered),
        )
