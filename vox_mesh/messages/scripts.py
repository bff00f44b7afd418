"""The scripts of messages: how they are stored, claimed, acknowledged, rejected and released."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Final

import orjson

from vox_mesh.errors import MessageTaken, NotHolder
from vox_mesh.model.messages.records import ROLE, WIRE_FIELDS, Message
from vox_mesh.oplog.grants.permit import MESH_GRANT, sql_for_agent, sql_without_grants
from vox_mesh.store.schema.statements import named, part
from vox_mesh.store.script import Answer, Item, Script, Shape, Statement

Mesh = tuple[str, str]
"""The scope and the repository that the messages belong to."""

_SQL: Final = named("messages")
_RECORD: Final = ("record",)

_LEASES_SINCE_VERSION: Final = 11
"""The schema version since which nodes respect inbox leases."""


def sql(name: str) -> str:
    """Return a statement about messages by its name."""
    return _SQL[name]


def sql_for_inboxes(name: str, names: str) -> str:
    """Return the form of a statement about these inboxes, a JSON array.

    Only roles get messages that are not ordered. A server compiles each statement again, and takes a quarter
    less time for one without the branches for those.
    """
    return sql(name) if f'"{ROLE}' in names else _without_roles(name)


@cache
def _without_roles(name: str) -> str:
    shorter = sql(name)
    for branch in ("OR_UNORDERED", "UNORDERED_OR"):
        shorter = shorter.replace(f" {part('messages', branch)}", "")
    return shorter


CHANGED: Final = Answer(sql("changed"), columns=("changed",))
"""Answers how many rows the last statement of a script has changed."""


def _message_id(item: Item) -> str | int | None:
    return item["message_uuid"]


_OFTEN_UNSET: Final = frozenset(
    (
        "thread_id",
        "correlation_id",
        "reply_to",
        "expires_ms",
        "ack_by_ms",
        "traceparent",
        "agent_signature",
        "grant",
    )
)


def _send_sql(items: Sequence[Item]) -> str:
    """Return the statement that stores these messages, which looks for nothing that none of them has.

    A server takes half the time for it.
    """
    return _send_sql_without(_OFTEN_UNSET.difference(*items))


@lru_cache(maxsize=256)
def _send_sql_without(unset: frozenset[str]) -> str:
    shorter = sql_without_grants(sql("send")) if "grant" in unset else sql("send")
    for name in unset:
        shorter = shorter.replace(f"value ->> '{name}'", "NULL")
    return shorter


_SEND: Final = Shape(
    "messages.send",
    (),
    answer=sql("send"),
    columns=("message_uuid",),
    subject=_message_id,
    repeatable=True,
    single_statement=sql("send_one"),
    single_statement_values=(*WIRE_FIELDS, "is_ordered", "grant", "agent_signature"),
    single_statement_for=lambda item: sql_for_agent(
        sql("send_one"), item["sender_agent"], item["sender_node"], item.get("grant")
    ),
    answer_for=_send_sql,
    must_answer=True,
)
_CLAIM_ONE: Final = Shape(
    "messages.claim_one",
    (),
    columns=_RECORD,
    repeatable=True,
    single_statement=sql("claim_one"),
    single_statement_values=("message_uuid", "claim_owner", "lease_ms"),
)
_ACK: Final = Shape(
    "messages.ack",
    (),
    answer=sql("ack"),
    columns=("message_uuid",),
    subject=_message_id,
    repeatable=True,
    single_statement=sql("ack_one"),
    single_statement_values=("message_uuid", "claim_owner"),
)
_ACK_ON_ARRIVAL: Final = Shape(
    "messages.ack_on_arrival",
    (),
    answer=sql("ack_on_arrival"),
    columns=("message_uuid",),
    subject=_message_id,
    repeatable=True,
)


def json(values: Iterable[object]) -> str:
    """Return the values as a JSON array."""
    return orjson.dumps(list(values)).decode()


def send_script(message: Message, grant: str | None) -> Script:
    """Return the script that stores a message by a grant.

    It has no rows if the grant is not in force, the message's id is taken, or we are superseded.
    """
    return Script.of(_SEND, _stored_values(message, grant), appendable=True)


def send_guarded(mesh: Mesh, message: Message, *before: Statement) -> Script:
    """Return the script that stores a message after statements that may refuse it."""
    answer = Answer(sql("send"), (json([_checked_values(message)]), *mesh), ("message_uuid", "stored"))
    return Script(*before, answer=answer, repeatable=True)


def send_with(mesh: Mesh, message: Message, statements: Sequence[Statement]) -> Script:
    """Return the script that stores a message together with these statements, or neither."""
    stored = Statement(sql("send"), (json([_checked_values(message)]), *mesh))
    guard = Statement(
        sql("refuse_unless_ours"),
        (*mesh, message.message_uuid, message.signature),
        refusal=MessageTaken.code,
    )
    return Script(*statements, stored, guard)


def ack_script(message: Message, *, spoolable: bool) -> Script:
    """Return the script that acknowledges a message under its claim; no rows if the claim is over."""
    item = {"message_uuid": message.message_uuid, "claim_owner": message.claim_owner}
    return Script.of(_ACK, item, appendable=spoolable)


def ack_on_arrival_script(message: Message) -> Script:
    """Return the script that acknowledges a relayed message; no rows if it is another's, or has ended."""
    item = {**_wire_values(message), "claim_owner": message.claim_owner}
    return Script.of(_ACK_ON_ARRIVAL, item, appendable=True)


