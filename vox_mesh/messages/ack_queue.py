"""The queue of the acks of loops: they are written together, and with the next claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, Protocol

from vox_mesh.errors import MeshError, NoAnswer
from vox_mesh.model.messages.records import Message
from vox_mesh.observability.log_context import detached_context
from vox_mesh.store.background import RunInBackground

MAX_UNDER_WAY: Final = 256
"""How many acks may be under way in a process; callers wait for room for more."""

_SLICE_S: Final = 0.002
"""After this time without a pause, adding an ack lets other tasks run: a loop with few pauses would not."""

_LINGER_S: Final = 0.005
"""How long acks wait for others, or for the next claim, while their loop has more messages in hand."""

_MAX_LINGERING: Final = 128
_MAX_FAILURES: Final = 64


class OpenLoop(Hashable, Protocol):
    """The consumer of a loop, which hands out messages."""

    @property
    def is_open(self) -> bool:
        """Return whether the loop has not ended."""

    @property
    def has_prefetched(self) -> bool:
        """Return whether messages are in hand that were not handed out yet."""

    def mark_settled(self, message: Message) -> bool:
        """Note that a message is settled. Return whether it was in progress here."""


class QueuedAck(NamedTuple):
    """An acknowledged message, and the consumer that handed it out. Acks are numbered as they are queued."""

    number: int
    message: Message
    consumer: OpenLoop


class AckVerdicts(NamedTuple):
    """The failures of some acks by the ids of their messages, and the ids of the spooled ones."""

    failures: Mapping[str, MeshError]
    spooled: frozenset[str] = frozenset()


class AckQueue:
    """Keep acks until they are written, and their failures until they are raised.

    A request that is sent anyway, such as a claim, takes the queued acks with it. Otherwise they are sent in
    the next iteration of the event loop, or soon if they may linger. While one request is under way, all
    others wait for the next one.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._queued: list[QueuedAck] = []
        self._numbers = count()
        self._under_way: dict[int, QueuedAck] = {}  # queued or being written, by their numbers
        self._failures: dict[OpenLoop, MeshError] = {}
        self._progress = asyncio.Event()
        self._is_begun = False
        self._is_recorded = True
        self._rested_at = monotonic()
        self._lingering: asyncio.TimerHandle | None = None
        self._write: Callable[[], Awaitable[None]] | None = None
        self._run: RunInBackground | None = None
        self._writer: asyncio.Task[None] | None = None
        self._on_settled: Callable[[Sequence[QueuedAck], AckVerdicts], None] | None = None

    def connect(
        self,
        write: Callable[[], Awaitable[None]],
        run_in_background: RunInBackground,
        on_settled: Callable[[Sequence[QueuedAck], AckVerdicts], None],
    ) -> None:
        """Set what writes the queued acks, what runs that, and what is called when acks are settled."""
        self._write, self._run, self._on_settled = write, run_in_background, on_settled

    @property
    def under_way(self) -> int:
        """Return how many acks are queued or being written."""
        return len(self._under_way)

    @property
    def is_full(self) -> bool:
        """Return whether to wait for room before more acks are queued."""
        return len(self._under_way) >= MAX_UNDER_WAY

    async def wait_for_room(self) -> None:
        """Wait until there is room. What may be queued is decided afterwards, and without a pause."""
        while self.is_full:
            self._begin()
            await self._wait_for_progress()

    def add(self, messages: Iterable[tuple[Message, OpenLoop]], *, may_linger: bool) -> None:
        """Queue the acks of messages, each with the consumer that handed it out."""
        for message, consumer in messages:
            ack = QueuedAck(next(self._numbers), message, consumer)
            self._under_way[ack.number] = ack
            self._queued.append(ack)
        if may_linger and len(self._queued) < _MAX_LINGERING:
            self._begin_later()
        else:
            self._begin()

    async def rest(self) -> None:
        """Let other tasks run, if the callers have not paused for a while."""
        now = self._monotonic()
        if now - self._rested_at > _SLICE_S:
            await asyncio.sleep(0)
            self._rested_at = self._monotonic()

    # --- writing ---------------------------------------------------------------------------------

    def take(self) -> list[QueuedAck]:
        """Remove the queued acks, to write them now. Call `settle` for the written ones, then `put_back`."""
        self._stop_lingering()
        taken, self._queued = self._queued, []
        return taken

    def put_back(self, acks: Sequence[QueuedAck]) -> None:
        """Queue those of the taken acks again that are not settled, before the others."""
        unsettled = [each for each in acks if each.number in self._under_way]
        if unsettled:
            self._queued[:0] = unsettled
            self._begin()

    def settle(self, acks: Sequence[QueuedAck], verdicts: AckVerdicts) -> None:
        """Record the outcome of acks that were written."""
        acks = [each for each in acks if self._under_way.pop(each.number, None) is not None]
        for _, message, consumer in acks:
            error = verdicts.failures.get(message.message_uuid)
            if error is not None and consumer not in self._failures:
                self._keep_failure(consumer, error)
        self._is_recorded = self._is_recorded and not (verdicts.failures or verdicts.spooled)
        self._progress.set()
        if self._on_settled is not None:
            self._on_settled(acks, verdicts)

    def _keep_failure(self, consumer: OpenLoop, error: MeshError) -> None:
        """Keep a failure until it is raised, in place of the oldest of an ended loop if too many are kept."""
        if len(self._failures) >= _MAX_FAILURES:
            ended = next((each for each in self._failures if not each.is_open), None)
            if ended is not None:
                del self._failures[ended]
        self._failures[consumer] = error

    def _begin(self) -> None:
        if not self._is_begun and self._run is not None:
            self._is_begun = True
            self._stop_lingering()
            asyncio.get_running_loop().call_soon(self._start, context=detached_context())

    def _begin_later(self) -> None:
        if not self._is_begun and self._lingering is None:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(_LINGER_S, self._begin, context=detached_context())

    def _stop_lingering(self) -> None:
        lingering, self._lingering = self._lingering, None
        if lingering is not None:
            lingering.cancel()

    def _start(self) -> None:
        if self._queued and self._run is not None:
            self._writer = self._run(self._write_all())
            self._writer.add_done_callback(self._end_writing)
        else:  # a claim has taken them
            self._is_begun = False

    async def _write_all(self) -> None:
        while self._queued and self._write is not None:
            await self._write()

    def _end_writing(self, _: asyncio.Task[None]) -> None:
        """Begin again if acks are queued: the task may have been cancelled, even before it started."""
        self._writer = None
        self._is_begun = False
        if self._queued:
            self._begin()

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self) -> bool:
        """Wait until the acks added so far are settled. Raise a failure, unless an open loop will raise it.

        Return whether the database has recorded all since the last call.
        """
        await self.wait_until_settled()
        is_recorded, self._is_recorded = self._is_recorded, True
        for consumer in list(self._failures):
            if not consumer.is_open:
                self.raise_failure(consumer)
        return is_recorded

    async def wait_until_settled(self) -> None:
        """Wait until the acks added so far are settled, successful or not."""
        awaited = set(self._under_way)
        if self._queued:
            self._begin()
        while not awaited.isdisjoint(self._under_way):
            await self._wait_for_progress()

    def abandon(self, seconds: float) -> None:
        """Settle all acks as not answered in this time. Their messages are redelivered."""
        self.take()
        if self._writer is not None:
            self._writer.cancel()
        acks = list(self._under_way.values())
        error = NoAnswer(
            f"ack not recorded within {seconds:g} s, when the mesh was closed",
            hint="receive its message again: it is redelivered",
        )
        self.settle(acks, AckVerdicts({each.message.message_uuid: error for each in acks}))

    def raise_failure(self, consumer: OpenLoop) -> None:
        """Raise the failure of an ack for a message that this consumer has handed out, if there is one."""
        if self._failures and (error := self._failures.pop(consumer, None)) is not None:
            raise error

    def not_settled(self, seconds: float) -> NoAnswer:
        """Return the error about acks that were not settled in this time."""
        return NoAnswer(
            f"queued acks not recorded within {seconds:g} s: {self.under_way} are under way",
            hint="call wait_for_acks: they are still being written",
        )

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()
