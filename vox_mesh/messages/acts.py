"""The acts of sending messages, for which agents need grants. It is imported by all, and imports little."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vox_mesh.model.grants.capability import Act
    from vox_mesh.model.grants.limits import Use
    from vox_mesh.model.messages.records import Message


def sending_acts(receiver: str) -> list[Act]:
    """Return the acts of sending to a recipient."""
    from vox_mesh.model.grants.capability import SEND, Act

    return [Act(SEND, receiver)]


def sending_uses(message: Message) -> list[Use]:
    """Return how a message is counted: it is open until it is settled."""
    from vox_mesh.model.grants.limits import Item, ItemKind, Use

    item = Item(ItemKind.MESSAGE, message.message_uuid)
    return [Use(act, item) for act in sending_acts(message.receiver_agent)]
