"""Relay reception: verify and take in messages that other nodes relay."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import orjson

from vox_mesh.errors import (
    BadValue,
    DatabaseUnavailable,
    MessageExpired,
    SenderRefused,
    StaleIncarnation,
)
from vox_mesh.messages.messages import Messages
from vox_mesh.messages.scripts import id_taken, json, sql
from vox_mesh.model.base.canonical import is_canonical
from vox_mesh.model.base.hlc import MAX_AHEAD_MS, Hlc
from vox_mesh.model.base.json_text import check_depth
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import (
    MAX_PAYLOAD_BYTES,
    UNKNOWN,
    Message,
    checked_id,
    checked_priority,
    checked_receiver,
    checked_sender,
    checked_trace,
    checked_word,
    signed_order,
)
from vox_mesh.model.oplog.chain import COMMANDS
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

WINDOW_MS: Final = 600_000
"""A message is relayed within seconds or not at all; an older one is a replay."""

_VERIFY_TIMEOUT_S: Final = 2.0
"""How long the database may take to identify the sender: less than the relaying node waits."""

_READ_TIMEOUT_S: Final = 1.0
_RECHECK_DELAY_S: Final = 1.0
"""How long the database is not asked again about a node that failed verification."""

_MAX_TAKEN: Final = 8_192
_MAX_NODES: Final = 1_024


class Reception:
    """Verify relayed messages, all or none, before they have any effect.

    Until the signatures are verified, no value that a stranger could choose is stored or logged, and the
    database is asked at most once a second about each node.
    """

    def __init__(
        self,
        store: Store,
        messages: Messages,
        clock: MeshClock,
        window_ms: int = WINDOW_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._messages = messages
        self._clock = clock
        self._window_ms = window_ms
        self._monotonic = monotonic
        self._log_throttled = ThrottledLogger(_log, monotonic)
        self._doubted = Recent[str, float](_MAX_NODES)  # unverified nodes, and when to ask again
        self._incarnations = Recent[str, int](_MAX_NODES)  # the latest seen of each node
        self._taken = Recent[str, int](_MAX_TAKEN)  # messages, and a hash of their content

    @property
    def follows_commits(self) -> bool:
        """Return whether this node learns of each commit of the database at once."""
        return self._store.is_pushed

    async def take(self, messages: Sequence[Message], *, stored: bool, order: str | None = None) -> None:
        """Take in messages relayed by one node; `stored`: they are known to be in the database.

        Otherwise they are stored from here. A message relayed twice has no further effect. `order` is the
        node's signature of their order. Without it, as from nodes of an older version, the order is unknown,
        and they are handed out as the database has them.
        """
        for message in messages:
            check_fields(message)
            self._refuse_if_untimely(message)
        node = messages[0].sender_node
        if any(message.sender_node != node for message in messages):
            raise BadValue("messages of one request must be of one node", hint="relay each node's on its own")
        await self._refuse_unless_genuine(node, messages)
        if order is None:
            messages = [message._replace(after=UNKNOWN) for message in messages]
        else:
            await self._refuse_unless_ordered(node, messages, order, stored=stored)
        for message in messages:
            check_payload(message)
        new = self._new_messages(messages)
        if new:
            await self._take_new(node, new, stored=stored)

    async def _take_new(self, node: str, messages: Sequence[Message], *, stored: bool) -> None:
        known = await self._read_known(node, messages)
        self._refuse_if_superseded(node, messages)
        self._clock.receive(max(message.hlc for message in messages))
        if not stored:
            for message in messages:
                if message.message_uuid not in known:
                    await self._store_relayed(message)
        waiting = [each for each in messages if not known.get(each.message_uuid, False)]
        self._messages.relay_buffer.add(await self._messages.agent_signatures.check(waiting))
        for message in messages:
            self._taken[message.message_uuid] = hash(_content(message))

    async def _store_relayed(self, message: Message) -> None:
        try:
            await self._messages.store_relayed(message)
        except StaleIncarnation as error:  # this process is stale, not the sender
            raise DatabaseUnavailable(f"relayed message not stored: {error}", hint=error.hint) from None

    # --- verifying -------------------------------------------------------------------------------

    def _refuse_if_untimely(self, message: Message) -> None:
        sent_ms, now_ms = Hlc.parse(message.hlc).wall_ms, self._clock.now_ms
        if sent_ms > now_ms + MAX_AHEAD_MS:
            raise BadValue(
                f"message {message.message_uuid} is dated {sent_ms - now_ms} ms in the future",
                hint="set the sender's clock",
            )
        is_old = sent_ms < now_ms - self._window_ms
        if is_old or (message.expires_ms is not None and message.expires_ms <= now_ms):
            raise MessageExpired(
                f"message {message.message_uuid} is too old for the relay",
                hint="receive it from the database, if it was stored",
            )

    async def _refuse_unless_genuine(self, node: str, messages: Sequence[Message]) -> None:
        senders = self._messages.verifier
        may_ask = self._doubted.get(node, 0.0) <= self._monotonic()
        try:
            async with asyncio.timeout(_VERIFY_TIMEOUT_S):
                is_known = await senders.is_known(node, ask=may_ask)
                genuine = await senders.verify(messages, ask=may_ask) if is_known else []
        except TimeoutError:
            raise DatabaseUnavailable("sender not verified: the database did not answer in time") from None
        if not is_known:
            self._doubt(node)
            self._log_throttled(logging.WARNING, "relayed message refused, no key known: node_id=%s", node)
            raise SenderRefused(
                f"no key is known of node {node}", hint="check that it has joined this mesh, in this scope"
            )
        for message, is_genuine in zip(messages, genuine, strict=True):
            if not is_genuine:
                self._doubt(node)
                raise SenderRefused(
                    f"message {message.message_uuid} was not signed with a key of node {node}"
                )

    async def _refuse_unless_ordered(
        self, node: str, messages: Sequence[Message], signature: str, *, stored: bool
    ) -> None:
        text = signed_order(messages, self._messages.node_id, *self._mesh, stored=stored)
        if not await self._messages.verifier.has_signed(node, text, signature, ask=False):
            self._doubt(node)
            raise SenderRefused(f"the order of the messages was not signed with a key of node {node}")

    def _doubt(self, node: str) -> None:
        now = self._monotonic()
        if self._doubted.get(node, 0.0) <= now:
            self._doubted[node] = now + _RECHECK_DELAY_S

    async def _read_known(self, node: str, messages: Sequence[Message]) -> dict[str, bool]:
        """Return which of these our copy of the database has, and whether they have ended.

        If it can't be read, none: they are treated as new.
        """
        given = json((message.message_uuid, message.signature) for message in messages)
        try:
            rows = await self._store.read(
                sql("relayed_state"), (*self._mesh, node, given), timeout=_READ_TIMEOUT_S
            )
        except DatabaseUnavailable:
            return {}
        known: dict[str, bool] = {}
        by_id = {message.message_uuid: message for message in messages}
        for message_uuid, content, number in rows:
            message = by_id.get(str(message_uuid))
            if message is None:
                latest = max(cast(int, number), self._incarnations.get(node, 0))  # our copy may be behind
                self._incarnations[node] = latest
            elif content is not None and tuple(orjson.loads(str(content))) != _content(message):
                raise id_taken(message)
            else:
                known[message.message_uuid] = bool(number)
        return known

    def _refuse_if_superseded(self, node: str, messages: Sequence[Message]) -> None:
        latest = self._incarnations.get(node, 0)
        for message in messages:
            if message.sender_incarnation is None:  # from a command
                continue
            if message.sender_incarnation < latest:
                raise StaleIncarnation(
                    f"message {message.message_uuid} refused: {node} has superseded incarnation "
                    f"{message.sender_incarnation} by {latest}",
                    hint="stop the older process",
                )
            latest = message.sender_incarnation
        if latest:
            self._incarnations[node] = latest

    def _new_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that were not relayed before."""
        new = []
        for message in messages:
            content = self._taken.get(message.message_uuid)
            if content is None:
                new.append(message)
            elif content != hash(_content(message)):
                raise id_taken(message)
        return new


