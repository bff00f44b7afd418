"""Combine concurrent writes (group commit): one batch in flight, all queued writes share the next."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from vox_mesh.errors import (
    CircuitOpen,
    MeshError,
    NoAnswer,
    OutcomeUnknown,
    Overloaded,
    StoreClosed,
    Unreachable,
)
from vox_mesh.store.script import Script, Verdict
from vox_mesh.store.stats import StoreStats
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner
from vox_mesh.store.write.in_flight import InFlightBatch, PendingWrite
from vox_mesh.store.write.retry import RetryingCaller
from vox_mesh.store.write.script_batch import CommitFailed, StorageFault
from vox_mesh.store.write.sender import Sender

_log = logging.getLogger(__name__)

_MAX_QUEUED: Final = 4_096
_MAX_REQUEST_BYTES: Final = 2**20
_RETRY_DELAY_S: Final = 0.1


class SpoolSink(Protocol):
    """Stores appendable scripts while the database is unreachable."""

    def take(self, writes: Sequence[PendingWrite]) -> None:
        """Store the writes in this order, and answer their callers."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is stored."""

    def nudge(self) -> None:
        """Start replaying: the database has answered."""


class Combiner:
    """Takes scripts from any number of callers and sends them in order, many per batch.

    There is no timer and no added delay. A caller that is the only writer sends its own batch from its own
    task; with several callers, the combiner's task sends for all of them.
    """

    def __init__(
        self,
        sender: Sender,
        caller: RetryingCaller,
        key_pruner: IdempotencyKeyPruner,
        *,
        monotonic: Callable[[], float],
        max_scripts: int,
        spool_sink: SpoolSink | None = None,
        stats: StoreStats | None = None,
        max_queued: int = _MAX_QUEUED,
    ) -> None:
        self._sender = sender
        self._caller = caller
        self._key_pruner = key_pruner
        self._monotonic = monotonic  # the loop's own clock may have a resolution of only a millisecond
        self._max_scripts = max_scripts
        self._spool_sink = spool_sink
        self._stats = StoreStats() if stats is None else stats
        self._max_queued = max_queued
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PendingWrite] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._granted = 0  # places granted to callers that have not queued their write yet
        self._work = asyncio.Event()
        self._in_flight: InFlightBatch | None = None
        self._began = 0.0
        self._is_quiet = True  # the last batch had a single caller
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0  # uvloop's handles do not have `when()`
        self._is_giving_up = False
        self._closing: asyncio.Event | None = None
        self._task = self._loop.create_task(self._send_all(), name="vox-mesh-combiner")
        self._sending_task: asyncio.Task[object] = self._task

    @property
    def depth(self) -> int:
        """Return the number of queued writes."""
        return len(self._queue)

    @property
    def scripts_waiting(self) -> int:
        """Return the number of queued scripts."""
        return sum(len(write.scripts) for write in self._queue)

    @property
    def under_way_s(self) -> float:
        """Return the seconds since the batch in flight was sent; 0 without one."""
        return 0.0 if self._in_flight is None else self._monotonic() - self._began

    @property
    def is_busy(self) -> bool:
        """Return whether a batch is in flight or a write is queued."""
        return self._in_flight is not None or bool(self._queue)

    async def submit(
        self, scripts: Sequence[Script], timeout: float, *, is_replay: bool = False
    ) -> list[Verdict]:
        """Send the scripts in one batch, in this order, and return each one's verdict."""
        if self._closing is not None:
            raise StoreClosed("the store is closed")
        deadline = self._loop.time() + timeout
        write = PendingWrite(scripts, deadline, self._loop.create_future(), is_replay)
        try:
            breaker = self._caller.breaker
            obstacle: MeshError | None = None
            if breaker is not None and breaker.is_rejecting:
                obstacle = breaker.refusal()
            elif self._room or len(self._queue) >= self._max_queued:
                obstacle = await self._wait_for_room(deadline)
            sink = self._spool_sink
            if sink is not None and (obstacle or not sink.is_empty) and write.can_spool:
                sink.take((write,))  # behind the writes already spooled
            elif obstacle is not None:
                raise self._refusal(obstacle, write)
            else:
                if self._alarm is None or deadline < self._alarm_at:
                    self._watch_deadline(deadline)
                if self._is_quiet and self._in_flight is None and not self._queue:
                    await self._send_alone(write)
                else:
                    self._queue.append(write)
                    if self._in_flight is None:
                        self._work.set()
            return await write.future
        except MeshError:
            self._stats.failures += 0 if is_replay else len(scripts)
            raise

    async def _send_alone(self, write: PendingWrite) -> None:
        """Send one caller's batch from its own task. If cancelled, its outcome is unknown."""
        task = asyncio.current_task()
        assert task is not None
        self._sending_task = task
        try:
            await self._send(InFlightBatch((write,)))
        except BaseException:
            write.leave()
            raise
        finally:
            self._sending_task = self._task
            if self._queue or self._room or self._closing is not None:
                self._wake_next()

    def _wake_next(self) -> None:
        """Wake the task after a batch if writes are queued; otherwise wake `close`."""
        self._admit()
        if self._queue:
            self._work.set()
        elif self._closing is not None:
            self._closing.set()

    async def _wait_for_room(self, deadline: float) -> MeshError | None:
        """Wait in FIFO order until the queue has room. Return an error if it had none before the deadline."""
        place: asyncio.Future[None] = self._loop.create_future()
        self._room.append(place)
        try:
            async with asyncio.timeout_at(deadline):
                await place
        except TimeoutError:
            self._give_up_place(place)
            return Overloaded(
                f"{len(self._queue)} writes wait already and none found room in time",
                hint="write less at once, or raise VOX_DB_DEADLINE",
            )
        except BaseException:
            self._give_up_place(place)
            raise
        self._granted -= 1
        if self._closing is not None:
            raise StoreClosed("the store was closed")
        return None

    def _admit(self) -> None:
        """Admit callers that wait for room, in order, until the queue is full."""
        while self._room and len(self._queue) + self._granted < self._max_queued:
            place = self._room.popleft()
            if not place.done():
                place.set_result(None)
                self._granted += 1

    def _give_up_place(self, place: asyncio.Future[None]) -> None:
        """Stop waiting for room; a place already granted goes to the next caller."""
        if place in self._room:
            self._room.remove(place)
        elif not place.cancelled():
            self._granted -= 1
            self._admit()

    # --- sending ---------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            if self._in_flight is None:  # otherwise a caller is sending alone and will wake this task
                try:
                    if writes := self._take():
                        await self._send(InFlightBatch(writes))
                except Exception as error:
                    self._stats.faults.note("combiner", error)
                    await asyncio.sleep(_RETRY_DELAY_S)
                self._wake_next()

    def _take(self) -> list[PendingWrite]:
        """Remove the writes of the next batch from the queue: the oldest, as many as fit."""
        taken: list[PendingWrite] = []
        scripts = weight = 0
        while self._queue:
            write = self._queue[0]
            if not write.future.done():
                scripts += len(write.scripts)
                weight += write.weight
                if taken and (scripts > self._max_scripts or weight > _MAX_REQUEST_BYTES):
                    break
                taken.append(write)
            self._queue.popleft()
        self._admit()
        return taken

    async def _send(self, in_flight: InFlightBatch) -> None:
        self._in_flight = in_flight
        self._began = self._monotonic()
        try:
            scripts = in_flight.scripts
            self._stats.batches.observe(len(scripts))
            may_prune_all = self._spool_sink is None or self._spool_sink.is_empty
            verdicts = await self._sender.send(scripts, in_flight, may_prune_all=may_prune_all)
            self._settle(in_flight, verdicts)
        except CircuitOpen as error:
            self._reject_all(in_flight, error)
        except StorageFault as error:
            self._stats.unwritable_since = self._stats.unwritable_since or self._monotonic()
            self.divert_to_spool(in_flight.writes)
            for write in in_flight.writes:
                write.fail(_error_for_caller(error, write, in_flight))
        except MeshError as error:
            for write in in_flight.writes:
                write.fail(_error_for_caller(error, write, in_flight))
        except asyncio.CancelledError:
            if not self._is_giving_up:
                raise
            self._is_giving_up = False
            if self._sending_task.uncancel() > 0:  # its caller was cancelled as well
                raise
        except Exception as error:
            _log.exception("write request failed unexpectedly")
            for write in in_flight.writes:
                write.fail(_error_for_caller(MeshError(f"an unexpected fault: {error}"), write, in_flight))
        finally:
            self._in_flight = None
            self._is_quiet = len(in_flight.writes) == 1

    def _settle(self, in_flight: InFlightBatch, verdicts: list[Verdict]) -> None:
        self._stats.answer(verdicts)
        start = 0
        answered: list[str] = []
        with_rows: list[str] = []
        for write in in_flight.writes:
            end = start + len(write.scripts)
            # A caller that got no answer, or the spool, may send the same keys again: keep those.
            if write.settle(verdicts[start:end]):
                for script in write.scripts:
                    if script.leaves_key and not script.may_come_again:
                        answered.append(script.key)
                        if script.has_answer:
                            with_rows.append(script.key)
            start = end
        if answered:
            self._key_pruner.note_answered(answered, with_rows=with_rows)
        if self._spool_sink is not None:
            self._spool_sink.nudge()

    # --- when the database is unreachable --------------------------------------------------------

    def _reject_all(self, in_flight: InFlightBatch, error: CircuitOpen) -> None:
        """Spool the appendable writes and fail all others, because the circuit opened."""
        self.divert_to_spool(in_flight.writes)
        for write in (*in_flight.writes, *self._queue):
            refusal = self._refusal(error, write)
            write.fail(_error_for_caller(refusal, write, in_flight if write in in_flight.writes else None))

    def _refusal(self, error: MeshError, write: PendingWrite) -> MeshError:
        """Return the error of a write that the open circuit refuses: it says why it was not spooled."""
        if self._spool_sink is None or write.is_replay or not isinstance(error, CircuitOpen):
            return error
        return CircuitOpen(f"{error}; this write needs an answer, so it is not spooled", hint=error.hint)

    def divert_to_spool(self, under_way: Sequence[PendingWrite] | None = None) -> None:
        """Move all appendable writes to the spool, in order."""
        if self._spool_sink is None:
            return
        if under_way is None:
            under_way = self._in_flight.writes if self._in_flight else ()
        leaving = [write for write in under_way if write.can_spool and write.is_waiting]
        is_continuing = any(write.is_waiting and not write.can_spool for write in under_way)
        is_outcome_unknown = self._in_flight is not None and (
            self._in_flight.may_take_effect or is_continuing
        )
        for write in leaving:
            write.is_outcome_unknown = is_outcome_unknown
        staying: deque[PendingWrite] = deque()
        for write in self._queue:
            (leaving if write.can_spool and write.is_waiting else staying).append(write)
        self._queue = staying
        for write in leaving:
            write.is_spooled = True
        if leaving:
            self._spool_sink.take(leaving)

    def _watch_deadline(self, deadline: float) -> None:
        """Set the one timer, shared by all callers, to this deadline, which is the earliest."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._alarm = None
        now = self._loop.time()
        in_flight = self._in_flight
        under_way = in_flight.writes if in_flight is not None else ()
        late = [write for write in (*under_way, *self._queue) if write.deadline <= now and write.is_waiting]
        if any(write.can_spool for write in late):
            self.divert_to_spool()
        for write in late:
            write.fail(self._deadline_error(write, in_flight if write in under_way else None, now))
        if in_flight is not None and not in_flight.is_wanted():
            self._give_up()
        deadlines = [
            write.deadline
            for write in (*under_way, *self._queue)
            if write.is_waiting and write.deadline > now
        ]
        if deadlines and (self._alarm is None or min(deadlines) < self._alarm_at):
            self._watch_deadline(min(deadlines))

    def _give_up(self) -> None:
        """Cancel the batch in flight: no caller waits for it any more."""
        if self._is_giving_up or self._in_flight is None:
            return
        if self._in_flight.is_out:
            self._caller.note(NoAnswer("no answer came before the deadline"))
        self._is_giving_up = True
        self._sending_task.cancel()

    def _deadline_error(self, write: PendingWrite, in_flight: InFlightBatch | None, now: float) -> MeshError:
        # A batch that continues for other callers still contains this caller's scripts.
        if in_flight is not None and (in_flight.may_take_effect or in_flight.outlives(now)):
            return _outcome_unknown(write)
        if self._in_flight is not None and self._in_flight.fault is not None:
            # Its own batch, or the one ahead of it, does not reach the database.
            return Unreachable(f"the database could not be reached in time: {self._in_flight.fault}")
        return Overloaded(
            "the write was still queued at its deadline", hint="write less at once, or raise VOX_DB_DEADLINE"
        )

    # --- closing ---------------------------------------------------------------------------------

    async def close(self, timeout: float) -> None:
        """Finish the submitted writes within `timeout` seconds, then stop."""
        self._closing = asyncio.Event()
        if self._in_flight is None:
            self._wake_next()
        try:
            async with asyncio.timeout(timeout):
                await self._closing.wait()
        except TimeoutError:
            _log.warning("store closed with writes in flight")
        if self._alarm is not None:
            self._alarm.cancel()
        self.divert_to_spool()
        if self._in_flight is not None:
            for write in self._in_flight.writes:
                write.fail(_outcome_unknown(write))
            self._give_up()
        for write in self._queue:
            write.fail(StoreClosed("the store was closed"))
        self._max_queued += len(self._room)
        self._admit()  # they find the combiner closed
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _error_for_caller(error: MeshError, write: PendingWrite, in_flight: InFlightBatch | None) -> MeshError:
    """Return the caller's error: `OutcomeUnknown` if its scripts may have been applied."""
    return _outcome_unknown(write, error) if in_flight is not None and in_flight.may_be_applied else error


def _outcome_unknown(write: PendingWrite, error: MeshError | None = None) -> OutcomeUnknown:
    if error is None:
        reason = "no answer came before the deadline"
    elif isinstance(error, CommitFailed):
        reason = error.line
    else:
        reason = f"an answer got lost, and then: {error}"
    unknown = OutcomeUnknown(reason, key=write.scripts[0].key)
    unknown.__cause__ = error
    return unknown
