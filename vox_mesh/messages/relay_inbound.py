"""Reception: takes what other nodes bring, if it is what it seems."""

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
from vox_mesh.messages.bus import Bus
from vox_mesh.messages.log_throttle import ThrottledLogger
from vox_mesh.messages.scripts import json, sql, taken
from vox_mesh.model.base.canonical import is_canonical
from vox_mesh.model.base.hlc import MAX_AHEAD_MS, Hlc
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import (
    MAX_PAYLOAD_BYTES,
    Message,
    checked_agent,
    checked_id,
    checked_priority,
    checked_receiver,
    checked_trace,
    checked_word,
)
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import COMMANDS
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

WINDOW_MS: Final = 600_000
"""A message is brought within seconds or not at all: one from before that is somebody's copy of it."""

_ASK_S: Final = 2.0
"""So long the database may take to say who somebody is: less than whoever brings a message waits."""

_LOOK_S: Final = 1.0
_DOUBT_S: Final = 1.0
"""So long it is not asked again of somebody who was not who they said."""

_MAX_TAKEN: Final = 8_192
_MAX_NODES: Final = 1_024


class Reception:
    """Checks messages, all or none, before anything is made of them.

    Until the signatures are verified, nothing is remembered, written or told that a stranger could choose,
    and the database is asked at most once a second about each name.
    """

    def __init__(
        self,
        store: Store,
        bus: Bus,
        clock: MeshClock,
        window_ms: int = WINDOW_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._bus = bus
        self._clock = clock
        self._window_ms = window_ms
        self._monotonic = monotonic
        self._say = ThrottledLogger(_log, monotonic)
        self._doubted = Recent[str, float](_MAX_NODES)  # nodes, and when they may be asked for again
        self._incarnations = Recent[str, int](_MAX_NODES)  # the latest that was heard of each node
        self._taken = Recent[str, int](_MAX_TAKEN)  # messages, and a hash of their words

    async def take(self, messages: Sequence[Message], *, stored: bool) -> None:
        """Take messages that one node brought; `stored`: it knows that they are in the database.

        Otherwise they are stored from here. Brought twice, a message is the same one.
        """
        for message in messages:
            _check(message)
            self._refuse_if_untimely(message)
        node = messages[0].sender_node
        if any(message.sender_node != node for message in messages):
            raise BadValue("the messages of one request are to be of one node", hint="bring its own only")
        await self._refuse_unless_genuine(node, messages)
        for message in messages:
            _check_payload(message)
        new = self._not_taken(messages)
        if new:
            await self._take_new(node, new, stored=stored)

    async def _take_new(self, node: str, messages: Sequence[Message], *, stored: bool) -> None:
        known = await self._known(node, messages)
        self._refuse_if_replaced(node, messages)
        self._clock.receive(max(message.hlc for message in messages))
        if not stored:
            for message in messages:
                if message.message_uuid not in known:
                    await self._keep(message)
        self._bus.arrivals.bring([each for each in messages if not known.get(each.message_uuid, False)])
        for message in messages:
            self._taken[message.message_uuid] = hash(_words(message))

    async def _keep(self, message: Message) -> None:
        try:
            await self._bus.keep_brought(message)
        except StaleIncarnation as error:  # not the sender is: this process is
            raise DatabaseUnavailable(f"this process can't store it: {error}", hint=error.hint) from None

    # --- who brings it, and when -----------------------------------------------------------------

    def _refuse_if_untimely(self, message: Message) -> None:
        sent_ms, now_ms = Hlc.parse(message.hlc).wall_ms, self._clock.now_ms
        if sent_ms > now_ms + MAX_AHEAD_MS:
            raise BadValue(
                f"message {message.message_uuid} was written {sent_ms - now_ms} ms from now",
                hint="set the sender's clock",
            )
        is_old = sent_ms < now_ms - self._window_ms
        if is_old or (message.expires_ms is not None and message.expires_ms <= now_ms):
            raise MessageExpired(
                f"message {message.message_uuid} is too old to be brought",
                hint="if it was stored, its receiver finds it in the database",
            )

    async def _refuse_unless_genuine(self, node: str, messages: Sequence[Message]) -> None:
        senders = self._bus.senders
        may_ask = self._doubted.get(node, 0.0) <= self._monotonic()
        try:
            async with asyncio.timeout(_ASK_S):
                is_known = await senders.is_known(node, ask=may_ask)
                genuine = await senders.genuine(messages, ask=may_ask) if is_known else []
        except TimeoutError:
            raise DatabaseUnavailable("the database does not say in time who the sender is") from None
        if not is_known:
            self._doubt(node)
            self._say(logging.WARNING, "a message from %s was refused: no key is known of that node", node)
            raise SenderRefused(
                f"no key is known of the node {node}", hint="has it joined this mesh, in this scope?"
            )
        for message, is_genuine in zip(messages, genuine, strict=True):
            if not is_genuine:
                self._doubt(node)
                raise SenderRefused(f"message {message.message_uuid} was not signed with a key of {node}")

    def _doubt(self, node: str) -> None:
        now = self._monotonic()
        if self._doubted.get(node, 0.0) <= now:
            self._doubted[node] = now + _DOUBT_S

    async def _known(self, node: str, messages: Sequence[Message]) -> dict[str, bool]:
        """Which of these our copy of the database has, and whether they have ended.

        If it can't be asked, none: then it is as if they came first.
        """
        given = json((message.message_uuid, message.signature) for message in messages)
        try:
            rows = await self._store.read(sql("brought"), (*self._mesh, node, given), timeout=_LOOK_S)
        except DatabaseUnavailable:
            return {}
        known: dict[str, bool] = {}
        by_id = {message.message_uuid: message for message in messages}
        for message_uuid, words, number in rows:
            message = by_id.get(str(message_uuid))
            if message is None:
                latest = max(cast(int, number), self._incarnations.get(node, 0))  # our copy may be behind
                self._incarnations[node] = latest
            elif words is not None and tuple(orjson.loads(str(words))) != _words(message):
                raise taken(message)
            else:
                known[message.message_uuid] = bool(number)
        return known

    def _refuse_if_replaced(self, node: str, messages: Sequence[Message]) -> None:
        latest = self._incarnations.get(node, 0)
        for message in messages:
            if message.sender_incarnation is None:  # a command's
                continue
            if message.sender_incarnation < latest:
                raise StaleIncarnation(
                    f"{node} has begun again since: message {message.message_uuid} is of incarnation "
                    f"{message.sender_incarnation}, now it is {latest}",
                    hint="stop the older process",
                )
            latest = message.sender_incarnation
        if latest:
            self._incarnations[node] = latest

    def _not_taken(self, messages: Sequence[Message]) -> list[Message]:
        """Those that were not brought before; to whom brings them again, nothing need be done."""
        new = []
        for message in messages:
            words = self._taken.get(message.message_uuid)
            if words is None:
                new.append(message)
            elif words != hash(_words(message)):
                raise taken(message)
        return new


def _words(message: Message) -> tuple[str, str, str, str]:
    """What makes it the same message, also if it was written once more, at another time."""
    return message.sender_agent, message.receiver_agent, message.msg_type, message.payload


def _check(message: Message) -> None:
    """Raise what is wrong with a message, as its sender should have; what takes long comes later."""
    checked_id(message.message_uuid)
    checked_word("node", message.sender_node)
    checked_agent(message.sender_agent)
    checked_receiver(message.receiver_agent)
    checked_word("type of message", message.msg_type)
    checked_priority(message.priority)
    for name, text in (("thread", message.thread_id), ("correlation", message.correlation_id)):
        if text is not None:
            checked_word(name, text)
    if message.reply_to is not None:
        checked_id(message.reply_to)
    if message.traceparent is not None:
        checked_trace(message.traceparent)
    if Hlc.parse(message.hlc).author not in (message.sender_node, message.sender_node + COMMANDS):
        raise BadValue(f"the time {message.hlc!r} is not one of {message.sender_node}'s")


def _check_payload(message: Message) -> None:
    if len(message.payload.encode()) > MAX_PAYLOAD_BYTES:
        raise BadValue(f"the message's body takes more than {MAX_PAYLOAD_BYTES} bytes")
    if not is_canonical(message.payload):
        raise BadValue("the payload is not canonical JSON")