def _content(message: Message) -> tuple[str, str, str, str]:
    """Return the content by which a message is recognised when it is sent again."""
    return message.sender_agent, message.receiver_agent, message.msg_type, message.payload


def check_fields(message: Message) -> None:
    """Raise `BadValue` for an invalid message; the checks that take longer come later."""
    checked_id(message.message_uuid)
    checked_word("node", message.sender_node)
    checked_sender(message.sender_agent)
    checked_receiver(message.receiver_agent)
    checked_word("message type", message.msg_type)
    checked_priority(message.priority)
    for name, text in (("thread", message.thread_id), ("correlation", message.correlation_id)):
        if text is not None:
            checked_word(name, text)
    if message.reply_to is not None:
        checked_id(message.reply_to)
    if message.traceparent is not None:
        checked_trace(message.traceparent)
    if Hlc.parse(message.hlc).author not in (message.sender_node, message.sender_node + COMMANDS):
        raise BadValue(f"message time must be one of node {message.sender_node}, got {message.hlc!r}")


def check_payload(message: Message) -> None:
    """Raise `BadValue` for a body that is too large, or not canonical JSON."""
    if len(message.payload.encode()) > MAX_PAYLOAD_BYTES:
        raise BadValue(f"message body must be at most {MAX_PAYLOAD_BYTES} bytes")
    if not is_canonical(message.payload):
        raise BadValue("message body must be canonical JSON")
    check_depth(orjson.loads(message.payload), message.payload)
