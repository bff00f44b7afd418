"""Loops that receive: their consumers join with the first step, and release what they hold at the end."""

from __future__ import annotations

import asyncio
from typing import Any

from vox_mesh.messages.consumer import Consumer
from vox_mesh.messages.inboxes import LocalInboxes, RunInBackground
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.wakeups import Wakeups


class ReceiveLoops:
    """The loops of one process, by their consumers."""

    def __init__(
        self,
        consumers: list[Consumer],
        wakeups: Wakeups,
        inboxes: LocalInboxes,
        relay_buffer: RelayBuffer,
        run_in_background: RunInBackground,
    ) -> None:
        self._consumers = consumers
        self._wakeups = wakeups
        self._inboxes = inboxes
        self._relay_buffer = relay_buffer
        self._run_in_background = run_in_background

    def join(self, consumer: Consumer) -> None:
        """Wake this consumer from now on, and announce its inboxes."""
        self._consumers.append(consumer)
        self._relay_buffer.join(consumer.names, consumer)
        self._wakeups.join()
        self._inboxes.announce_soon(consumer.names)

    def leave(self, consumer: Consumer, *, is_cancelled: bool) -> None:
        """Have the loop of this consumer end. A cancelled one also releases the message in progress."""
        self._consumers.remove(consumer)
        self._wakeups.leave()
        self._relay_buffer.leave(consumer.names, consumer)
        self._run_in_background(self._release(consumer, is_cancelled=is_cancelled))

    def end_handler(self, consumer: Consumer, handler: asyncio.Task[Any]) -> None:
        """Release the messages of a cancelled handler, since it will not settle them."""
        if handler.cancelled() and not handler.get_loop().is_closed():
            self._run_in_background(consumer.give_up())

    async def _release(self, consumer: Consumer, *, is_cancelled: bool) -> None:
        """Release the messages of a consumer, and the leases of inboxes without a consumer here."""
        if is_cancelled:
            await consumer.give_up()
        await consumer.close()
        names = self._relay_buffer.names
        await self._inboxes.leave([each for each in consumer.names if each not in names])
