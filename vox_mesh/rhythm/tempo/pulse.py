"""The pulse: yields each beat when it begins to local listeners, derived from the clock alone."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from vox_mesh.model.base.histogram import Histogram
from vox_mesh.model.rhythm.plan import BeatFrame, TempoSource
from vox_mesh.model.rhythm.tempo import Beat, Metronome
from vox_mesh.observability.log_context import detached_context
from vox_mesh.rhythm.context import RhythmContext

_log = logging.getLogger(__name__)

_MAX_JUMP_BARS: Final = 1_000
"""After a larger clock jump the pulse restarts instead of yielding all missed downbeats."""

_MAX_QUEUED_FRAMES: Final = _MAX_JUMP_BARS + 256
"""How many frames are queued for a slow listener before it misses the oldest. One jump's downbeats fit."""

_LATENESS_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)


class _Listener:
    """A queue of frames for one consumer."""

    def __init__(self) -> None:
        self._frames: deque[BeatFrame] = deque(maxlen=_MAX_QUEUED_FRAMES)
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, frame: BeatFrame) -> None:
        self._frames.append(frame)
        self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    async def next(self) -> BeatFrame | None:
        """Return the next frame, or `None` at the end."""
        while not self._frames:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._frames.popleft()


class Pulse:
    """Derives beats from the clock while there are listeners."""

    def __init__(self, context: RhythmContext) -> None:
        self._context = context
        self._listeners: dict[_Listener, None] = {}
        """In the order in which they began, which is that in which they hear of a beat."""
        self._beat_task: asyncio.Task[None] | None = None
        self._last_ms = 0
        """When the last beat began that the listeners know of."""
        self.source = TempoSource.POLICY
        """Which plan the tempo comes from."""
        self.lateness = Histogram(_LATENESS_BUCKETS_S)
        """How long after their beginning beats were yielded, in seconds."""

    def frame(self, at_ms: int | None = None) -> BeatFrame:
        """Return the frame of the beat at a time, by default now."""
        return self._frame(self._context.beat(at_ms))

    def _frame(self, beat: Beat) -> BeatFrame:
        context = self._context
        return BeatFrame.of(beat, context.plan.at(beat.epoch_ms), str(context.clock.tick()), self.source)

    async def beats(self) -> AsyncGenerator[BeatFrame, None]:
        """Yield each beat when it begins; of beats skipped by a clock jump, only the downbeats."""
        listener = _Listener()
        self._listeners[listener] = None
        if self._beat_task is None:
            self._last_ms = self._context.beat().epoch_ms  # the next one may begin before the task does
            beat_loop = self._context.store.faults.keep_running("pulse", self._beat)
            self._beat_task = asyncio.create_task(
                beat_loop, name="vox-mesh-pulse", context=detached_context()
            )
        try:
            while (frame := await listener.next()) is not None:
                yield frame
        finally:
            self._listeners.pop(listener, None)
            if not self._listeners:
                self._stop()

    def _stop(self) -> None:
        beat_task, self._beat_task = self._beat_task, None
        if beat_task is not None:
            beat_task.cancel()

    async def close(self) -> None:
        """Stop the pulse and end all listeners."""
        self._stop()
        for listener in self._listeners:
            listener.close()

    async def _beat(self) -> None:
        context = self._context
        metronome = Metronome(last_ms := self._last_ms)
        while True:
            await context.times.until(context.timeline.beat_at(last_ms).ends_ms, or_set_back=True)
            now_ms = context.times.now_ms
            if last_ms - now_ms > context.beat(now_ms).bar_ms:
                _log.warning("clock set back, pulse restarts: seconds=%d", (last_ms - now_ms) / 1_000)
                metronome = Metronome(last_ms := context.beat(now_ms).epoch_ms)
            if context.timeline.bars_between(last_ms, now_ms) > _MAX_JUMP_BARS:
                _log.warning(
                    "clock jumped ahead, beats skipped: seconds=%d",
                    (now_ms - last_ms) / 1_000,
                )
                metronome = Metronome(context.beat(now_ms).window_ms - 1)
            for beat in metronome.beats(context.timeline, now_ms):
                self._last_ms = last_ms = beat.epoch_ms
                frame = self._frame(beat)
                self.lateness.observe((now_ms - last_ms) / 1_000)
                for listener in self._listeners:
                    listener.put(frame)
