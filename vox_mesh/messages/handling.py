"""Handling: claim, acknowledge, reject and renew messages for the callers of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from vox_mesh.errors import MeshError, NotHolder
from vox_mesh.messages.claims import MIN_LEASE_S, Claims, firsts_of_pairs, is_relayed
from vox_mesh.messages.consumer import Consumer
from vox_mesh.messages.inbox_leases import InboxLeases
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.model.messages.records import Message
from vox_mesh.observability.log_context import forget_message
from vox_mesh.store.engines.thread import to_the_end

_RETRY_DELAY_S = 1.0

InBackground = Callable[[Coroutine[None, None, None]], None]
"""Runs something that is finished before `Messages` is closed."""


class Handling:
    """Apply callers' operations on messages, and keep consumers and relay buffer in step with them."""

    def __init__(
        self,
        claims: Claims,
        buffer: RelayBuffer,
        leases: InboxLeases,
        consumers: Sequence[Consumer],
        in_background: InBackground,
        monotonic: Callable[[], float],
    ) -> None:
        self._claims = claims
        self._buffer = buffer
        self._leases = leases
        self._consumers = consumers
        self._in_background = in_background
        self._monotonic = monotonic

    # --- claiming --------------------------------------------------------------------------------

    async def claim(self, names: Sequence[str], limit: int, lease_s: float) -> list[Message]:
        """Claim the messages that are ready now. If no answer comes, whatever was claimed is released."""
        deadline = self._monotonic() + lease_s
        name = self._claims.new_name()
        try:
            messages = await self._claims.claim(names, name, lease_s=lease_s, limit=limit)
        except (asyncio.CancelledError, MeshError):
            self._in_background(self._undo(names, name, limit))
            raise
        messages = self._without_held(self._without_done(messages), deadline)
        self._buffer.drop_claimed(messages)
        for message in messages:
            self._claims.hand_out(message, deadline)
        return messages

    def _without_held(self, messages: list[Message], deadline: float) -> list[Message]:
        """Return the messages of pairs of which no consumer of this node holds a relayed one."""
        held = self._buffer.holds.cover(messages, deadline, but=())
        if not held:
            return messages
        pairs = {each.pair for each in held}
        behind = [each for each in messages if each.pair in pairs and each not in held]
        self._in_background(self._claims.release(behind, ()))
        return [each for each in messages if each.pair not in pairs]

    def _without_done(self, messages: list[Message]) -> list[Message]:
        """Return the messages that were not acknowledged here before; the others are acknowledged again."""
        done = [each for each in messages if self._buffer.is_done(each)]
        if done:
            self._in_background(self._claims.ack_again(done))
        return [each for each in messages if each not in done]

    async def _undo(self, names: Sequence[str], name: str, limit: int) -> None:
        """Release the messages that a claim got, or would still get."""
        try:
            messages = await self._claims.claim(names, name, lease_s=MIN_LEASE_S, limit=limit)
            await self._claims.release(messages, firsts_of_pairs(messages))
        except MeshError:
            await self._claims.release_claim(names, name)

    # --- settling --------------------------------------------------------------------------------

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
        failures, spooled = await self._claims.ack(claimed)
        failures |= refusals
        lost: list[Message] = []
        for message in messages:
            forget_message(message)
            error = failures.get(message.message_uuid)
            if error is None:
                self._record_ack(message, spooled=message.message_uuid in spooled)
            elif isinstance(error, NotHolder):
                lost.append(message)
        await self._lose(lost)
        if failures:
            raise next(iter(failures.values()))
        return not spooled

    def _record_ack(self, message: Message, *, spooled: bool) -> None:
        if spooled or is_relayed(message):
            self._buffer.mark_done(message)  # recognised if it is delivered again
        for consumer in self._consumers:
            consumer.mark_settled(message)

    async def nack(self, message: Message, retry_in: float | None, reason: str | None) -> None:
        """Reject a message: it is redelivered after `retry_in` seconds, by default longer each time."""
        claimed = self._under_claim(message)
        if is_relayed(claimed):
            self._buffer.reject(message, _RETRY_DELAY_S if retry_in is None else retry_in)
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
        self._buffer.mark_not_done(message)
        for consumer in self._consumers:
            consumer.mark_rejected(message)

    async def renew(self, message: Message, lease_s: float) -> None:
        """Renew the lease of a message."""
        until = self._monotonic() + lease_s
        claimed = self._under_claim(message)
        if not is_relayed(claimed):
            await self._claims.renew(claimed, lease_s)
        if is_relayed(message):
            self._buffer.holds.renew(message, until, self._leases.until(message.receiver_agent))

    def _under_claim(self, message: Message) -> Message:
        """Return the message under its claim at the database, if this node has made one.

        Raises `NotHolder` if a relayed message is no longer held here.
        """
        if not is_relayed(message):
            return message
        hold = self._buffer.holds.find(message)
        if hold is None:
            raise self._claims.stats.refuse(message)
        return hold.claimed or message

    async def _lose(self, messages: Sequence[Message]) -> None:
        """Release the messages claimed together with lost ones."""
        for message in messages:
            self._buffer.mark_not_done(message)
            self._buffer.holds.end(message)
        losing = [consumer.release_lost(message) for message in messages for consumer in self._consumers]
        if losing:
            await to_the_end(asyncio.gather(*losing))
