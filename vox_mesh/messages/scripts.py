"""The scripts of messages: how they are written, claimed, acknowledged and given back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from vox_mesh.errors import MessageTaken, NotHolder
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Item, Script, Shape, Statement

Mesh = tuple[str, str]
"""The scope and the repository that the messages belong to."""

_SQL: Final = named("messages")
_RECORD: Final = ("record",)
_LEASES_SINCE: Final = 11
"""The schema version since which nodes respect the leases of inboxes."""


def sql(name: str) -> str:
    """A statement about messages."""
    return _SQL[name]


def _id_of(item: Item) -> str | int | None:
    return item["message_uuid"]


_SEND: Final = Shape(
    "messages.send",
    (),
    answer=sql("send"),
    columns=("message_uuid",),
    subject=_id_of,
    repeatable=True,
    lone=sql("send_one"),
    lone_values=WIRE_FIELDS,
)
_ACK: Final = Shape(
    "messages.ack",
    (),
    answer=sql("ack"),
    columns=("message_uuid",),
    subject=_id_of,
    repeatable=True,
    lone=sql("ack_one"),
    lone_values=("message_uuid", "claim_owner"),
)
_ACK_ON_ARRIVAL: Final = Shape(
    "messages.ack_on_arrival",
    (),
    answer=sql("ack_on_arrival"),
    columns=("message_uuid",),
    subject=_id_of,
    repeatable=True,
)


def json(values: Iterable[object]) -> str:
    """Values as a JSON array."""
    return orjson.dumps(list(values)).decode()


def send_script(message: Message) -> Script:
    """Store a message. It answers nothing if another one has its id, or if we are no longer current."""
    return Script.of(_SEND, _written(message), appendable=True)


def send_plainly(mesh: Mesh, message: Message, *before: Statement) -> Script:
    """The same, behind statements that may refuse it."""
    answer = Answer(sql("send"), (json([_written(message)]), *mesh), ("message_uuid", "stored"))
    return Script(*before, answer=answer, repeatable=True)


def send_beside(mesh: Mesh, message: Message, statements: Sequence[Statement]) -> Script:
    """Store a message together with what these statements change, or neither."""
    stored = Statement(sql("send"), (json([_written(message)]), *mesh))
    taken = Statement(
        sql("refuse_unless_ours"),
        (*mesh, message.message_uuid, message.signature),
        refusal=MessageTaken.code,
    )
    return Script(*statements, stored, taken)


def ack_script(message: Message, *, spoolable: bool) -> Script:
    """Acknowledge a message under its claim; it answers nothing if that is over."""
    item = {"message_uuid": message.message_uuid, "claim_owner": message.claim_owner}
    return Script.of(_ACK, item, appendable=spoolable)


def ack_on_arrival_script(message: Message) -> Script:
    """Acknowledge a relayed message; it answers nothing if it is another's, or has ended."""
    item = {**_written(message), "claim_owner": message.claim_owner}
    return Script.of(_ACK_ON_ARRIVAL, item, appendable=True)


def _written(message: Message) -> dict[str, str | int | None]:
    return dict(zip(WIRE_FIELDS, message, strict=False))


# --- receivers -----------------------------------------------------------------------------------


def announce_script(mesh: Mesh, names: Sequence[str], node: str, receiver: str) -> Script:
    """Note where these names are received, and by whom: a node, or the chain of a command."""
    return Script(
        Statement(sql("open_inboxes"), (*mesh, json(names), node)),
        Statement(sql("receive_from"), (*mesh, json(names), receiver)),
    )


def lease_script(
    mesh: Mesh, names: Sequence[str], node: str, *, lease_ms: int, in_use: Sequence[str], dead_after: float
) -> Script:
    """Lease the inboxes from which only this node receives; it answers with those that are leased."""
    whose = (*mesh, json(names), node)
    values = (*whose, lease_ms, lease_ms, json(in_use), dead_after, _LEASES_SINCE)
    return Script(
        Statement(sql("receive_from"), whose),
        answer=Answer(sql("lease_if_alone"), values, ("receiver_agent",)),
        repeatable=True,
    )


# --- claims --------------------------------------------------------------------------------------


def claim_script(
    whose: tuple[str, str, str, str, str, str],
    *,
    lease_ms: int,
    limit: int,
    of_pair: int,
    max_size: int,
    bury: bool,
) -> Script:
    """Claim what is next. `whose`: scope, repository, receivers, the claim's name and two prefixes of it."""
    before = (Statement(sql("bury_exhausted"), whose),) if bury else ()
    answer = Answer(sql("claim"), (*whose, lease_ms, limit, of_pair, max_size), _RECORD)
    return Script(*before, answer=answer, repeatable=True)


def claim_one_script(values: tuple[str, str, str, str, int]) -> Script:
    """Claim one message: scope, repository, its id, the claim's name, and for how long."""
    return Script(answer=Answer(sql("claim_one"), values, _RECORD), repeatable=True)


def renew_script(mesh: Mesh, messages: Sequence[Message], lease_ms: int) -> Script:
    """Hold a claim, or what is left of it, for its time again from now on."""
    ids = json(message.message_uuid for message in messages)
    values = (*mesh, ids, messages[0].claim_owner, lease_ms)
    return Script(answer=Answer(sql("renew"), values, ("message_uuid",)), repeatable=True)


def nack_script(mesh: Mesh, message: Message, retry_ms: int, reason: str | None) -> Script:
    """Give a message back: it is tried again after that time, and its pair waits for it."""
    held = (*mesh, message.message_uuid, message.claim_owner)
    return Script(
        Statement(sql("refuse_unless_held_back"), held, refusal=NotHolder.code),
        Statement(sql("release_behind"), held),
        Statement(sql("give_back"), (*held, retry_ms, reason, message.delivery_attempts)),
    )


def bury_script(mesh: Mesh, message: Message, reason: str) -> Script:
    """Put a message that we hold among the dead letters."""
    held = (*mesh, message.message_uuid, message.claim_owner)
    return Script(Statement(sql("bury"), (*held, reason)))


def release_script(mesh: Mesh, counted: Sequence[Message], uncounted: Sequence[Message]) -> Script:
    """Give back what was not looked at; of `counted`, this was to be an attempt.

    It may be spooled: however late it comes, it releases nothing that was claimed again.
    """
    return Script(
        *(
            Statement(sql("release"), (*mesh, json(_held(messages)), count))
            for messages, count in ((counted, 1), (uncounted, 0))
            if messages
        ),
        appendable=True,
    )


def release_claim_script(mesh: Mesh, receivers: Sequence[str], name: str) -> Script:
    """Release all that a claim came to, where its answer was lost. It may be spooled."""
    return Script(Statement(sql("release_claim"), (*mesh, json(receivers), name)), appendable=True)


def _held(messages: Sequence[Message]) -> list[tuple[str, str | None]]:
    return [(message.message_uuid, message.claim_owner) for message in messages]


def taken(message: Message) -> MessageTaken:
    """The error about a message whose id another one has."""
    return MessageTaken(
        f"there is another message with the id {message.message_uuid}", hint="send it under a key of its own"
    )
