"""What every replica does: one task that follows the primary, and answers for as long as that goes well."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import ClassVar, Final, NamedTuple

from vox_mesh.errors import DatabaseUnavailable, ReplicaOff, SyncRefused, Unauthorized, Unreachable
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.replica.floor import ReadWatermark
from vox_mesh.store.replica.interruptions import Interrupted, Restarted
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.replica import Progress, ReplicaState, ReplicaStatus
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.write.retry import backoff_s

_log = logging.getLogger(__name__)

_ASK_S: Final = 2.0
_UNWATCHED_ASK_S: Final = 6.0
"""The same where nobody watches: longer than from one tick of a node to the next, which are answered."""

_FLOOR_S: Final = 0.05
"""How long a read waits for what was seen before it; then the primary answers."""

_EARLY_S: Final = 0.1
"""It is asked so much earlier rather than a whole turn later."""

_MORE: Final = 1.05
"""Times the room in which a copy had no place: then it may have."""

_NEVER: Final = -float("inf")


class CopyState(NamedTuple):
    """What a copy holds: the frames of this log before `next_frame`, of `end` that there are.

    One that knows nothing of frames has no log.
    """

    log_id: str
    next_frame: int
    end: int
    bytes: int


class ReplicaFollower(ABC):
    """Keeps touch with the primary, and says so.

    `as_of` is the moment up to which the copy holds every commit: when the primary was last asked where it
    stood, and the copy has come as far. Nothing is concluded from silence.
    """

    driver: ClassVar[str]

    def __init__(
        self,
        mark: Mark,
        floor: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        refused: Callable[[SyncRefused], None],
        faults: BackgroundFaults,
    ) -> None:
        self._mark = mark
        self._floor = floor
        self._changes = changes
        self._max_stale_s = max_stale_s
        self._ask_s = min(_ASK_S, max(max_stale_s / 2, _FLOOR_S)) if max_stale_s else _ASK_S
        self._unwatched_ask_s = _UNWATCHED_ASK_S if self._ask_s == _ASK_S else self._ask_s
        self._refused = refused
        self._faults = faults
        self._monotonic = floor.monotonic  # what the floor has seen is compared with it
        self._state = ReplicaState.CATCHING_UP
        self._error = ""
        self._fault: Exception | None = None
        self._as_of = _NEVER
        self._cramped = 0  # how often there was no room on the disk, in a row
        self._failed = 0  # the unexpected faults in a row
        self._progress = Changes()
        self._asked = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._follow_for_ever(), name="vox-mesh-replica")

    # --- what differs ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def _held(self) -> CopyState:
        """What the copy holds."""

    @property
    def _arrived(self) -> int:
        """How many frames have come in, applied or not."""
        return self._held.next_frame

    @property
    def _is_promised(self) -> bool:
        """Whether it is about to know that it has come further."""
        return False

    @property
    def _is_held_up(self) -> bool:
        """Whether nothing can come in for now, though the primary answers."""
        return False

    @property
    def _is_behind(self) -> bool:
        """Whether it lacks commits that the primary named long ago."""
        return False

    @property
    def _fetched_bytes(self) -> int:
        """How many bytes were fetched since the mark was made; 0 if that is not counted."""
        return 0

    @abstractmethod
    async def _prepare(self) -> None:
        """Look at what there is, before the first session."""

    @abstractmethod
    async def _session(self) -> None:
        """Follow the primary for as long as it goes well."""

    @abstractmethod
    def _read_now(self, statement: Statement) -> Rows | None:
        """Answer from the copy, if that takes but a moment."""

    @abstractmethod
    async def _read(self, statement: Statement) -> Rows | None:
        """Answer from the copy; `None`: it can't."""

    @abstractmethod
    async def _discard(self) -> None:
        """Give the disk space back."""

    @abstractmethod
    async def _release(self) -> None:
        """Close files and connections."""

    # --- answering -------------------------------------------------------------------------------

    @property
    def is_in_touch(self) -> bool:
        """Whether the primary answered when it was last asked."""
        return self._state is ReplicaState.IN_TOUCH

    @property
    def is_pushed(self) -> bool:
        """Whether commits come by themselves."""
        return False

    def answer_now(self, statement: Statement) -> Rows | None:
        """Answer a query without waiting for anything; `None`: that can't be done."""
        age_s = self._monotonic() - self._as_of
        if age_s > self._max_stale_s or not self._meets(self._floor):
            return None
        rows = self._read_now(statement)
        if rows is not None:
            rows.age_s = age_s
        return rows

    async def answer(self, statement: Statement) -> Rows | None:
        """Answer a query, no less than this process has seen before; `None`: ask the primary."""
        if (self._is_stale or not self._meets(self._floor)) and not await self._reach_floor():
            return None
        as_of = self._as_of  # it may rise while we read, and what we read would not have that
        rows = await self._read(statement)
        if rows is not None:
            rows.age_s = self._monotonic() - as_of
        return rows

    @property
    def _is_stale(self) -> bool:
        return self._monotonic() - self._as_of > self._max_stale_s

    def _meets(self, floor: ReadWatermark) -> bool:
        record = self._mark.record
        return floor.is_met_by(record.log_id, record.next_frame, self._as_of)

    async def _reach_floor(self) -> bool:
        """Wait for what has been seen elsewhere, but not for long; nor for what nobody has told us of."""
        if self._state is not ReplicaState.IN_TOUCH or self._is_held_up:
            return False
        if self._is_stale and not self._is_promised:
            return False
        floor = copy(self._floor)  # as it is now: what others see while this read waits need not be in it
        if floor.needs_hello(self._held.log_id, self._as_of):
            self._asked.set()
        try:
            async with asyncio.timeout(_FLOOR_S):
                while self._is_stale or not self._meets(floor):
                    await self._progress.after(self._progress.count)
        except TimeoutError:
            return False
        return True

    # --- following -------------------------------------------------------------------------------

    async def _follow_for_ever(self) -> None:
        try:
            while True:
                try:
                    await self._prepare()
                    await self._follow_on()
                except OSError as error:
                    self._turn_off(ReplicaOff(f"its file can't be written: {error}"))
                    with suppress(OSError):
                        await self._discard()
                    await self._more_room(self._mark.free_bytes if error.errno == errno.ENOSPC else 0)
                except SyncRefused:
                    raise
                except Exception as error:  # a copy that can't be explained is dropped, and fetched again
                    self._faults.note("replica", error)
                    self._turn_off(error)
                    with suppress(Exception):
                        await self._discard()
                    self._failed += 1
                    await asyncio.sleep(backoff_s(self._failed, random.random))
        except SyncRefused as error:
            self._turn_off(error)
            self._refused(error)

    async def _follow_on(self) -> None:
        """Follow the primary, one session after the other."""
        failed = 0
        while True:
            before = self._held.next_frame
            try:
                await self._session()
            except (Interrupted, DatabaseUnavailable, Unauthorized) as fault:
                got_on = self._state is ReplicaState.IN_TOUCH or self._held.next_frame != before
                failed = 1 if got_on else failed + 1
                self._lose(fault)
                if failed > 1 or not isinstance(fault, Restarted):
                    await asyncio.sleep(backoff_s(failed, random.random))

    async def _more_room(self, too_little: int) -> None:
        """Wait a while, and until there is more room on the disk: it is not to be filled again and again."""
        self._cramped += 1
        while True:
            await asyncio.sleep(backoff_s(self._cramped, random.random))
            if self._mark.free_bytes >= too_little * _MORE:
                return

    async def _wait_to_ask(self) -> bool:
        """Wait until it may be time to ask the primary again; whether a reader wants to know."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._ask_s):
                await self._asked.wait()
        is_asked = self._asked.is_set()
        self._asked.clear()
        return is_asked

    @property
    def _is_silent(self) -> bool:
        """Whether it is too long since we knew how far the primary was."""
        limit_s = self._ask_s if self._changes.watches else self._unwatched_ask_s
        return self._monotonic() - self._as_of >= limit_s - _EARLY_S

    def _hold_all_until(self, moment: float) -> None:
        """The copy has come as far as the primary was at that moment."""
        if moment > self._as_of:
            self._as_of = moment
            as_of_ms = round((time.time() - self._monotonic() + moment) * 1_000)
            self._mark.update(as_of_ms=as_of_ms, fetched_bytes=self._fetched_bytes)
            self._cramped = self._failed = 0
        if self._state is not ReplicaState.IN_TOUCH and not self._is_behind:
            self._fault = None
            self._enter(ReplicaState.IN_TOUCH)

    def _fall_behind(self, reason: str) -> None:
        """Stop claiming to be in touch: the primary answers, but its commits come in too late."""
        if self._state is ReplicaState.IN_TOUCH:
            _log.info("the replica is %s: %s", ReplicaState.CATCHING_UP, reason)
            self._enter(ReplicaState.CATCHING_UP, reason)

    def _lose(self, fault: Exception) -> None:
        self._fault = fault
        told = str(fault) or type(fault).__name__
        state = ReplicaState.CATCHING_UP if isinstance(fault, Restarted) else ReplicaState.OUT_OF_TOUCH
        if self._state is not state:
            _log.warning("the replica is %s: %s", state, told)
        self._enter(state, told)
        self._progress.bump()

    def _turn_off(self, error: Exception) -> None:
        if self._state is not ReplicaState.OFF:
            _log.warning("the replica is off, reads go to the primary: %s", error)
        self._as_of = _NEVER
        with suppress(OSError):  # of a full disk, too
            self._enter(ReplicaState.OFF, str(error))
        self._progress.bump()

    def _enter(self, state: ReplicaState, error: str = "") -> None:
        """Change the state; whoever watches is to know."""
        is_news = state is not self._state
        self._state, self._error = state, error
        if is_news:
            self._changes.bump()
        self._mark.update(state=state, error=error)

    # --- how it stands ---------------------------------------------------------------------------

    async def caught_up(self, progress: Progress, patience_s: float) -> None:
        """Wait until it holds all that was committed before now; raise if it stands still for so long."""
        since = self._monotonic()
        self._asked.set()
        loop = asyncio.get_running_loop()
        seen, deadline = (-1, 0), 0.0
        while self._as_of < since:
            if self._state is ReplicaState.OFF:
                raise ReplicaOff(f"the replica is off: {self._error}", hint="see `vox-mesh db status`")
            if isinstance(self._fault, Unauthorized):
                raise self._fault
            if (now := (self._arrived, self._held.end)) != seen:
                seen, deadline = now, loop.time() + patience_s
                progress(*now)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._progress.after(self._progress.count)
            except TimeoutError:
                raise Unreachable(f"the replica does not get on: {self._error or self._state}") from None
        progress(self._held.end, self._held.end)

    def status(self) -> ReplicaStatus:
        """How it stands."""
        held, record = self._held, self._mark.record
        return ReplicaStatus(
            driver=self.driver,
            state=self._state,
            frame=held.next_frame - 1 if held.log_id else None,
            lag_frames=max(0, held.end - held.next_frame) if held.log_id else None,
            age_ms=round((self._monotonic() - self._as_of) * 1_000) if self._as_of != _NEVER else None,
            bytes=held.bytes,
            error=self._error,
            snapshots=record.snapshots,
            start_overs=record.start_overs,
            fetched_bytes=self._fetched_bytes,
        )

    async def close(self) -> None:
        """Stop following. May be called twice, and whoever is cancelled meanwhile leaves it to go on."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._release()
        finally:
            self._mark.release()
