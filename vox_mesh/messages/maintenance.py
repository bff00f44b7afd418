"""The keeper: tells senders what is overdue, ends what has expired, and forgets what is long done."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from vox_mesh.errors import DatabaseUnavailable, MessageTaken
from vox_mesh.messages.bus import Bus
from vox_mesh.messages.scripts import json, sql
from vox_mesh.model.base.ulid import derived
from vox_mesh.model.messages.records import MESH_AGENT, Message
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

OVERDUE: Final = "mesh.overdue"
DEAD_FOR: Final = 30
"""Dead letters are kept for so many times as long."""

_RECEIVERS_MS: Final = 3_600_000
"""Receivers that were not seen for an hour are pruned; each is seen several times a minute."""

_AT_ONCE: Final = 500
_PARTS: Final = 40
_CHANGED: Final = Answer(sql("changed"), columns=("changed",))


class Keeper:
    """Keeps messages in order. Any number of nodes may do so at the same time."""

    def __init__(self, store: Store, clock: MeshClock, bus: Bus, retention_s: float) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._clock = clock
        self._bus = bus
        self._retention_ms = round(retention_s * 1_000)

    async def run_once(self) -> None:
        """Do what there is to do, as far as our copy of the database shows; nothing while that is away."""
        if not self._clock.can_author:
            return
        with suppress(DatabaseUnavailable):
            await self._keep()

    async def _keep(self) -> None:
        now_ms = self._clock.now_ms
        acked_ms, dead_ms = now_ms - self._retention_ms, now_ms - DEAD_FOR * self._retention_ms
        since_ms = (now_ms, acked_ms, dead_ms, now_ms - _RECEIVERS_MS)
        rows = await self._store.read(sql("is_work"), (*self._mesh, *since_ms))
        expired, overdue, forgettable, decayed, forsaken = rows[0]
        if overdue:
            await self._tell_of_overdue(now_ms)
        if expired:
            await self._repeat("expire")
        if forgettable:
            await self._repeat("forget", json(("acked", "expired")), self._retention_ms)
        if decayed:
            await self._repeat("forget", json(("dead",)), DEAD_FOR * self._retention_ms)
        if forsaken:
            await self._repeat("forget_receivers", _RECEIVERS_MS)

    async def _repeat(self, name: str, *values: Any) -> None:
        """Do it for all that there are, a part at a time: nobody else is to wait for long."""
        statement = Statement(sql(name), (*self._mesh, *values, _AT_ONCE))
        for _ in range(_PARTS):
            done = (await self._store.write(Script(statement, answer=_CHANGED))).rows.value
            if done < _AT_ONCE:
                return

    async def _tell_of_overdue(self, now_ms: int) -> None:
        """Each sender is told once: whoever tells it uses the same id."""
        late = await self._bus.letters.overdue(untold=True, limit=_AT_ONCE)
        for message in late:
            if message.sender_agent != MESH_AGENT:
                with suppress(MessageTaken):  # somebody else told it
                    await self._tell_sender(message, now_ms)
        told = Statement(sql("told"), (*self._mesh, json(message.message_uuid for message in late)))
        await self._store.write(Script(told))
        _log.info("%d messages are overdue, and their senders told", len(late))

    async def _tell_sender(self, message: Message, now_ms: int) -> None:
        told = {
            "message_uuid": message.message_uuid,
            "receiver_agent": message.receiver_agent,
            "state": message.state,
            "late_ms": now_ms - (message.ack_by_ms or now_ms),
        }
        await self._bus.send(
            message.sender_agent,
            told,
            sender=MESH_AGENT,
            msg_type=OVERDUE,
            thread=message.thread,
            reply_to=message.message_uuid,
            key=derived(message.message_uuid, "overdue"),
        )
