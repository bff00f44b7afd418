"""Answer reads from a copy that is fresh enough, however it is kept up to date."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from copy import copy
from typing import ClassVar, Final, NamedTuple

from vox_mesh.errors import ReplicaOff, Unauthorized, Unreachable
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import Progress, ReplicaState
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import ChangeCount, Changes

_WATERMARK_WAIT_S: Final = 0.05
"""How long a read waits for the copy to meet the watermark; then the primary answers."""

_HELLO_WAIT_FACTOR: Final = 2
_MAX_HELLO_WAIT_S: Final = 1.0
"""How long it waits for the answer to a hello if the last one took long."""

REFRESH_INTERVAL_S: Final = 2.0
NEVER: Final = -float("inf")


def refresh_interval_s(max_stale_s: float) -> float:
    """Return how often the primary's position is to be learnt, for answers of that age at most."""
    if not max_stale_s:
        return REFRESH_INTERVAL_S
    return min(REFRESH_INTERVAL_S, max(max_stale_s / 2, _WATERMARK_WAIT_S))


class CopyState(NamedTuple):
    """The content of a copy: the frames of a log before `next_frame`, of `end` frames in all.

    `log_id` is empty for a copy that does not count frames.
    """

    log_id: str
    next_frame: int
    end: int
    bytes: int


class AnsweringReplica(ABC):
    """Tracks how fresh a copy is, and answers from it if it is fresh enough.

    `as_of` is the time up to which the copy holds every commit: the time of the last request for the
    primary's position that the copy has reached since. Silence of the primary proves nothing.
    """

    driver: ClassVar[str]

    def __init__(self, watermark: ReadWatermark, changes: Changes, max_stale_s: float) -> None:
        self._watermark = watermark
        self._changes = changes
        self._max_stale_s = max_stale_s
        self._monotonic = watermark.monotonic  # comparable with the watermark's times
        self._state = ReplicaState.CATCHING_UP
        self._error = ""
        self._fault: Exception | None = None
        self._as_of = NEVER
        self._hello_s = 0.0  # how long the last hello took
        self._progress = ChangeCount()
        self._refresh_requested = asyncio.Event()

    # --- hooks -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _copy_state(self) -> CopyState:
        """Return the content of the copy."""

    @property
    @abstractmethod
    def _position(self) -> tuple[str, int]:
        """Return the log of the copy, and the next frame of that."""

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

    @abstractmethod
    def _read_now(self, statement: Statement) -> Rows | None:
        """Run a query on the copy without waiting; `None` if that is not possible."""

    @abstractmethod
    async def _read(self, statement: Statement) -> Rows | None:
        """Run a query on the copy; `None` if that is not possible."""

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
        if not self._is_up_to_date and not await self._reach_watermark():
            return None
        as_of = self._as_of  # it may rise during the read, whose rows would not include that
        rows = await self._read(statement)
        if rows is not None:
            rows.age_s = self._monotonic() - as_of
        return rows

    async def caught_up(self) -> bool:
        """Wait briefly until it shows what this process has seen. Return whether it had to wait."""
        if self._is_up_to_date:
            return False
        await self._reach_watermark()
        return True

    @property
    def _is_up_to_date(self) -> bool:
        return not self._is_stale and self._meets(self._watermark)

    @property
    def _is_stale(self) -> bool:
        return self._monotonic() - self._as_of > self._max_stale_s

    def _meets(self, watermark: ReadWatermark) -> bool:
        return watermark.is_met_by(*self._position, self._as_of)

    async def _reach_watermark(self) -> bool:
        """Wait briefly until the copy meets the watermark. Return whether it does."""
        if self._state is not ReplicaState.IN_TOUCH or self._is_blocked:
            return False
        if self._is_stale and not self._has_pending_hello:
            return False
        watermark = copy(
            self._watermark
        )  # fixed now: this read need not include what others see while it waits
        wait_s = _WATERMARK_WAIT_S
        if watermark.needs_hello(self._copy_state.log_id, self._as_of):
            self._refresh_requested.set()
            wait_s = max(wait_s, min(_HELLO_WAIT_FACTOR * self._hello_s, _MAX_HELLO_WAIT_S))
        try:
            async with asyncio.timeout(wait_s):
                while self._is_stale or not self._meets(watermark):
                    await self._progress.after(self._progress.count)
        except TimeoutError:
            return False
        return True

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
