"""The pulse: yields each beat when it begins to local listeners, derived from the clock alone."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from vox_mesh.model.base.histogram import Histogram
from vox_mesh.model.rhythm.frames import BeatFrame, TempoSource
from vox_mesh.model.rhythm.tempo import Beat, Metronome
from vox_mesh.observability.log_context import apart
from vox_mesh.rhythm.context import RhythmContext

_log = logging.getLogger(__name__)

_MOST_BARS: Final = 1_000
"""After a larger clock jump the pulse restarts instead of yielding all missed downbeats."""

_KEPT: Final = _MOST_BARS + 256
"""How many frames are queued for a slow listener before it misses the oldest. One jump's downbeats fit."""

_LATE_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)


class _Listener:
    """A queue of frames for one consumer."""

    def __init__(self) -> None:
        self._frames: deque[BeatFrame] = deque(maxlen=_KEPT)
        self._came = asyncio.Event()
        self._is_over = False

    def tell(self, frame: BeatFrame) -> None:
        self._frames.append(frame)
        self._came.set()

    def end(self) -> None:
        self._is_over = True
        self._came.set()

    async def next(self) -> BeatFrame | None:
        """Return the next frame, or `None` at the end."""
        while not self._frames:
            if self._is_over:
                return None
            self._came.clear()
            await self._came.wait()
        return self._frames.popleft()


class Pulse:
    """Derives beats from the clock while there are listeners."""

    def __init__(self, ground: RhythmContext) -> None:
        self._ground = ground
        self._listeners: set[_Listener] = set()
        self._beating: asyncio.Task[None] | None = None
        self.source = TempoSource.POLICY
        """Which plan the tempo comes from."""
        self.lateness = Histogram(_LATE_S)
        """How long after their beginning beats were yielded, in seconds."""

    def frame(self, at_ms: int | None = None) -> BeatFrame:
        """Return the frame of the beat at a time, by default now."""
        return self._frame(self._ground.beat(at_ms))

    def _frame(self, beat: Beat) -> BeatFrame:
        ground = self._ground
        return BeatFrame.of(beat, ground.plan.at(beat.epoch_ms), str(ground.clock.tick()), self.source)

    async def beats(self) -> AsyncGenerator[BeatFrame, None]:
        """Yield each beat when it begins; of beats skipped by a clock jump, only the downbeats."""
        listener = _Listener()
        self._listeners.add(listener)
        if self._beating is None:
            beating = self._ground.store.faults.keep_running("pulse", self._beat)
            self._beating = asyncio.create_task(beating, name="vox-mesh-pulse", context=apart())
        try:
            while (frame := await listener.next()) is not None:
                yield frame
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._stop()

    def _stop(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()

    async def close(self) -> None:
        """Stop the pulse and end all listeners."""
        self._stop()
        for listener in self._listeners:
            listener.end()

    async def _beat(self) -> None:
        ground = self._ground
        metronome = Metronome(told_ms := ground.beat().epoch_ms)
        while True:
            await ground.times.until(ground.timeline.beat_at(told_ms).ends_ms, or_set_back=True)
            now_ms = ground.times.now_ms
            if told_ms - now_ms > ground.beat(now_ms).bar_ms:
                _log.warning(
                    "the clock was set back by %d s: beats are told anew", (told_ms - now_ms) / 1_000
                )
                metronome = Metronome(told_ms := ground.beat(now_ms).epoch_ms)
            if ground.timeline.bars_between(told_ms, now_ms) > _MOST_BARS:
                _log.warning(
                    "the clock has jumped by %d s: the beats in between are left out",
                    (now_ms - told_ms) / 1_000,
                )
                metronome = Metronome(ground.beat(now_ms).window_ms - 1)
            for beat in metronome.beats(ground.timeline, now_ms):
                told_ms = beat.epoch_ms
                frame = self._frame(beat)
                self.lateness.observe((now_ms - told_ms) / 1_000)
                for listener in self._listeners:
                    listener.tell(frame)
