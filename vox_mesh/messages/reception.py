"""Reception: takes what other nodes bring, if it is what it seems."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vox_mesh.coordination.clock import MeshClock
from vox_mesh.coordination.identity import COMMANDS
from vox_mesh.errors import BadValue, MessageExpired, SenderRefused, StaleIncarnation
from vox_mesh.messages.bus import Bus
from vox_mesh.messages.scripts import sql
from vox_mesh.model.hlc import MAX_AHEAD_MS, Hlc
from vox_mesh.model.messages import (
    Message,
    checked_agent,
    checked_id,
    checked_priority,
    checked_receiver,
    checked_trace,
    checked_word,
    payload_of,
)
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

WINDOW_MS: Final = 600_000
"""A message is brought within seconds or not at all: one from before that is somebody's copy of it."""


class Reception:
    """Checks messages, all or none, before anything is made of them."""

    def __init__(self, store: Store, bus: Bus, clock: MeshClock) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._bus = bus
        self._clock = clock

    async def take(self, messages: Sequence[Message], *, stored: bool) -> None:
        """Take messages that were brought; `stored`: their sender knows that they are in the database.

        Otherwise they are stored from here. Brought twice, a message is the same one.
        """
        for message in messages:
            _check(message)
            self._refuse_if_untimely(message)
        for node in {message.sender_node for message in messages}:
            await self._refuse_unknown(node)
        for message in messages:
            await self._refuse_if_replaced(message)
        for message, is_genuine in zip(messages, await self._bus.senders.genuine(messages), strict=True):
            if not is_genuine:
                raise SenderRefused(
                    f"message {message.message_uuid} was not signed with a key of {message.sender_node}"
                )
        self._clock.receive(max(message.hlc for message in messages))
        if not stored:
            for message in messages:
                await self._bus.keep_brought(message)
        self._bus.arrivals.bring(messages)

    def _refuse_if_untimely(self, message: Message) -> None:
        sent_ms, now_ms = Hlc.parse(message.hlc).wall_ms, self._clock.now_ms
        if sent_ms > now_ms + MAX_AHEAD_MS:
            raise BadValue(
                f"message {message.message_uuid} was written {sent_ms - now_ms} ms from now",
                hint="set the sender's clock",
            )
        if sent_ms < now_ms - WINDOW_MS or (message.expires_ms is not None and message.expires_ms <= now_ms):
            raise MessageExpired(
                f"message {message.message_uuid} is too old to be brought",
                hint="if it was stored, its receiver finds it in the database",
            )

    async def _refuse_unknown(self, node_id: str) -> None:
        if not await self._bus.senders.is_known(node_id):
            _log.warning("a message from %s was refused: no key is known of that node", node_id)
            raise SenderRefused(
                f"no key is known of the node {node_id}", hint="has it joined this mesh, in this scope?"
            )

    async def _refuse_if_replaced(self, message: Message) -> None:
        if message.sender_incarnation is None:
            return
        rows = await self._store.read(sql("incarnation_of"), (*self._mesh, message.sender_node))
        if rows and message.sender_incarnation < rows.value:
            raise StaleIncarnation(
                f"{message.sender_node} has begun again since: message {message.message_uuid} is of "
                f"incarnation {message.sender_incarnation}, now it is {rows.value}",
                hint="stop the older process",
            )


def _check(message: Message) -> None:
    """Raise what is wrong with a message, as its sender should have."""
    checked_id(message.message_uuid)
    checked_agent(message.sender_agent)
    checked_receiver(message.receiver_agent)
    checked_word("type of message", message.msg_type)
    checked_priority(message.priority)
    if payload_of(message.body) != message.payload:
        raise BadValue("the payload is not canonical JSON")
    for name, text in (("thread", message.thread_id), ("correlation", message.correlation_id)):
        if text is not None:
            checked_word(name, text)
    if message.reply_to is not None:
        checked_id(message.reply_to)
    if message.traceparent is not None:
        checked_trace(message.traceparent)
    if Hlc.parse(message.hlc).author not in (message.sender_node, message.sender_node + COMMANDS):
        raise BadValue(f"the time {message.hlc!r} is not one of {message.sender_node}'s")
