"""Implement what all replicas that follow the primary share: the task that does so, and its state."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, ReplicaOff, SyncRefused, Unauthorized
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.replica.answering import NEVER, REFRESH_INTERVAL_S, AnsweringReplica, refresh_interval_s
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import Interrupted, ReplicaState, ReplicaStatus, Restarted
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.write.retry import backoff_s

_log = logging.getLogger(__name__)

_UNWATCHED_REFRESH_INTERVAL_S: Final = 6.0
"""The interval without watches: longer than a node's heartbeat interval, whose answers refresh too."""

_EARLY_REFRESH_S: Final = 0.1
"""A refresh that is due within this time is made at once rather than one interval later."""

_SPACE_FACTOR: Final = 1.05
"""How much more free disk space than at the last failure is needed for another attempt."""


class ReplicaFollower(AnsweringReplica):
    """Follows the primary, and tracks how fresh its copy is."""

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
        super().__init__(watermark, changes, max_stale_s)
        self._mark = mark
        self._refresh_interval_s = refresh_interval_s(max_stale_s)
        self._unwatched_interval_s = (
            _UNWATCHED_REFRESH_INTERVAL_S
            if self._refresh_interval_s == REFRESH_INTERVAL_S
            else self._refresh_interval_s
        )
        self._on_refused = refused
        self._faults = faults
        self._disk_full_count = 0  # consecutive failures because the disk was full
        self._fault_count = 0  # consecutive unexpected faults
        self._closing: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(), name="vox-mesh-replica")

    # --- hooks -----------------------------------------------------------------------------------

    @property
    def _position(self) -> tuple[str, int]:
        record = self._mark.record
        return record.log_id, record.next_frame

    @property
    def _is_watched(self) -> bool:
        """Return whether anything must notice soon that the primary is away."""
        return self._changes.watches > 0

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
    async def _discard(self) -> None:
        """Free the disk space."""

    @abstractmethod
    async def _release(self) -> None:
        """Close files and connections."""

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
        limit_s = self._refresh_interval_s if self._is_watched else self._unwatched_interval_s
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
        self._as_of = NEVER
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

    def status(self) -> ReplicaStatus:
        """Return the replica's status."""
        held, record = self._copy_state, self._mark.record
        return ReplicaStatus(
            driver=self.driver,
            state=self._state,
            frame=held.next_frame - 1 if held.log_id else None,
            lag_frames=max(0, held.end - held.next_frame) if held.log_id else None,
            age_ms=round((self._monotonic() - self._as_of) * 1_000) if self._as_of != NEVER else None,
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
