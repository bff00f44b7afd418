"""Messages: sending, reading, and acknowledging or rejecting claimed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from pydantic import Field

from vox_mesh.errors import BadValue, MeshError
from vox_mesh.http.api.operations import Operations, RequestModel, Seconds, Text
from vox_mesh.http.api.pages import MAX_SCANNED, LimitQuery, Page, PageQuery, read_first, read_page
from vox_mesh.http.principals.needs import NOTHING, OWNER, READS_MESSAGE, Need, receives
from vox_mesh.http.principals.own_names import OwnAgent
from vox_mesh.messages.claims import LEASE_S, MAX_CLAIMED
from vox_mesh.messages.drafts import DEFAULT_PRIORITY
from vox_mesh.messages.queries import MessageThread
from vox_mesh.model.grants.capability import SEND, Act
from vox_mesh.model.messages.records import (
    DEFAULT_TYPE,
    EVERYONE,
    MAX_ATTEMPTS,
    Message,
    MessageState,
    inbox_names,
)
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.slices import in_slices
from vox_mesh.views.messages import MessageView

MESSAGES: Final = Operations("messages")

Read = Callable[[int, int], Awaitable[list[Message]]]
"""Reads messages from a position on, up to a limit."""


class MessagesQuery(PageQuery):
    """The filter of a list of messages, newest first."""

    state: MessageState | None = None
    sender: Text | None = None
    receiver: Text | None = None
    thread: Text | None = None


class InboxQuery(PageQuery):
    """The part of an inbox: of an agent, and of its roles, separated by commas."""

    roles: Text | None = None


class SendRequest(RequestModel):
    """The message to send. `key` is its idempotency key, which an `agent_signature` signs with the rest."""

    to: Text
    sender: OwnAgent
    payload: Any
    msg_type: Text = DEFAULT_TYPE
    priority: Annotated[int, Field(ge=0, le=3)] = DEFAULT_PRIORITY
    thread: Text | None = None
    correlation: Text | None = None
    reply_to: Text | None = None
    ttl: Seconds | None = None
    ack_within: Seconds | None = None
    max_attempts: Annotated[int, Field(ge=1, le=1_000)] = MAX_ATTEMPTS
    key: Text | None = None
    traceparent: Text | None = None
    ordered: bool = False
    agent_signature: Text | None = None


class ClaimRequest(RequestModel):
    """The maximum number of messages to claim, their lease, and the roles of the agent."""

    roles: Annotated[list[Text], Field(max_length=100, default_factory=list)]
    limit: Annotated[int, Field(ge=1, le=MAX_CLAIMED)] = MAX_CLAIMED
    lease: Seconds = LEASE_S


class AckRequest(RequestModel):
    """The claim of a message."""

    claim_owner: Text


class NackRequest(AckRequest):
    """The time until redelivery, and the reason of the rejection."""

    retry_in: Seconds | None = None
    reason: Text | None = None


@MESSAGES.get("/v1/messages")
async def list_messages(mesh: MeshServices, query: MessagesQuery) -> Page[MessageView]:
    """List messages, newest first; dead letters with `state=dead`."""
    if query.state is MessageState.SPOOLED:
        raise BadValue("spooled messages can't be listed: they are on a node's disk", hint="see GET /v1/db")
    queries = mesh.messages.queries
    start = await queries.newest_position() + 1 if query.number is None else query.number
    down_to = 0 if query.thread is not None else max(0, start - MAX_SCANNED)
    wanted = partial(
        queries.listed,
        state=query.state,
        sender=query.sender,
        receiver=query.receiver,
        thread=query.thread,
        down_to=down_to,
    )
    return await _page(
        mesh,
        query,
        start,
        lambda before, limit: wanted(before=before, limit=limit),
        scanned_to=down_to or None,
    )


async def _page(
    mesh: MeshServices, query: PageQuery, start: int, read: Read, *, scanned_to: int | None = None
) -> Page[MessageView]:
    """Return a page of messages; large ones make it shorter."""
    messages, goes_on = await read_page(
        read, start, query.limit, lambda each: each.position, lambda each: len(each.payload)
    )
    views = await in_slices(MessageView.of(mesh, each) for each in messages)
    return query.page(views, lambda view: view.position, goes_on=goes_on, scanned_to=scanned_to)


def _acts(_: str, inputs: Mapping[str, Any]) -> Iterable[Act]:
    return [Act(SEND, inputs["body"].to)]


@MESSAGES.post("/v1/messages", needs=Need(((SEND,),), _acts), status=HTTPStatus.CREATED, opens="messages")
async def send_message(mesh: MeshServices, body: SendRequest) -> list[MessageView]:
    """Send a message to an agent, a role or everyone; everyone gets a message each."""
    options = body.model_dump(exclude_none=True, exclude={"to", "payload", "key", "agent_signature"})
    signed_by = body.agent_signature
    if signed_by is not None and body.key is None:
        raise BadValue("`agent_signature` must be given with `key`: it signs the id, and one recipient")
    if body.to == EVERYONE:
        if body.key is not None:
            raise BadValue("`key` must not be given with `to: *`: each recipient gets a message of its own")
        return [MessageView.of(mesh, each) for each in await mesh.messages.broadcast(body.payload, **options)]
    sent = await mesh.messages.send(body.to, body.payload, key=body.key, signed_by=signed_by, **options)
    return [MessageView.of(mesh, await mesh.messages.queries.find(sent.message_uuid) or sent)]


@MESSAGES.get("/v1/messages/overdue")
async def list_overdue(mesh: MeshServices, query: LimitQuery) -> list[MessageView]:
    """List overdue messages, longest overdue first; large ones make the list shorter."""
    overdue = mesh.messages.queries.overdue
    found = await read_first(lambda limit: overdue(limit=limit), query.limit, lambda each: len(each.payload))
    return await in_slices(MessageView.of(mesh, each) for each in found)


@MESSAGES.get("/v1/threads")
async def list_threads(mesh: MeshServices, query: LimitQuery) -> list[MessageThread]:
    """List threads, latest first."""
    return await mesh.messages.queries.threads(query.limit)


@MESSAGES.get("/v1/messages/{message_uuid}", needs=READS_MESSAGE)
async def show_message(mesh: MeshServices, message_uuid: Text) -> MessageView:
    """Show a message, by its id or a unique prefix."""
    return MessageView.of(mesh, await mesh.messages.queries.get(message_uuid))


@MESSAGES.post("/v1/messages/{message_uuid}/retry", needs=OWNER)
async def retry_message(mesh: MeshServices, message_uuid: Text) -> MessageView:
    """Redeliver a dead letter with a new count of attempts."""
    dead = await mesh.messages.queries.get(message_uuid)
    await mesh.messages.queries.retry(dead.message_uuid)
    return await _current_view(mesh, dead)


@MESSAGES.post("/v1/messages/{message_uuid}/ack", needs=NOTHING)
async def ack_message(mesh: MeshServices, message_uuid: Text, body: AckRequest) -> MessageView:
    """Acknowledge a claimed message."""
    claimed = await mesh.messages.get_claimed(message_uuid, body.claim_owner)
    await mesh.messages.ack(claimed)
    return await _current_view(mesh, claimed)


@MESSAGES.post("/v1/messages/{message_uuid}/nack", needs=NOTHING)
async def nack_message(mesh: MeshServices, message_uuid: Text, body: NackRequest) -> MessageView:
    """Reject a claimed message; it is redelivered."""
    claimed = await mesh.messages.get_claimed(message_uuid, body.claim_owner)
    await mesh.messages.nack(claimed, retry_in=body.retry_in, reason=body.reason)
    return await _current_view(mesh, claimed)


async def _current_view(mesh: MeshServices, message: Message) -> MessageView:
    return MessageView.of(mesh, await mesh.messages.queries.get(message.message_uuid))


@MESSAGES.get("/v1/inbox/{agent}", needs=receives("query"))
async def look_into_inbox(mesh: MeshServices, agent: OwnAgent, query: InboxQuery) -> Page[MessageView]:
    """Show the messages of an agent without claiming them."""
    names = inbox_names(agent, query.roles.split(",") if query.roles else ())
    peek = mesh.messages.queries.peek
    return await _page(
        mesh, query, query.number or 0, lambda after, limit: peek(names, after=after, limit=limit)
    )


async def _put_back(mesh: MeshServices, claimed: list[MessageView]) -> None:
    with suppress(MeshError):  # if the release fails, the claim expires by itself
        await mesh.messages.put_back(
            [await mesh.messages.get_claimed(each.message_uuid, each.claim_owner or "") for each in claimed]
        )


@MESSAGES.post("/v1/inbox/{agent}/claim", needs=receives("body"), undo=_put_back)
async def claim_messages(mesh: MeshServices, agent: OwnAgent, body: ClaimRequest) -> list[MessageView]:
    """Receive messages of an agent under a visibility timeout; acknowledge or reject each."""
    claiming = mesh.messages.poll_inbox_from_db(agent, roles=body.roles, limit=body.limit, lease=body.lease)
    claimed = await to_the_end(asyncio.ensure_future(claiming))
    for message in claimed:
        mesh.messages.hand_over(message)  # the client holds the claim now
    return [MessageView.of(mesh, message) for message in claimed]
