"""Holds: relayed messages that one consumer of this node has without a claim at the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from vox_mesh.model.messages.records import Message


@dataclass(slots=True)
class Hold:
    """The right of one consumer to a relayed message, until the deadline by our own clock.

    The deadline is `wanted_until`, or the end of the inbox lease if that comes first. `claim_owner` is the
    claim at the database that covers the hold, once this node has made one.
    """

    message: Message
    wanted_until: float
    deadline: float
    claim_owner: str | None = None

    @property
    def claimed(self) -> Message | None:
        """Return the message under the claim that covers the hold, if there is one."""
        return None if self.claim_owner is None else self.message._replace(claim_owner=self.claim_owner)


class Holds:
    """Keep at most one hold of each message."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._holds: dict[str, Hold] = {}

    def begin(self, message: Message, wanted_until: float, leased_until: float) -> None:
        """Hold a message under the name that it carries as its claim."""
        hold = Hold(message, wanted_until, min(wanted_until, leased_until))
        self._holds[message.message_uuid] = hold

    def find(self, message: Message) -> Hold | None:
        """Return the hold under which this message was handed out, unless it has ended."""
        hold = self._find_valid(message.message_uuid)
        return hold if hold is not None and hold.message.claim_owner == message.claim_owner else None

    def is_held(self, message_uuid: str) -> bool:
        """Return whether a consumer has this message."""
        return self._find_valid(message_uuid) is not None

    def end(self, message: Message) -> Hold | None:
        """End the hold under which this message was handed out, and return it."""
        hold = self._holds.get(message.message_uuid)
        if hold is None or hold.message.claim_owner != message.claim_owner:
            return None
        return self._holds.pop(message.message_uuid)

    def end_all(self) -> list[Message]:
        """End every hold. Return the messages whose hold is covered by a claim, under that claim."""
        holds, self._holds = self._holds, {}
        return [each.claimed for each in holds.values() if each.claimed is not None]

    def renew(self, message: Message, wanted_until: float, leased_until: float | None) -> bool:
        """Hold a message for longer; return whether it is held."""
        hold = self.find(message)
        if hold is None:
            return False
        hold.wanted_until = wanted_until
        if hold.claim_owner is not None:  # its claim was renewed, and needs no lease of the inbox
            hold.deadline = wanted_until
        elif leased_until is not None:
            hold.deadline = min(wanted_until, leased_until)
        return True

    def extend(self, receiver: str, leased_until: float) -> None:
        """Extend the holds of an inbox whose lease was renewed, up to their wanted ends."""
        for key in list(self._holds):
            hold = self._find_valid(key)
            if hold is not None and hold.message.receiver_agent == receiver and hold.claim_owner is None:
                hold.deadline = max(hold.deadline, min(hold.wanted_until, leased_until))

    def cover(self, messages: Sequence[Message], deadline: float, but: Sequence[Message]) -> list[Message]:
        """Cover these holds, except those in `but`, by a claim of this node. Return the held messages."""
        if not self._holds:
            return []
        left_out = {each.message_uuid for each in but}
        held = [
            each
            for each in messages
            if each.message_uuid not in left_out and self._find_valid(each.message_uuid) is not None
        ]
        for message in held:
            hold = self._holds[message.message_uuid]
            hold.claim_owner, hold.deadline = message.claim_owner, deadline
        return held

    def receivers(self) -> Collection[str]:
        """Return the inboxes of all messages that are held."""
        return {
            each.message.receiver_agent for key, each in list(self._holds.items()) if self._find_valid(key)
        }

    def _find_valid(self, message_uuid: str) -> Hold | None:
        hold = self._holds.get(message_uuid)
        if hold is not None and self._monotonic() >= hold.deadline:
            del self._holds[message_uuid]
            return None
        return hold
