"""Polling: claim the messages that are ready now, from the database itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from vox_mesh.errors import MeshError
from vox_mesh.messages.claims import MIN_LEASE_S, Claims, firsts_of_pairs
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.model.messages.records import Message

RunInBackground = Callable[[Coroutine[None, None, None]], None]
"""Runs something that is finished before the messages are closed."""


class InboxPoller:
    """Claim messages for one call, without a consumer that goes on receiving."""

    def __init__(
        self,
        claims: Claims,
        relay_buffer: RelayBuffer,
        run_in_background: RunInBackground,
        monotonic: Callable[[], float],
    ) -> None:
        self._claims = claims
        self._relay_buffer = relay_buffer
        self._run_in_background = run_in_background
        self._monotonic = monotonic

    async def claim(self, names: Sequence[str], *, limit: int, lease_s: float) -> list[Message]:
        """Claim the messages that are ready now. If no answer comes, whatever was claimed is released."""
        deadline = self._monotonic() + lease_s
        claim_name = self._claims.new_name()
        try:
            messages = await self._claims.claim(names, claim_name, lease_s=lease_s, limit=limit)
        except (asyncio.CancelledError, MeshError):
            self._run_in_background(self._undo(names, claim_name, limit))
            raise
        messages = self._without_held(self._without_done(messages), deadline)
        self._relay_buffer.drop_claimed(messages)
        for message in messages:
            self._claims.hand_out(message, deadline)
        return messages

    async def _undo(self, names: Sequence[str], claim_name: str, limit: int) -> None:
        """Release the messages that a claim got, or would still get."""
        try:
            messages = await self._claims.claim(names, claim_name, lease_s=MIN_LEASE_S, limit=limit)
            await self._claims.release(messages, firsts_of_pairs(messages))
        except MeshError:
            await self._claims.release_claim(names, claim_name)

    def _without_done(self, messages: list[Message]) -> list[Message]:
        """Return the messages that were not acknowledged here before; the others are acknowledged again."""
        done = [each for each in messages if self._relay_buffer.is_done(each)]
        if done:
            self._run_in_background(self._claims.ack_again(done))
        return [each for each in messages if each not in done]

    def _without_held(self, messages: list[Message], deadline: float) -> list[Message]:
        """Return the messages of pairs of which no consumer of this node holds a relayed one."""
        held = self._relay_buffer.holds.cover(messages, deadline, but=())
        if not held:
            return messages
        pairs = {each.pair for each in held}
        behind = [each for each in messages if each.pair in pairs and each not in held]
        self._run_in_background(self._claims.release(behind, ()))
        return [each for each in messages if each.pair not in pairs]
