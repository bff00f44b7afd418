"""Messages through a node: sending, receiving and settling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from vox_mesh.client.connection import CALL_S, NodeConnection, in_query, new_ulid
from vox_mesh.client.long_wait import MAX_WAIT_S, LongWait
from vox_mesh.client.records import Document, message_of
from vox_mesh.errors import NotKnown
from vox_mesh.model.base.durations import Duration, seconds_of, seconds_or_none
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.agent_signature import AgentStatement
from vox_mesh.model.messages.records import DEFAULT_TYPE, EVERYONE, Message, MessageState, payload_of

_LEASE_S: Final = 120.0
_MAX_CLAIMED: Final = 64
_PAGE: Final = 500
_MAX_STAMPS: Final = 4_096
_POLL_S: Final = 0.25
_FOLLOW_S: Final = 1.0
_TIMES: Final = ("ttl", "ack_within")


class MessageStamp(NamedTuple):
    """The bar and the beat of a message's time, if it has one."""

    window: str | None
    beat_index: int | None


class ClientMessages:
    """Sends messages in the name of one agent, and receives those for it."""

    def __init__(self, connection: NodeConnection, key: SigningKey | None) -> None:
        self._connection = connection
        self._key = key
        self._stamps = Recent[str, MessageStamp](_MAX_STAMPS)

    # --- sending ---------------------------------------------------------------------------------

    async def send(
        self, to: str, body: Any, *, sender: str | None = None, key: str | None = None, **options: Any
    ) -> Message:
        """Send a message to an agent, or to a role (`role:reviewer`). On return it is stored.

        `options` are those of `Mesh.messages.send`; `key` is the idempotency key. It is signed with the key
        of the agent, if that was given.
        """
        fields = {**options, "sender": sender or self._connection.agent, "key": key}
        (sent,) = await self._post(to, body, {**fields, **await self._sign(to, body, fields)})
        return sent

    async def _sign(self, to: str, body: Any, fields: Document) -> Document:
        """Return the key and the signature of a message, if the agent has a key."""
        if self._key is None or fields["sender"] != self._connection.agent:
            return {}
        mesh_id = await self._connection.mesh_id()
        if mesh_id is None:
            return {}
        message_uuid = fields["key"] or new_ulid()
        msg_type = fields.get("msg_type") or DEFAULT_TYPE
        about = (message_uuid, fields["sender"], to, msg_type, payload_of(body))
        return {"key": message_uuid, "agent_signature": AgentStatement(*mesh_id, *about).sign(self._key)}

    async def broadcast(self, body: Any, *, sender: str | None = None, **options: Any) -> list[Message]:
        """Send to all agents that received within a week or are live, except the sender."""
        return await self._post(EVERYONE, body, {**options, "sender": sender})

    async def _post(self, to: str, body: Any, options: dict[str, Any]) -> list[Message]:
        times = {name: seconds_or_none(name, options.get(name)) for name in _TIMES}
        fields = {**options, **times, "to": to, "sender": options["sender"] or self._connection.agent}
        given = {name: value for name, value in fields.items() if value is not None}
        return self._read(await self._connection.post_whole("/v1/messages", {**given, "payload": body}))

    async def find(self, message_uuid: str) -> Message | None:
        """Return a message by its id or a unique prefix; `None` if there is none."""
        with suppress(NotKnown):
            return self._read([await self._connection.get(_path(message_uuid))])[0]
        return None

    async def wait_for_ack(self, message: Message, timeout: Duration) -> bool:
        """Wait until a message is acknowledged. Return `False` if it is not in time, or never will be."""
        deadline = time.monotonic() + seconds_of("timeout", timeout)
        while True:
            found = await self.find(message.message_uuid)
            if found is not None and found.state not in (MessageState.STORED, MessageState.DELIVERED):
                return found.state == MessageState.ACKED
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(_POLL_S, left))

    # --- receiving -------------------------------------------------------------------------------

    async def peek(
        self, agent: str | None = None, *, roles: Sequence[str] = (), after: int = 0, limit: int = 100
    ) -> list[Message]:
        """Return the first messages after a position, without claiming them."""
        found: list[Message] = []
        cursor: str | None = None
        while len(found) < limit:
            page = await self._connection.get(
                _inbox(agent or self._connection.agent), roles=_joined(roles), limit=_PAGE, cursor=cursor
            )
            found += [each for each in self._read(page["items"]) if each.position > after]
            cursor = page["next"]
            if cursor is None:
                break
        return found[:limit]

    async def follow(
        self, agent: str | None = None, *, roles: Sequence[str] = (), after: int = 0
    ) -> AsyncGenerator[Message, None]:
        """Yield messages after a position as they come, without claiming them."""
        while True:
            for message in await self.peek(agent, roles=roles, after=after):
                yield message
                after = message.position
            await asyncio.sleep(_FOLLOW_S)

    async def wait(self, timeout: Duration = 0.0, *, roles: Sequence[str] = ()) -> list[Message]:
        """Wait up to `timeout` seconds for messages; return the first ones without claiming them."""
        waiting = LongWait(seconds_of("timeout", timeout))
        while True:
            step = waiting.next_step()
            path = _inbox(self._connection.agent) + "/wait"
            query = {"timeout": in_query(step), "roles": _joined(roles)}
            found = self._read(await self._connection.get(path, timeout_s=step + CALL_S, **query))
            if found or waiting.is_last:
                return found

    async def claim(
        self,
        agent: str | None = None,
        *,
        roles: Sequence[str] = (),
        limit: int = _MAX_CLAIMED,
        lease: Duration = _LEASE_S,
    ) -> list[Message]:
        """Receive messages under a visibility timeout; acknowledge or reject each."""
        found: list[Message] = []
        while len(found) < limit:
            wanted = min(_MAX_CLAIMED, limit - len(found))
            body = {"roles": list(roles), "limit": wanted, "lease": seconds_of("lease", lease)}
            path = _inbox(agent or self._connection.agent) + "/claim"
            more = self._read(await self._connection.post(path, body))
            found += more
            if len(more) < wanted:
                break
        return found

    async def receive(
        self, agent: str | None = None, *, roles: Sequence[str] = (), lease: Duration = _LEASE_S
    ) -> AsyncGenerator[Message, None]:
        """Yield messages as they come, claimed one at a time; each must be acknowledged."""
        while True:
            for message in await self.claim(agent, roles=roles, limit=1, lease=lease):
                yield message
                break
            else:
                await self.wait(MAX_WAIT_S, roles=roles)
                await asyncio.sleep(_POLL_S)  # what is there may be claimed by another process

    async def ack(self, *messages: Message) -> None:
        """Acknowledge messages; raise `NotHolder` if one is not held under its claim."""
        for message in messages:
            await self.ack_by_claim(message.message_uuid, message.claim_owner or "")

    async def ack_by_claim(self, beginning: str, claim_owner: str) -> Message:
        """Acknowledge a message under a claim that any process has made, and return it."""
        return self._read(
            [await self._connection.post(_path(beginning, "/ack"), {"claim_owner": claim_owner})]
        )[0]

    async def nack(
        self, message: Message, *, retry_in: Duration | None = None, reason: str | None = None
    ) -> None:
        """Reject a message: it is redelivered after `retry_in` seconds, by default longer each time."""
        owner = message.claim_owner or ""
        await self.nack_by_claim(message.message_uuid, owner, retry_in=retry_in, reason=reason)

    async def nack_by_claim(
        self,
        beginning: str,
        claim_owner: str,
        *,
        retry_in: Duration | None = None,
        reason: str | None = None,
    ) -> Message:
        """Reject a message under a claim that any process has made, and return it."""
        retry_s = seconds_or_none("retry_in", retry_in)
        body = {"claim_owner": claim_owner, "retry_in": retry_s, "reason": reason}
        return self._read([await self._connection.post(_path(beginning, "/nack"), body)])[0]

    def stamp_of(self, message: Message) -> MessageStamp:
        """Return the bar and the beat of a message that this client has read."""
        return self._stamps.get(message.message_uuid, MessageStamp(None, None))

    def _read(self, documents: Sequence[Document]) -> list[Message]:
        for each in documents:
            self._stamps[each["message_uuid"]] = MessageStamp(each.get("window"), each.get("beat_index"))
        return [message_of(each) for each in documents]


def _inbox(agent: str) -> str:
    return f"/v1/inbox/{quote(agent, safe='')}"


def _path(beginning: str, rest: str = "") -> str:
    return f"/v1/messages/{quote(beginning, safe='')}{rest}"


def _joined(roles: Sequence[str]) -> str | None:
    return ",".join(roles) or None
