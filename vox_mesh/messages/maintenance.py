"""Message maintenance: notify senders of overdue messages, expire messages, and prune old receivers."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final

from vox_mesh.errors import DatabaseUnavailable, MeshError, MessageTaken, OutcomeUnknown
from vox_mesh.messages.messages import Messages
from vox_mesh.messages.scripts import CHANGED, json, sql
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.model.base.ulid import derive_ulid
from vox_mesh.model.messages.records import Message
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.permit import MESH_PERMIT
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

OVERDUE: Final = "mesh.overdue"
_RECEIVERS_MS: Final = 3_600_000
"""Receivers that were not seen for an hour are pruned; each is seen several times a minute."""

_BATCH_SIZE: Final = 500
_MAX_BATCHES: Final = 40


class MessageMaintenance:
    """Maintain the messages of the mesh. Any number of nodes may do so at the same time."""

    def __init__(self, store: Store, clock: MeshClock, messages: Messages) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock
        self._messages = messages

    async def run_once(self) -> None:
        """Do the work that our copy of the database shows; nothing while the database is unreachable."""
        if not self._clock.can_author:
            return
        with suppress(DatabaseUnavailable):
            await self._maintain()

    async def _maintain(self) -> None:
        now_ms = self._clock.now_ms
        since_ms = (now_ms, now_ms - _RECEIVERS_MS)
        rows = await self._store.read(sql("has_maintenance"), (*self._mesh, *since_ms))
        has_expired, has_overdue, has_old_receivers = rows[0]
        if has_expired:  # first: no message to a sender may keep others from ending
            await self._repeat("expire")
        if has_old_receivers:
            await self._repeat("forget_receivers", _RECEIVERS_MS)
        if has_overdue:
            await self._notify_overdue(now_ms)

    async def _repeat(self, name: str, *values: Any) -> None:
        """Run a statement in batches until nothing is left, so that other writes need not wait long."""
        statement = Statement(sql(name), (*self._mesh, *values, _BATCH_SIZE))
        for _ in range(_MAX_BATCHES):
            done = (await self._store.write(Script(statement, answer=CHANGED))).rows.value
            if done < _BATCH_SIZE:
                return

    async def _notify_overdue(self, now_ms: int) -> None:
        """Notify each sender once: all nodes use the same message id.

        A notice that can't be sent is dropped, such as to a scope that is unknown or takes no more.
        """
        late = await self._messages.queries.overdue(unnotified=True, limit=_BATCH_SIZE)
        for message in late:
            if message.sender_agent == MESH_AGENT:
                continue
            try:
                await self._notify_sender(message, now_ms)
            except MessageTaken:
                continue  # another node notified it
            except (DatabaseUnavailable, OutcomeUnknown):
                raise  # it is tried again
            except MeshError as error:
                _log.warning(
                    "sender of overdue message not notified: message=%s sender=%s: %s",
                    *(message.message_uuid, message.sender_agent, error.line),
                )
        notified = Statement(
            sql("mark_overdue_reported"), (*self._mesh, json(message.message_uuid for message in late))
        )
        await self._store.write(Script(notified))
        _log.info("overdue messages reported: messages=%d", len(late))

    async def _notify_sender(self, message: Message, now_ms: int) -> None:
        notice = {
            "message_uuid": message.message_uuid,
            "receiver_agent": message.receiver_agent,
            "state": message.state,
            "late_ms": now_ms - (message.ack_by_ms or now_ms),
        }
        await self._messages.send(
            message.sender_agent,
            notice,
            sender=MESH_AGENT,
            permit=MESH_PERMIT,
            msg_type=OVERDUE,
            thread=message.thread,
            reply_to=message.message_uuid,
            key=derive_ulid(message.message_uuid, "overdue"),
        )
