"""Messages: the fields that a sender writes and signs, and the state of delivery."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heapreplace
from typing import Any, Final, NamedTuple, Self

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.base.json_text import read_stored, shown
from vox_mesh.model.base.keys import split_signature
from vox_mesh.model.base.reserved import refuse_mesh_agent
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.messages.agent_signature import SignedByAgent

MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_NAME: Final = 128
DEFAULT_TYPE: Final = "message"
MAX_ATTEMPTS: Final = 10
"""How often a message is tried before it becomes a dead letter, unless its sender says otherwise."""

EVERYONE: Final = "*"
ROLE: Final = "role:"
UNKNOWN: Final = ""
"""Used as `after` if the sender's process does not know the previous message."""

THREAD: Final = "hmmm://thread/"
"""The prefix of a thread's address."""

_MAX_TTL_S: Final = 366 * 86_400.0
_SIGNED_KIND: Final = "vox-mesh message 1"
_SIGNED_BATCH_KIND: Final = "vox-mesh messages 1"
_SIGNED_ORDER_KIND: Final = "vox-mesh relay order 1"
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class MessageState(StrEnum):
    """The state of a message. Reading is not acknowledging; `spooled` is known to the sender's node alone."""

    SPOOLED = "spooled"
    STORED = "stored"
    DELIVERED = "delivered"
    ACKED = "acked"
    DEAD = "dead"
    EXPIRED = "expired"


class Message(NamedTuple):
    """A message. The fields after `signature` are not the sender's, and not signed with it.

    `position` is its place in the order of commits, or 0 if it was only relayed. Only then `after` is set:
    the message that its sender's process sent before it in the same pair. It is signed with each request. A
    message to a role with `is_ordered` 0 may be handled at the same time as others of its sender.

    `agent_signature` is by the sender itself, which the node that signs with `signature` can't forge;
    `signed_by_agent` is what its check has shown here.
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
    is_ordered: int = 1
    agent_signature: str | None = None
    signed_by_agent: str = SignedByAgent.ABSENT

    @classmethod
    def read(cls, record: bytes) -> Self:
        """Return the message that a row's record describes; text that is not UTF-8 is marked as such."""
        try:
            return cls(*orjson.loads(record))
        except orjson.JSONDecodeError:
            return cls(*orjson.loads(record.decode(errors="replace")))

    @property
    def body(self) -> Any:
        """Return the payload as a value, or an object that says why it can't be read.

        No such message is handed out: only a hostile or older writer of the database can store one.
        """
        return shown(self.payload)

    @property
    def fault(self) -> str | None:
        """Return why the message can't be handed out, or `None`."""
        try:
            read_stored(self.payload)
        except BadValue as error:
            return f"unreadable: {error}"
        return None

    @property
    def pair(self) -> tuple[str, str]:
        """Return the sender and receiver, whose messages are delivered in order.

        A message that is not ordered is a pair of its own.
        """
        sender = self.sender_agent
        return sender if self.is_ordered else f"{sender}\n{self.message_uuid}", self.receiver_agent

    @property
    def addresses(self) -> tuple[str, str]:
        """Return the sender and receiver, whether its order counts or not."""
        return self.sender_agent, self.receiver_agent

    @property
    def urgency(self) -> tuple[int, str]:
        """Return the sort key among messages of other senders: priority, then time."""
        return -self.priority, self.hlc

    @property
    def sent_ms(self) -> int | None:
        """Return when it was sent, by the mesh time of its sender; `None` if it does not say."""
        wall_ms = self.hlc[:13]
        return int(wall_ms) if wall_ms.isdecimal() else None

    @property
    def thread(self) -> str:
        """Return the thread that a reply to it belongs to."""
        return self.thread_id or self.message_uuid

    def with_origin(self, hlc: str, node: str, incarnation: int | None, traceparent: str | None) -> Message:
        """Return the draft with its time, node and trace; faster than by the names of the fields."""
        return Message._make((*self[:_ORIGIN], hlc, node, incarnation, traceparent, *self[WRITTEN:]))

    def with_signature(self, signature: str) -> Message:
        """Return the message with this signature; faster than by the name of the field."""
        return Message._make((*self[:WRITTEN], signature, *self[WRITTEN + 1 :]))

    def with_predecessor(self, after: str | None) -> Message:
        """Return the message after another one of its pair; faster than by the name of the field."""
        return Message._make((*self[:_AFTER], after, *self[_AFTER + 1 :]))

    def signed_text(self, scope_id: str, repository_id: str) -> bytes:
        """Return the signed text: a kind, the mesh, and all fields that the sender wrote."""
        return orjson.dumps([_SIGNED_KIND, scope_id, repository_id, *self[:WRITTEN]])


def signature_of(message: Message, scope_id: str, repository_id: str) -> tuple[str, bytes]:
    """Return the signature of a message, and the text it signs: its own, or that of all sent together."""
    text = message.signed_text(scope_id, repository_id)
    signature, root = split_signature(message.signature, text)
    return signature, text if root is None else signed_root(root, scope_id, repository_id)