def _wire_values(message: Message) -> dict[str, str | int | None]:
    """Return what the sender wrote; a database takes longer for each value, even if it is unset."""
    values: dict[str, str | int | None] = {
        name: value for name, value in zip(WIRE_FIELDS, message, strict=False) if value is not None
    }
    if message.agent_signature is not None:
        values["agent_signature"] = message.agent_signature
    return values


def _stored_values(message: Message, grant: str | None) -> dict[str, str | int | None]:
    values = _wire_values(message)
    values["is_ordered"] = message.is_ordered
    if grant is not None:
        values["grant"] = grant
    return values


def _checked_values(message: Message) -> dict[str, str | int | None]:
    """Return the values of a message for a script whose guards have checked the grant."""
    return _stored_values(message, MESH_GRANT)


# --- receivers -----------------------------------------------------------------------------------


def announce_script(mesh: Mesh, names: Sequence[str], node: str, receiver: str) -> Script:
    """Return the script that records where these names are received, and by which node or command."""
    return Script(
        Statement(sql("open_inboxes"), (*mesh, json(names), node)),
        Statement(sql("receive_from"), (*mesh, json(names), receiver)),
    )


def lease_script(
    mesh: Mesh, names: Sequence[str], node: str, *, lease_ms: int, in_use: Sequence[str], dead_after: float
) -> Script:
    """Return the script that leases inboxes received only by this node; it answers with those leased."""
    whose = (*mesh, json(names), node)
    values = (*whose, lease_ms, lease_ms, json(in_use), dead_after, _LEASES_SINCE_VERSION)
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
    """Return the script that claims the next messages.

    `whose`: scope, repository, receivers, the claim's name and two prefixes of it.
    """
    before = (Statement(sql("dead_letter_exhausted"), whose),) if bury else ()
    claim = sql_for_inboxes("claim", whose[2])
    answer = Answer(claim, (*whose, lease_ms, limit, of_pair, max_size), _RECORD)
    return Script(*before, answer=answer, repeatable=True)


def claim_one_script(message_uuid: str, claim_name: str, lease_ms: int) -> Script:
    """Return the script that claims one message; no rows if it can't be claimed, or we are superseded."""
    item: Item = {"message_uuid": message_uuid, "claim_owner": claim_name, "lease_ms": lease_ms}
    return Script.of(_CLAIM_ONE, item)


def renew_script(mesh: Mesh, messages: Sequence[Message], lease_ms: int) -> Script:
    """Return the script that renews a claim, or the rest of it."""
    ids = json(message.message_uuid for message in messages)
    values = (*mesh, ids, messages[0].claim_owner, lease_ms)
    return Script(answer=Answer(sql("renew"), values, ("message_uuid",)), repeatable=True)


def nack_script(mesh: Mesh, message: Message, retry_ms: int, reason: str | None) -> Script:
    """Return the script that rejects a message: it is retried later, and its pair waits for it."""
    held = (*mesh, message.message_uuid, message.claim_owner)
    return Script(
        Statement(sql("refuse_unless_held_back"), held, refusal=NotHolder.code),
        Statement(sql("release_behind"), held),
        Statement(sql("reject"), (*held, retry_ms, reason, message.delivery_attempts)),
    )


def bury_script(mesh: Mesh, message: Message, reason: str) -> Script:
    """Return the script that turns a claimed message into a dead letter."""
    held = (*mesh, message.position, message.claim_owner)
    return Script(Statement(sql("dead_letter"), (*held, reason)))


def release_script(mesh: Mesh, counted: Sequence[Message], uncounted: Sequence[Message]) -> Script:
    """Return the script that releases messages which were not looked at.

    `counted`: those for which an attempt was counted. It may be spooled: however late it arrives, it releases
    nothing that was claimed again.
    """
    return Script(
        *(
            Statement(sql("release"), (*mesh, json(_claim_keys(messages)), count))
            for messages, count in ((counted, 1), (uncounted, 0))
            if messages
        ),
        appendable=True,
    )


def release_claim_script(mesh: Mesh, names: Sequence[str], claim_name: str) -> Script:
    """Return the script that releases all messages of a claim whose answer was lost. It may be spooled."""
    return Script(Statement(sql("release_claim"), (*mesh, json(names), claim_name)), appendable=True)


def _claim_keys(messages: Sequence[Message]) -> list[tuple[str, str | None]]:
    return [(message.message_uuid, message.claim_owner) for message in messages]


def id_taken(message: Message) -> MessageTaken:
    """Return the error about a message whose id is taken by another one."""
    return MessageTaken(
        f"message id {message.message_uuid} is taken by another message", hint="send it under a new key"
    )
