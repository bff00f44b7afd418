"""Loops that receive: their consumers join with the first step, and release what they hold at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final

from vox_mesh.messages.ack_queue import AckQueue
from vox_mesh.messages.consumer import Consumer
from vox_mesh.messages.inboxes import LocalInboxes
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.wakeups import Wakeups
from vox_mesh.model.messages.records import Message
from vox_mesh.observability.log_context import LogScope, detached_context, message_scope
from vox_mesh.store.background import RunInBackground

_CLOSE_TIMEOUT_S: Final = 10.0
"""How long the end of a loop waits for its queued acks."""


class ReceiveLoops:
    """The loops of one process, by their consumers."""

    def __init__(
        self,
        consumers: list[Consumer],
        wakeups: Wakeups,
        inboxes: LocalInboxes,
        relay_buffer: RelayBuffer,
        acks: AckQueue,
        run_in_background: RunInBackground,
    ) -> None:
        self._consumers = consumers
        self._wakeups = wakeups
        self._inboxes = inboxes
        self._relay_buffer = relay_buffer
        self._acks = acks
        self._run_in_background = run_in_background

    def open(self, make_consumer: Callable[[], Consumer]) -> ReceiveLoop:
        """Return a loop whose consumer is made with its first step."""
        return ReceiveLoop(self, self._acks, make_consumer)

    def join(self, consumer: Consumer) -> None:
        """Wake this consumer from now on, and announce its inboxes."""
        self._consumers.append(consumer)
        self._relay_buffer.join(consumer.names, consumer)
        self._wakeups.join()
        self._inboxes.announce_soon(consumer.names)

    async def wait_for_message(self, consumer: Consumer) -> Message:
        """Return the next message for a consumer as soon as there is one."""
        with self._wakeups.waking(consumer):
            return await consumer.next()

    def leave(self, consumer: Consumer, given_up: Message | None) -> None:
        """Have the loop of this consumer end. The message of a handler that gives it up is released, too."""
        consumer.is_open = False
        self._consumers.remove(consumer)
        self._wakeups.leave()
        self._relay_buffer.leave(consumer.names, consumer)
        self._run_in_background(self._release(consumer, given_up))

    def end_handler(self, consumer: Consumer, handler: asyncio.Task[Any]) -> None:
        """Release the message of a cancelled handler, since it will not settle it."""
        message = consumer.handled.pop(handler, None)
        if handler.cancelled() and not handler.get_loop().is_closed():
            self._run_in_background(consumer.give_up(message))

    async def _release(self, consumer: Consumer, given_up: Message | None) -> None:
        """Release the messages of a consumer, and the leases of inboxes without a consumer here."""
        if given_up is not None:
            await consumer.give_up(given_up)
        await consumer.close()
        names = self._relay_buffer.names
        await self._inboxes.leave([each for each in consumer.names if each not in names])


class ReceiveLoop(AsyncGenerator[Message, None]):
    """The messages for one consumer, one by one. Its end waits for the acks that were queued.

    A loop that is dropped without being closed, as `break` does, ends by itself, and waits for nothing.
    """

    def __init__(self, loops: ReceiveLoops, acks: AckQueue, make_consumer: Callable[[], Consumer]) -> None:
        self._loops = loops
        self._acks = acks
        self._make_consumer = make_consumer
        self._consumer: Consumer | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._handler: asyncio.Task[Any] | None = None
        self._scope: LogScope | None = None
        self._is_waiting = self._is_over = self._is_closed = False

    async def __anext__(self) -> Message:
        self._refuse_while_waiting()
        self._end_scope()
        if self._is_over:
            raise StopAsyncIteration
        consumer = self._consumer or self._begin()
        task = asyncio.current_task()
        if task is not None and task in consumer.handled:
            consumer.handled[task] = None
        try:
            message = consumer.next_prefetched() or await self._wait(consumer)
        except asyncio.CancelledError:
            self._leave()
            with suppress(TimeoutError):
                await self._wait_for_acks()
            raise
        except BaseException:
            self._leave()
            raise
        self._handle(consumer, message, task)
        return message

    async def asend(self, _: None, /) -> Message:
        """Return the next message."""
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> Message:
        """End the loop, and raise the exception."""
        await self.aclose()
        return await super().athrow(typ, val, tb)  # type: ignore[arg-type]

    async def aclose(self) -> None:
        """End the loop. Wait for the queued acks, and raise the failure of one that it has handed out.

        A loop that has raised an error already, or whose task is being cancelled, raises no other.
        """
        await self._close(is_dropped=False)

    async def aclose_dropped(self) -> None:
        """End the loop as `aclose` does, and leave the failure of an ack to `Messages.wait_for_acks`."""
        await self._close(is_dropped=True)

    async def _close(self, *, is_dropped: bool) -> None:
        self._refuse_while_waiting()
        has_ended, self._is_over = self._is_over, True
        if self._consumer is None or self._is_closed:
            return
        self._is_closed = True
        is_quiet = is_dropped or has_ended or self._is_cancelled
        if not has_ended:
            self._leave()
        try:
            await self._wait_for_acks()
        except TimeoutError:
            if not is_quiet:
                raise self._acks.not_settled(_CLOSE_TIMEOUT_S) from None
        if not is_quiet:
            self._acks.raise_failure(self._consumer)

    def __del__(self) -> None:
        if self._consumer is not None and not self._is_over and self._event_loop is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._event_loop.call_soon_threadsafe(self._leave, context=detached_context())

    # --- steps -----------------------------------------------------------------------------------

    def _begin(self) -> Consumer:
        consumer = self._make_consumer()
        self._event_loop = asyncio.get_running_loop()
        self._loops.join(consumer)
        self._consumer = consumer
        return consumer

    async def _wait(self, consumer: Consumer) -> Message:
        self._is_waiting = True
        try:
            return await self._loops.wait_for_message(consumer)
        finally:
            self._is_waiting = False

    def _handle(self, consumer: Consumer, message: Message, task: asyncio.Task[Any] | None) -> None:
        """Note which task handles a message, and name the message in its log lines."""
        if task is not None:
            if task not in consumer.handled:
                task.add_done_callback(partial(self._loops.end_handler, consumer))
            consumer.handled[task] = message
        self._handler = task
        self._scope = message_scope(message)
        self._scope.__enter__()

    # --- the end ---------------------------------------------------------------------------------

    def _refuse_while_waiting(self) -> None:
        if self._is_waiting:
            raise RuntimeError("the loop already waits for a message")

    @property
    def _is_cancelled(self) -> bool:
        """Return whether this task, or the one that got the last message, is cancelled."""
        tasks = (asyncio.current_task(), self._handler)
        return any(each is not None and (each.cancelling() > 0 or each.cancelled()) for each in tasks)

    def _leave(self) -> None:
        self._is_over = True
        self._end_scope()
        if self._consumer is not None:
            self._loops.leave(self._consumer, self._given_up(self._consumer))

    def _given_up(self, consumer: Consumer) -> Message | None:
        """Return the message of this task, if that is being cancelled; others release theirs at their end."""
        task = asyncio.current_task()
        return consumer.handled.get(task) if task is not None and task.cancelling() > 0 else None

    def _end_scope(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__()

    async def _wait_for_acks(self) -> None:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await self._acks.wait_until_settled()
