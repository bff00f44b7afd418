"""The combiner: one request under way; what queues meanwhile goes together in the next."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
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
from vox_mesh.store.script import Script
from vox_mesh.store.stats import StoreStats
from vox_mesh.store.write.dispatcher import Sender
from vox_mesh.store.write.idempotency_keys import IdempotencyKeyPruner
from vox_mesh.store.write.in_flight import InFlightRequest, PendingWrite
from vox_mesh.store.write.request import CommitFailed, StorageFault, Verdict
from vox_mesh.store.write.retry import RetryingCaller

_log = logging.getLogger(__name__)

_MAX_WAITING: Final = 4_096
_MAX_REQUEST_BYTES: Final = 2**20
_CALLER_S: Final = 50e-6  # about what a caller takes from being answered to writing again
_FORGETTING: Final = 1.01
_MANY: Final = 32
_AGAIN_S: Final = 0.1


class SpoolSink(Protocol):
    """Where appendable scripts go while the database is away."""

    def take(self, entries: Sequence[PendingWrite]) -> None:
        """Keep these, in this order, and tell their callers."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""

    def nudge(self) -> None:
        """The database has answered: what is kept can be replayed."""


class Combiner:
    """Takes scripts from any number of callers and sends them in order, many at a time.

    There is no timer and no added delay. A caller that finds nobody else writing sends its own request; when
    there are several, the combiner's task sends for all, and they need only wait.
    """

    def __init__(
        self,
        sender: Sender,
        carrier: RetryingCaller,
        ledger: IdempotencyKeyPruner,
        *,
        monotonic: Callable[[], float],
        max_scripts: int,
        detour: SpoolSink | None = None,
        traffic: StoreStats | None = None,
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        self._sender = sender
        self._carrier = carrier
        self._ledger = ledger
        self._monotonic = monotonic  # the loop's own clock may be one of whole milliseconds
        self._max_scripts = max_scripts
        self._detour = detour
        self._traffic = StoreStats() if traffic is None else traffic
        self._max_waiting = max_waiting
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PendingWrite] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._granted = 0  # places given to callers who have not come yet
        self._work = asyncio.Event()
        self._flight: InFlightRequest | None = None
        self._began = 0.0
        self._is_quiet = True  # the last request was one caller's alone
        self._coming = 0  # how many of those who were answered last may come again
        self._quickest_s = float("inf")  # about how long a request takes at least
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0  # what it was set to: a handle of uvloop's can't tell
        self._giving_up = False
        self._closing: asyncio.Event | None = None
        self._task = self._loop.create_task(self._send_all(), name="vox-mesh-combiner")
        self._pilot: asyncio.Task[object] = self._task

    @property
    def depth(self) -> int:
        """How many callers wait for a request to take them."""
        return len(self._queue)

    @property
    def scripts_waiting(self) -> int:
        """How many scripts they bring."""
        return sum(len(entry.scripts) for entry in self._queue)

    @property
    def under_way_s(self) -> float:
        """For how long the request that is under way has been."""
        return 0.0 if self._flight is None else self._monotonic() - self._began

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way, or somebody waits for one."""
        return self._flight is not None or bool(self._queue)

    async def submit(
        self, scripts: Sequence[Script], timeout: float, *, is_replay: bool = False
    ) -> list[Verdict]:
        """Send the scripts in one request, in this order, and return what became of each."""
        if self._closing is not None:
            raise StoreClosed("the store is closed")
        deadline = self._loop.time() + timeout
        entry = PendingWrite(scripts, deadline, self._loop.create_future(), is_replay)
        obstacle = self._circuit_refusal()
        if obstacle is None and self._is_full:
            obstacle = await self._wait_for_room(deadline)
        if self._detour is not None and (obstacle or not self._detour.is_empty) and entry.may_detour:
            self._detour.take((entry,))  # behind those that wait there already
        elif obstacle is not None:
            raise obstacle
        else:
            self._watch_deadline(deadline)
            if self._is_quiet and self._flight is None and not self._queue:
                await self._send_alone(entry)
            else:
                self._queue.append(entry)
                self._coming -= 1
                if self._flight is None:
                    self._work.set()
        return await entry.future

    async def _send_alone(self, entry: PendingWrite) -> None:
        """Send one caller's request from its own task. Cancelled, it may or may not have been applied."""
        pilot = asyncio.current_task()
        assert pilot is not None
        self._pilot = pilot
        try:
            await self._send(InFlightRequest((entry,)))
        except BaseException:
            entry.leave()
            raise
        finally:
            self._pilot = self._task
            self._go_on()

    def _go_on(self) -> None:
        """After a request: wake the task if others wait, and whoever waits for the end if not."""
        self._admit()
        if self._queue:
            self._work.set()
        elif self._closing is not None:
            self._closing.set()

    @property
    def _is_full(self) -> bool:
        return bool(self._room) or len(self._queue) >= self._max_waiting

    def _circuit_refusal(self) -> MeshError | None:
        breaker = self._carrier.breaker
        return breaker.refusal() if breaker is not None and breaker.refuses else None

    async def _wait_for_room(self, deadline: float) -> MeshError | None:
        """Wait until the queue has room, first come, first served; what to say if it had none in time."""
        place: asyncio.Future[None] = self._loop.create_future()
        self._room.append(place)
        try:
            async with asyncio.timeout_at(deadline):
                await place
        except TimeoutError:
            self._leave(place)
            return Overloaded(
                f"{len(self._queue)} writes wait already and none found room in time",
                hint="write less at once, or raise VOX_DB_DEADLINE",
            )
        except BaseException:
            self._leave(place)
            raise
        self._granted -= 1
        if self._closing is not None:
            raise StoreClosed("the store was closed")
        return None

    def _admit(self) -> None:
        """Let in those who wait for room, as many as there is room for."""
        while self._room and len(self._queue) + self._granted < self._max_waiting:
            place = self._room.popleft()
            if not place.done():
                place.set_result(None)
                self._granted += 1

    def _leave(self, place: asyncio.Future[None]) -> None:
        """Give up waiting for room; a place that was granted goes to the next."""
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
            if self._flight is None:  # otherwise a caller sends alone, and will wake us
                try:
                    if entries := self._take():
                        await self._send(InFlightRequest(entries))
                except Exception as error:
                    self._traffic.faults.note("combiner", error)
                    await asyncio.sleep(_AGAIN_S)
                self._go_on()

    def _take(self) -> list[PendingWrite]:
        """The entries of the next request: those that came first, as many as fit.

        When callers are so many that making their next writes takes longer than a request does, it is half of
        them all, with those who were answered just now: one half does so while the other's request is under
        way.
        """
        taken: list[PendingWrite] = []
        scripts = weight = 0
        callers = len(self._queue) + max(0, self._coming)
        is_split = callers >= _MANY and callers * _CALLER_S > self._quickest_s
        most = (callers + 1) // 2 if is_split else callers
        while self._queue and len(taken) < most:
            entry = self._queue[0]
            if not entry.future.done():
                scripts += len(entry.scripts)
                weight += entry.weight
                if taken and (scripts > self._max_scripts or weight > _MAX_REQUEST_BYTES):
                    break
                taken.append(entry)
            self._queue.popleft()
        self._admit()
        return taken

    async def _send(self, flight: InFlightRequest) -> None:
        self._flight = flight
        self._began = began = self._monotonic()
        try:
            verdicts = await self._verdicts(flight)
            self._quickest_s = min(self._monotonic() - began, self._quickest_s * _FORGETTING)
            self._settle(flight, verdicts)
        except CircuitOpen as error:
            self._turn_away(flight, error)
        except StorageFault as error:
            self._traffic.unwritable_since = self._traffic.unwritable_since or self._monotonic()
            self.detour(flight.entries)
            for entry in flight.entries:
                entry.fail(_told(error, entry, flight))
        except MeshError as error:
            for entry in flight.entries:
                entry.fail(_told(error, entry, flight))
        except asyncio.CancelledError:
            if not self._giving_up:
                raise
            self._giving_up = False
            if self._pilot.uncancel() > 0:  # its caller was cancelled as well
                raise
        except Exception as error:
            _log.exception("a request could not be built or read")
            for entry in flight.entries:
                entry.fail(_told(MeshError(f"an unexpected fault: {error}"), entry, flight))
        finally:
            self._flight = None
            self._coming = len(flight.entries)
            self._is_quiet = len(flight.entries) == 1

    def _verdicts(self, flight: InFlightRequest) -> Awaitable[list[Verdict]]:
        scripts = [script for entry in flight.entries for script in entry.scripts]
        self._traffic.batches.observe(len(scripts))
        may_look_back = self._detour is None or self._detour.is_empty
        return self._sender.send(scripts, flight, may_look_back=may_look_back)

    def _settle(self, flight: InFlightRequest, verdicts: list[Verdict]) -> None:
        self._traffic.answer(verdicts)
        start = 0
        answered: list[str] = []
        with_rows: list[str] = []
        for entry in flight.entries:
            end = start + len(entry.scripts)
            # Whoever was not told, and the spool, may send the same keys again: those must be remembered.
            if entry.settle(verdicts[start:end]):
                for script in entry.scripts:
                    if script.leaves_key and not script.may_come_again:
                        answered.append(script.key)
                        if script.has_answer:
                            with_rows.append(script.key)
            start = end
        self._ledger.answered(answered, with_rows=with_rows)
        if self._detour is not None:
            self._detour.nudge()

    # --- when the database is away ---------------------------------------------------------------

    def _turn_away(self, flight: InFlightRequest, error: CircuitOpen) -> None:
        """The circuit opened: what may detour does, everyone else is told at once."""
        self.detour(flight.entries)
        for entry in (*flight.entries, *self._queue):
            entry.fail(_told(error, entry, flight if entry in flight.entries else None))

    def detour(self, under_way: Sequence[PendingWrite] | None = None) -> None:
        """Move all appendable scripts, in the order they came, from here to the spool."""
        if self._detour is None:
            return
        if under_way is None:
            under_way = self._flight.entries if self._flight else ()
        leaving = [entry for entry in under_way if entry.may_detour and entry.is_waiting]
        goes_on = any(entry.is_waiting and not entry.may_detour for entry in under_way)
        in_doubt = self._flight is not None and (self._flight.is_in_doubt or goes_on)
        for entry in leaving:
            entry.is_in_doubt = in_doubt
        staying: deque[PendingWrite] = deque()
        for entry in self._queue:
            (leaving if entry.may_detour and entry.is_waiting else staying).append(entry)
        self._queue = staying
        for entry in leaving:
            entry.is_spooled = True
        if leaving:
            self._detour.take(leaving)

    def _watch_deadline(self, deadline: float) -> None:
        """Have the alarm ring at the earliest deadline; there is one alarm, not one for each caller."""
        if self._alarm is None or deadline < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm, self._alarm_at = self._loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._alarm = None
        now = self._loop.time()
        flight = self._flight
        under_way = flight.entries if flight is not None else ()
        late = [e for e in (*under_way, *self._queue) if e.deadline <= now and e.is_waiting]
        if any(entry.may_detour for entry in late):
            self.detour()
        for entry in late:
            entry.fail(self._lateness(entry, flight if entry in under_way else None, now))
        if flight is not None and not flight.is_wanted:
            self._give_up()
        waiting = [e.deadline for e in (*under_way, *self._queue) if e.is_waiting and e.deadline > now]
        if waiting:
            self._watch_deadline(min(waiting))

    def _give_up(self) -> None:
        """Abandon the request under way: nobody wants it any more."""
        if self._giving_up or self._flight is None:
            return
        if self._flight.is_out:
            self._carrier.note(NoAnswer("no answer came before the deadline"))
        self._giving_up = True
        self._pilot.cancel()

    def _lateness(self, entry: PendingWrite, flight: InFlightRequest | None, now: float) -> MeshError:
        # What goes on for its neighbours carries this caller's scripts too, byte for byte.
        if flight is not None and (flight.is_in_doubt or flight.outlives(now)):
            return _unknown(entry)
        if self._flight is not None and self._flight.fault is not None:
            # Its own request, or the one it waits behind, does not get through.
            return Unreachable(f"the database could not be reached in time: {self._flight.fault}")
        return Overloaded(
            "the write was still queued at its deadline", hint="write less at once, or raise VOX_DB_DEADLINE"
        )

    # --- the end ---------------------------------------------------------------------------------

    async def close(self, timeout: float) -> None:
        """Finish what was submitted, and stop; wait so long at the most."""
        self._closing = asyncio.Event()
        if self._flight is None:
            self._go_on()
        try:
            async with asyncio.timeout(timeout):
                await self._closing.wait()
        except TimeoutError:
            _log.warning("closed with writes under way")
        if self._alarm is not None:
            self._alarm.cancel()
        self.detour()
        if self._flight is not None:
            for entry in self._flight.entries:
                entry.fail(_unknown(entry))
            self._give_up()
        for entry in self._queue:
            entry.fail(StoreClosed("the store was closed"))
        self._max_waiting += len(self._room)
        self._admit()  # to be told that it is over
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _told(error: MeshError, entry: PendingWrite, flight: InFlightRequest | None) -> MeshError:
    """The error as this caller must see it: if its scripts may have been applied, that comes first."""
    return _unknown(entry, error) if flight is not None and flight.may_be_applied else error


def _unknown(entry: PendingWrite, error: MeshError | None = None) -> OutcomeUnknown:
    if error is None:
        reason = "no answer came before the deadline"
    elif isinstance(error, CommitFailed):
        reason = error.line
    else:
        reason = f"an answer got lost, and then: {error}"
    unknown = OutcomeUnknown(reason, key=entry.scripts[0].key)
    unknown.__cause__ = error
    return unknown
