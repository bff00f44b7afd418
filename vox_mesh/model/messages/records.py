"""Messages: what a sender writes and signs, and what became of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.ulid import is_ulid

MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_NAME: Final = 128
MAX_ATTEMPTS: Final = 10
"""How often a message is tried before it is one of the dead letters, unless its sender says otherwise."""

EVERYONE: Final = "*"
ROLE: Final = "role:"
UNKNOWN: Final = ""
"""What a message comes after, if its sender's process does not know."""

MESH_AGENT: Final = "mesh"
"""Who writes what the mesh itself has to say."""

_SIGNED: Final = "vox-mesh message 1"
_SIGNED_TOGETHER: Final = "vox-mesh messages 1"
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class MessageState(StrEnum):
    """What became of a message. Read is not acknowledged; `spooled` is known to its sender's node alone."""

    SPOOLED = "spooled"
    STORED = "stored"
    DELIVERED = "delivered"
    ACKED = "acked"
    DEAD = "dead"
    EXPIRED = "expired"


class Message(NamedTuple):
    """A message. What comes after `signature` is not the sender's, and not signed.

    `position` is where it stands in the order of commits; 0 for one that was only brought by the relay, and
    only then `after` is set: the message that its sender's process sent before it in the same pair.
    """

    message_uuid: str
    sender_agent: str
    receiver_agent: str
    msg_type: str
    payload: str
    priority: int
    thread_id: str | None
    correlation_id: str | None
    reply_to: str | None
    expires_ms: int | None
    ack_by_ms: int | None
    max_attempts: int
    hlc: str
    sender_node: str
    sender_incarnation: int | None
    traceparent: str | None
    signature: str = ""
    position: int = 0
    created_at: str = ""
    state: str = MessageState.STORED
    delivery_attempts: int = 0
    claim_owner: str | None = None
    claim_until_ms: int | None = None
    not_before_ms: int | None = None
    ended_reason: str | None = None
    after: str | None = None

    @classmethod
    def read(cls, record: str) -> Self:
        """The message that a row's record describes."""
        return cls(*orjson.loads(record))

    @property
    def body(self) -> Any:
        """The payload as a value."""
        return orjson.loads(self.payload)

    @property
    def pair(self) -> tuple[str, str]:
        """Whose messages it is in order with."""
        return self.sender_agent, self.receiver_agent

    @property
    def urgency(self) -> tuple[int, str]:
        """What sorts it among those of other senders: priority, then time."""
        return -self.priority, self.hlc

    @property
    def sent_ms(self) -> int | None:
        """When it was sent, by the database's clock as its sender knew it; `None` if it does not say."""
        wall_ms = self.hlc[:13]
        return int(wall_ms) if wall_ms.isdecimal() else None

    @property
    def thread(self) -> str:
        """The thread that an answer to it belongs to."""
        return self.thread_id or self.message_uuid

    def signed_text(self, scope_id: str, repository_id: str) -> bytes:
        """What its signature signs: that it is a message, of which mesh, and all that its sender wrote."""
        return orjson.dumps([_SIGNED, scope_id, repository_id, *self[:WRITTEN]])


def signed_root(root: str, scope_id: str, repository_id: str) -> bytes:
    """What the signature of several messages signs: that it is such a one, of which mesh, and their root."""
    return orjson.dumps([_SIGNED_TOGETHER, scope_id, repository_id, root])


WRITTEN: Final = Message._fields.index("signature")
"""How many of a message's fields its sender wrote, and signed."""

WIRE_FIELDS: Final = Message._fields[: WRITTEN + 1]
"""The fields that travel, in this order."""


def payload_of(body: Any, max_bytes: int = MAX_PAYLOAD_BYTES) -> str:
    """A body as the text that is stored."""
    text = canonical(body)
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise BadValue(
            f"the message's body takes {size} bytes; at most {max_bytes} fit",
            hint="put the data elsewhere, and send where it is",
        )
    return text


def checked_agent(name: str) -> str:
    """The name of an agent, if it is one."""
    if (
        not 0 < len(name) <= MAX_NAME
        or not name.isprintable()
        or name != name.strip()
        or name == EVERYONE
        or name.startswith(ROLE)
    ):
        raise BadValue(
            f"{name!r} is no name for an agent",
            hint=f"use 1 to {MAX_NAME} printable characters; `role:` and `*` have a meaning of their own",
        )
    return name


def checked_receiver(address: str) -> str:
    """An address of one inbox: an agent's name, or `role:` and the name of a role."""
    checked_agent(address.removeprefix(ROLE))
    return address


def inbox_names(agent: str, roles: Iterable[str]) -> list[str]:
    """The addresses under which an agent receives: its own, and those of the roles that it has."""
    return [checked_agent(agent), *(checked_receiver(ROLE + role) for role in roles)]


def checked_word(name: str, text: str) -> str:
    """A short text without line breaks."""
    if not 0 < len(text) <= MAX_NAME or not text.isprintable():
        raise BadValue(f"{text!r} is no {name}", hint=f"use 1 to {MAX_NAME} printable characters")
    return text


def checked_id(message_uuid: str) -> str:
    """A message's id, if it is one."""
    if not is_ulid(message_uuid):
        raise BadValue(f"the message id {message_uuid!r} is not a ULID")
    return message_uuid


def checked_priority(priority: int) -> int:
    """A priority: from 0, which can wait, to 3."""
    if type(priority) is not int or not 0 <= priority <= 3:
        raise BadValue(f"{priority} is no priority", hint="0 can wait, 1 is usual, 2 is soon, 3 is urgent")
    return priority


def checked_trace(traceparent: str) -> str:
    """A trace context, as W3C writes it."""
    if not _TRACE.fullmatch(traceparent):
        raise BadValue(f"{traceparent!r} is no traceparent", hint="for example 00-<32 hex>-<16 hex>-01")
    return traceparent


def in_turn(messages: Sequence[Message]) -> list[Message]:
    """Messages in the order in which they are to be handed out.

    Those of one pair by time; of the first of each pair, always the most urgent one.
    """
    queues: dict[tuple[str, str], list[Message]] = {}
    for message in sorted(messages, key=lambda each: each.hlc, reverse=True):
        queues.setdefault(message.pair, []).append(message)
    ordered: list[Message] = []
    while queues:
        pair = min(queues, key=lambda each: queues[each][-1].urgency)
        queue = queues[pair]
        ordered.append(queue.pop())
        if not queue:
            del queues[pair]
    return ordered
