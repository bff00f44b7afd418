"""Settlement: acknowledge, reject and renew messages for the callers of this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from vox_mesh.errors import MeshError, NotHolder
from vox_mesh.messages.ack_queue import AckVerdicts, OpenLoop, QueuedAck
from vox_mesh.messages.claims import Claims, is_relayed
from vox_mesh.messages.consumer import Consumer
from vox_mesh.messages.inboxes import InboxLeases
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.model.messages.records import Message
from vox_mesh.observability.log_context import forget_message
from vox_mesh.store.background import RunInBackground
from vox_mesh.store.engines.thread import to_the_end

_log = logging.getLogger(__name__)

_RETRY_DELAY_S: Final = 1.0
_LEAST_LEFT_S: Final = 5.0
"""An ack is not queued if less than this is left of the lease: it might come too late."""

_CLOSE_TIMEOUT_S: Final = 25.0
"""How long the end of the mesh waits for acks: two requests with the usual deadline take less."""


class Settlement:
    """Settle messages, and keep consumers and relay buffer in step with that."""

    def __init__(
        self,
        claims: Claims,
        relay_buffer: RelayBuffer,
        leases: InboxLeases,
        consumers: Sequence[Consumer],
        run_in_background: RunInBackground,
        monotonic: Callable[[], float],
    ) -> None:
        self._claims = claims
        self._relay_buffer = relay_buffer
        self._leases = leases
        self._consumers = consumers
        self._run_in_background = run_in_background
        self._monotonic = monotonic
        self._is_closing = False
        claims.acks.connect(claims.write_acks, run_in_background, self._ended)

    async def ack(self, messages: Sequence[Message]) -> bool:
        """Acknowledge messages. Return whether the database has recorded it; otherwise it is in the spool."""
        if not messages:
            return True
        claimed: list[Message] = []
        refusals: dict[str, MeshError] = {}
        for message in messages:
            try:
                claimed.append(self._under_claim(message))
            except NotHolder as refusal:
                refusals[message.message_uuid] = refusal
        verdicts = await self._claims.ack(claimed)
        failures, spooled = {**verdicts.failures, **refusals}, verdicts.spooled
        lost: list[Message] = []
        for message in messages:
            forget_message(message)
            error = failures.get(message.message_uuid)
            if error is None:
                self._record_ack(message, spooled=message.message_uuid in spooled)
            elif isinstance(error, NotHolder):
                lost.append(message)
        if lost:
            await self._lose(lost)
        if failures:
            raise next(iter(failures.values()))
        return not spooled

    def _record_ack(self, message: Message, *, spooled: bool) -> None:
        if spooled or is_relayed(message):
            self._relay_buffer.mark_done(message)  # recognised if it is delivered again
        for consumer in self._consumers:
            consumer.mark_settled(message)

    async def ack_in_loops(self, messages: Sequence[Message]) -> bool:
        """Queue the acks of messages in progress in a loop; the next ones may be handed out at once.

        All others are waited for, and also the ack of a relayed message, and of one whose lease is nearly
        over. Return whether the database has recorded all.
        """
        if not self._consumers:
            return await self.ack(messages)
        queue = self._claims.acks
        if queue.is_full and any(self._loop_of(each) is not None for each in messages):
            await queue.wait_for_room()
        others: list[Message] = []
        acks: list[tuple[Message, OpenLoop]] = []
        may_linger = True
        for message in messages:  # no pause until all are queued: in any the caller may be cancelled
            consumer = self._loop_of(message)
            if consumer is None or not consumer.mark_settled(message):
                others.append(message)
                continue
            forget_message(message)
            acks.append((message, consumer))
            may_linger = may_linger and consumer.has_prefetched
        if acks:
            queue.add(acks, may_linger=may_linger)
            await queue.rest()
        return (not others or await self.ack(others)) and not acks

    def _loop_of(self, message: Message) -> OpenLoop | None:
        """Return the loop that has handed out a message, if its ack may be queued."""
        if self._is_closing or is_relayed(message):
            return None
        return self._claims.loop_of(message, _LEAST_LEFT_S)

    def _ended(self, acks: Sequence[QueuedAck], verdicts: AckVerdicts) -> None:
        """Take in the outcome of queued acks."""
        if verdicts.failures:
            first = next(iter(verdicts.failures.values()))
            _log.warning("acks failed: count=%d first=%s", len(verdicts.failures), first.line)
        lost: list[Message] = []
        for _, message, consumer in acks:
            error = verdicts.failures.get(message.message_uuid)
            if error is None and message.message_uuid in verdicts.spooled:
                self._relay_buffer.mark_done(message)
            elif error is not None:
                if isinstance(error, NotHolder):
                    lost.append(message)
                for each in self._consumers:
                    if each is consumer:
                        each.wake()
        if lost:
            self._run_in_background(self._lose(lost))

    async def close(self) -> None:
        """Queue no more acks: callers wait for theirs. Wait until all are settled, or give them up."""
        self._is_closing = True
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._claims.acks.wait_until_settled()
        except TimeoutError:
            self._claims.acks.abandon(_CLOSE_TIMEOUT_S)

    async def nack(self, message: Message, retry_in: float | None, reason: str | None) -> None:
        """Reject a message: it is redelivered after `retry_in` seconds, by default longer each time."""
        claimed = self._under_claim(message)
        if is_relayed(claimed):
            self._relay_buffer.reject(message, _RETRY_DELAY_S if retry_in is None else retry_in)
        else:
            try:
                await self._claims.nack(claimed, retry_in, reason)
            except NotHolder:
                forget_message(message)
                await self._lose([message])
                raise
        forget_message(message)
        if is_relayed(message):
            await self._lose([message])  # the database does not know the messages taken with it
            return
        self._relay_buffer.mark_not_done(message)
        for consumer in self._consumers:
            consumer.mark_rejected(message)

    async def renew(self, message: Message, lease_s: float) -> None:
        """Renew the lease of a message."""
        until = self._monotonic() + lease_s
        claimed = self._under_claim(message)
        if not is_relayed(claimed):
            await self._claims.renew(claimed, lease_s)
        if is_relayed(message):
            self._relay_buffer.holds.renew(message, until, self._leases.until(message.receiver_agent))

    def _under_claim(self, message: Message) -> Message:
        """Return the message under its claim at the database, if this node has made one.

        Raises `NotHolder` if a relayed message is no longer held here.
        """
        if not is_relayed(message):
            return message
        hold = self._relay_buffer.holds.find(message)
        if hold is None:
            raise self._claims.stats.refuse(message)
        return hold.claimed or message

    async def _lose(self, messages: Sequence[Message]) -> None:
        """Release the messages claimed together with ones that are no longer held here."""
        for message in messages:
            self._relay_buffer.mark_not_done(message)
            self._relay_buffer.holds.end(message)
        losing = [consumer.release_lost(message) for message in messages for consumer in self._consumers]
        if losing:
            await to_the_end(asyncio.gather(*losing))