def signed_root(root: str, scope_id: str, repository_id: str) -> bytes:
    """Return the text that the signature of several messages signs: a kind, the mesh, and their root."""
    return orjson.dumps([_SIGNED_BATCH_KIND, scope_id, repository_id, root])


def signed_order(
    messages: Iterable[Message], receiver: str, scope_id: str, repository_id: str, *, stored: bool
) -> bytes:
    """Return the text that a relaying node signs: to which node, and after which each message was sent."""
    order = [(message.message_uuid, message.after) for message in messages]
    return orjson.dumps([_SIGNED_ORDER_KIND, scope_id, repository_id, receiver, stored, order])


WRITTEN: Final = Message._fields.index("signature")
"""How many fields of a message its sender wrote and signed."""

_ORIGIN: Final = Message._fields.index("hlc")
_AFTER: Final = Message._fields.index("after")

WIRE_FIELDS: Final = Message._fields[: WRITTEN + 1]
"""The fields that travel, in this order."""


def payload_of(body: Any, max_bytes: int = MAX_PAYLOAD_BYTES) -> str:
    """Return a body as the text that is stored; raise `BadValue` if it is too large."""
    text = canonical(body)
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise BadValue(
            f"message body must be at most {max_bytes} bytes, got {size}",
            hint="store the data elsewhere and send its location",
        )
    return text


def checked_agent(name: str) -> str:
    """Return the name of an agent; raise `BadValue` if it is invalid, or that of the mesh itself."""
    refuse_mesh_agent(name)
    return checked_sender(name)


def checked_sender(name: str) -> str:
    """Return the name of an agent, or of the mesh itself; raise `BadValue` if it is invalid."""
    if (
        not 0 < len(name) <= MAX_NAME
        or not name.isprintable()
        or name != name.strip()
        or name == EVERYONE
        or name.startswith(ROLE)
    ):
        raise BadValue(
            f"agent name must be 1 to {MAX_NAME} printable characters, got {name!r}",
            hint=f"choose a name without spaces around it; {ROLE!r} and {EVERYONE!r} are reserved",
        )
    return name


def checked_receiver(address: str) -> str:
    """Return the address of one inbox: an agent's name, or `role:` and the name of a role."""
    checked_sender(address.removeprefix(ROLE))
    return address


def inbox_names(agent: str, roles: Iterable[str]) -> list[str]:
    """Return the addresses under which an agent receives: its own, and those of its roles."""
    return [checked_agent(agent), *(checked_receiver(ROLE + role) for role in roles)]


def checked_word(name: str, text: str) -> str:
    """Return a short text without line breaks; raise `BadValue` if it is not one."""
    if not 0 < len(text) <= MAX_NAME or not text.isprintable():
        raise BadValue(f"{name} must be 1 to {MAX_NAME} printable characters, got {text!r}")
    return text


def checked_thread(text: str) -> str:
    """Return the id of a thread, given as an id or as an address; raise `BadValue` if it is neither."""
    return checked_word("thread", text.removeprefix(THREAD))


def checked_id(message_uuid: str) -> str:
    """Return a message's id; raise `BadValue` if it is not a ULID."""
    if not is_ulid(message_uuid):
        raise BadValue(f"message id must be a ULID, got {message_uuid!r}")
    return message_uuid


def checked_priority(priority: int) -> int:
    """Return a priority, from 0 (can wait) to 3 (urgent); raise `BadValue` for any other."""
    if type(priority) is not int or not 0 <= priority <= 3:
        raise BadValue(
            f"priority must be an integer from 0 to 3, got {priority!r}",
            hint="pass 0 (can wait), 1 (usual), 2 (soon) or 3 (urgent)",
        )
    return priority


def time_after(name: str, duration: Duration | None, now_ms: int) -> int | None:
    """Return the time after a duration, such as a `ttl`; raise `BadValue` if that is too long."""
    if duration is None:
        return None
    seconds = seconds_of(name, duration)
    if not 0 < seconds <= _MAX_TTL_S:
        raise BadValue(f"{name} must be more than 0 and at most {_MAX_TTL_S:g} seconds, got {seconds}")
    return now_ms + round(seconds * 1_000)


def checked_trace(traceparent: str) -> str:
    """Return a W3C trace context; raise `BadValue` if it is invalid."""
    if not _TRACEPARENT.fullmatch(traceparent):
        raise BadValue(
            f"traceparent must be a W3C trace context such as 00-<32 hex>-<16 hex>-01, got {traceparent!r}"
        )
    return traceparent


def in_turn(messages: Sequence[Message]) -> list[Message]:
    """Return the messages in the order in which to hand them out.

    Messages of one pair are ordered by time; among the first of each pair, the most urgent one comes next.
    """
    queues: dict[tuple[str, str], list[Message]] = {}
    for message in sorted(messages, key=lambda each: each.hlc, reverse=True):
        queues.setdefault(message.pair, []).append(message)
    firsts = [(*queue[-1].urgency, pair) for pair, queue in queues.items()]
    heapify(firsts)
    ordered: list[Message] = []
    while firsts:
        pair = firsts[0][-1]
        queue = queues[pair]
        ordered.append(queue.pop())
        if queue:
            heapreplace(firsts, (*queue[-1].urgency, pair))
        else:
            heappop(firsts)
    return ordered
