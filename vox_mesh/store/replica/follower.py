"""Implement what all replicas share: a task that follows the primary, state, and freshness of answers."""

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
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import Interrupted, Progress, ReplicaState, ReplicaStatus, Restarted
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import ChangeCount, Changes
from vox_mesh.store.write.retry import backoff_s

_log = logging.getLogger(__name__)

_REFRESH_INTERVAL_S: Final = 2.0
_UNWATCHED_REFRESH_INTERVAL_S: Final = 6.0
"""The interval without watches: longer than a node's heartbeat interval, whose answers refresh too."""

_WATERMARK_WAIT_S: Final = 0.05
"""How long a read waits for the copy to meet the watermark; then the primary answers."""

_EARLY_REFRESH_S: Final = 0.1
"""A refresh that is due within this time is made at once rather than one interval later."""

_SPACE_FACTOR: Final = 1.05
"""How much more free disk space than at the last failure is needed for another attempt."""

_NEVER: Final = -float("inf")


class CopyState(NamedTuple):
    """The content of a copy: the frames of a log before `next_frame`, of `end` frames in all.

    `log_id` is empty for a copy that does not count frames.
    """

    log_id: str
    next_frame: int
    end: int
    bytes: int


class ReplicaFollower(ABC):
    """Follows the primary, and tracks how fresh its copy is.

    `as_of` is the time up to which the copy holds every commit: the time of the last request for the
    primary's position that the copy has reached since. Silence of the primary proves nothing.
    """

    driver: ClassVar[str]

    def __init__(
        self,
        mark: Mark,
        watermark: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        refused: Callable[[SyncRefused], None],
        faults: BackgroundFaults,
    ) -> None:
        self._mark = mark
        self._watermark = watermark
        self._changes = changes
        self._max_stale_s = max_stale_s
        self._refresh_interval_s = (
            min(_REFRESH_INTERVAL_S, max(max_stale_s / 2, _WATERMARK_WAIT_S))
            if max_stale_s
            else _REFRESH_INTERVAL_S
        )
        self._unwatched_interval_s = (
            _UNWATCHED_REFRESH_INTERVAL_S
            if self._refresh_interval_s == _REFRESH_INTERVAL_S
            else self._refresh_interval_s
        )
        self._on_refused = refused
        self._faults = faults
        self._monotonic = watermark.monotonic  # comparable with the watermark's times
        self._state = ReplicaState.CATCHING_UP
        self._error = ""
        self._fault: Exception | None = None
        self._as_of = _NEVER
        self._disk_full_count = 0  # consecutive failures because the disk was full
        self._fault_count = 0  # consecutive unexpected faults
        self._progress = ChangeCount()
        self._refresh_requested = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name="vox-mesh-replica")

    # --- hooks -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _copy_state(self) -> CopyState:
        """Return the content of the copy."""

    @property
    def _received_frames(self) -> int:
        """Return the number of frames received, applied or not."""
        return self._copy_state.next_frame

    @property
    def _has_pending_hello(self) -> bool:
        """Return whether a known position of the primary is still to be reached."""
        return False

    @property
    def _is_blocked(self) -> bool:
        """Return whether no frames can arrive for now, although the primary answers."""
        return False

    @property
    def _is_behind(self) -> bool:
        """Return whether it lacks commits that the primary reported too long ago."""
        return False

    @property
    def _fetched_bytes(self) -> int:
        """Return the bytes fetched since the mark was created; 0 if not counted."""
        return 0

    @abstractmethod
    async def _prepare(self) -> None:
        """Inspect the existing copy before the first session."""

    @abstractmethod
    async def _session(self) -> None:
        """Follow the primary until a fault."""

    @abstractmethod
    def _read_now(self, statement: Statement) -> Rows | None:
        """Run a query on the copy without waiting; `None` if that is not possible."""

    @abstractmethod
    async def _read(self, statement: Statement) -> Rows | None:
        """Run a query on the copy; `None` if that is not possible."""

    @abstractmethod
    async def _discard(self) -> None:
        """Free the disk space."""

    @abstractmethod
    async def _release(self) -> None:
        """Close files and connections."""

    # --- answering -------------------------------------------------------------------------------

    @property
    def is_in_touch(self) -> bool:
        """Return whether the primary answered the last request."""
        return self._state is ReplicaState.IN_TOUCH

    @property
    def is_pushed(self) -> bool:
        """Return whether the primary pushes its commits."""
        return False

    def answer_now(self, statement: Statement) -> Rows | None:
        """Run a query without waiting; `None` if that is not possible."""
        age_s = self._monotonic() - self._as_of
        if age_s > self._max_stale_s or not self._meets(self._watermark):
            return None
        rows = self._read_now(statement)
        if rows is not None:
            rows.age_s = age_s
        return rows

    async def answer(self, statement: Statement) -> Rows | None:
        """Run a query on data that meets the watermark; `None` if the primary must answer."""
        if (self._is_stale or not self._meets(self._watermark)) and not await self._reach_watermark():
            return None
        as_of = self._as_of  # it may rise during the read, whose rows would not include that
        rows = await self._read(statement)
        if rows is not None:
            rows.age_s = self._monotonic() - as_of
        return rows

    @property
    def _is_stale(self) -> bool:
        return self._monotonic() - self._as_of > self._max_stale_s

    def _meets(self, watermark: ReadWatermark) -> bool:
        record = self._mark.record
        return watermark.is_met_by(record.log_id, record.next_frame, self._as_of)

    async def _reach_watermark(self) -> bool:
        """Wait briefly until the copy meets the watermark. Return whether it does."""
        if self._state is not ReplicaState.IN_TOUCH or self._is_blocked:
            return False
        if self._is_stale and not self._has_pending_hello:
            return False
        watermark = copy(
            self._watermark
        )  # fixed now: this read need not include what others see while it waits
        if watermark.needs_hello(self._copy_state.log_id, self._as_of):
            self._refresh_requested.set()
        try:
            async with asyncio.timeout(_WATERMARK_WAIT_S):
                while self._is_stale or not self._meets(watermark):
                    await self._progress.after(self._progress.count)
        except TimeoutError:
            return False
        return True

    # --- following -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._prepare()
                    await self._run_sessions()
                except OSError as error:
                    self._turn_off(ReplicaOff(f"its file can't be written: {error}"))
                    with suppress(OSError):
                        await self._discard()
                    await self._wait_for_space(self._mark.free_bytes if error.errno == errno.ENOSPC else 0)
                except SyncRefused:
                    raise
                except Exception as error:  # after an unexpected fault the copy is dropped and fetched again
                    self._faults.note("replica", error)
                    self._turn_off(error)
                    with suppress(Exception):
                        await self._discard()
                    self._fault_count += 1
                    await asyncio.sleep(backoff_s(self._fault_count, random.random))
        except SyncRefused as error:
            self._turn_off(error)
            self._on_refused(error)

    async def _run_sessions(self) -> None:
        """Follow the primary, one session after another."""
        failed = 0
        while True:
            before = self._copy_state.next_frame
            try:
                await self._session()
            except (Interrupted, DatabaseUnavailable, Unauthorized) as fault:
                made_progress = self._state is ReplicaState.IN_TOUCH or self._copy_state.next_frame != before
                failed = 1 if made_progress else failed + 1
                self._lose_touch(fault)
                if failed > 1 or not isinstance(fault, Restarted):
                    await asyncio.sleep(backoff_s(failed, random.random))

    async def _wait_for_space(self, not_enough: int) -> None:
        """Wait, with increasing delays, until there is more disk space than at the failure."""
        self._disk_full_count += 1
        while True:
            await asyncio.sleep(backoff_s(self._disk_full_count, random.random))
            if self._mark.free_bytes >= not_enough * _SPACE_FACTOR:
                return

    async def _wait_for_refresh(self) -> bool:
        """Wait until a refresh may be due. Return whether it was requested."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._refresh_interval_s):
                await self._refresh_requested.wait()
        is_requested = self._refresh_requested.is_set()
        self._refresh_requested.clear()
        return is_requested

    @property
    def _needs_refresh(self) -> bool:
        """Return whether the last known position of the primary is too old."""
        limit_s = self._refresh_interval_s if self._changes.watches else self._unwatched_interval_s
        return self._monotonic() - self._as_of >= limit_s - _EARLY_REFRESH_S

    def _advance_as_of(self, moment: float) -> None:
        """Record that the copy holds every commit before `moment`."""
        if moment > self._as_of:
            self._as_of = moment
            as_of_ms = round((time.time() - self._monotonic() + moment) * 1_000)
            self._mark.update(as_of_ms=as_of_ms, fetched_bytes=self._fetched_bytes)
            self._disk_full_count = self._fault_count = 0
        if self._state is not ReplicaState.IN_TOUCH and not self._is_behind:
            self._fault = None
            self._enter(ReplicaState.IN_TOUCH)

    def _fall_behind(self, reason: str) -> None:
        """Leave the state in touch: the primary answers, but its commits arrive too late."""
        if self._state is ReplicaState.IN_TOUCH:
            _log.info("replica state changed: state=%s reason=%s", ReplicaState.CATCHING_UP, reason)
            self._enter(ReplicaState.CATCHING_UP, reason)

    def _lose_touch(self, fault: Exception) -> None:
        self._fault = fault
        reason = str(fault) or type(fault).__name__
        state = ReplicaState.CATCHING_UP if isinstance(fault, Restarted) else ReplicaState.OUT_OF_TOUCH
        if self._state is not state:
            _log.warning("replica state changed: state=%s reason=%s", state, reason)
        self._enter(state, reason)
        self._progress.bump()

    def _turn_off(self, error: Exception) -> None:
        if self._state is not ReplicaState.OFF:
            _log.warning("replica off, reads go to the primary: reason=%s", error)
        self._as_of = _NEVER
        with suppress(OSError):  # the disk may be full
            self._enter(ReplicaState.OFF, str(error))
        self._progress.bump()

    def _enter(self, state: ReplicaState, error: str = "") -> None:
        """Change the state, and wake all watches if it is new."""
        is_new = state is not self._state
        self._state, self._error = state, error
        if is_new:
            self._changes.bump()
        self._mark.update(state=state, error=error)

    # --- status ----------------------------------------------------------------------------------

    async def wait_until_caught_up(self, progress: Progress, patience_s: float) -> None:
        """Wait until it holds everything committed before this call.

        Raises:
            Unreachable: There was no progress for `patience_s` seconds.
            ReplicaOff: The replica is off.
        """
        since = self._monotonic()
        self._refresh_requested.set()
        loop = asyncio.get_running_loop()
        seen, deadline = (-1, 0), 0.0
        while self._as_of < since:
            if self._state is ReplicaState.OFF:
                raise ReplicaOff(f"the replica is off: {self._error}", hint="see `vox-mesh db status`")
            if isinstance(self._fault, Unauthorized):
                raise self._fault
            if (now := (self._received_frames, self._copy_state.end)) != seen:
                seen, deadline = now, loop.time() + patience_s
                progress(*now)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._progress.after(self._progress.count)
            except TimeoutError:
                raise Unreachable(f"the replica does not get on: {self._error or self._state}") from None
        progress(self._copy_state.end, self._copy_state.end)

    def status(self) -> ReplicaStatus:
        """Return the replica's status."""
        held, record = self._copy_state, self._mark.record
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
        """Stop following. May be called twice; if the caller is cancelled, closing continues."""
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
