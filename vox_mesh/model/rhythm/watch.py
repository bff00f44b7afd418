"""The watch: which bars were looked at, so that what was quiet is told from what nobody saw."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from vox_mesh.model.rhythm.tempo import Timeline, Window

SOON_BARS: Final = 2
"""Who has looked so many bars ago knows what was in between."""

_MOST: Final = 64


class WatchedBars(NamedTuple):
    """Bars in a row, all of which were watched, or none."""

    window: Window
    is_watched: bool


class BarWatch:
    """Remembers the stretches of time in which somebody looked, bar for bar; the last one goes on."""

    def __init__(self) -> None:
        self._ended: deque[Window] = deque(maxlen=_MOST)
        self._since_ms: int | None = None
        self._looked_ms = 0

    @property
    def begins_ms(self) -> int | None:
        """When the first bar began that was watched, if one was."""
        return self._ended[0].start_ms if self._ended else self._since_ms

    def look(self, timeline: Timeline, now_ms: int) -> None:
        """Somebody looks now. The bar in which it was last done before a gap was not seen to its end."""
        start_ms = timeline.window_at(now_ms).start_ms
        if self._since_ms is None:
            self._since_ms = start_ms
        elif start_ms < self._since_ms:  # the clock was set back: what we knew was of another time
            self._ended.clear()
            self._since_ms = start_ms
        elif now_ms > self._looked_ms and timeline.bars_between(self._looked_ms, now_ms) > SOON_BARS:
            last_ms = timeline.window_at(self._looked_ms).start_ms
            if last_ms > self._since_ms:
                self._ended.append(Window(self._since_ms, last_ms))
            self._since_ms = start_ms
        self._looked_ms = now_ms

    def covers(self, at_ms: int) -> bool:
        """Whether the bar of that moment was watched."""
        is_now = self._since_ms is not None and at_ms >= self._since_ms
        return is_now or any(start_ms <= at_ms < end_ms for start_ms, end_ms in self._ended)

    def parts(self, window: Window) -> Iterator[WatchedBars]:
        """These bars without a gap: those that were watched, and those that were not."""
        at_ms, until_ms = window
        going_on = () if self._since_ms is None else (Window(self._since_ms, until_ms),)
        for start_ms, end_ms in (*self._ended, *going_on):
            if end_ms <= at_ms or start_ms >= until_ms:
                continue
            if at_ms < start_ms:
                yield WatchedBars(Window(at_ms, start_ms), is_watched=False)
                at_ms = start_ms
            yield WatchedBars(Window(at_ms, min(end_ms, until_ms)), is_watched=True)
            at_ms = min(end_ms, until_ms)
        if at_ms < until_ms:
            yield WatchedBars(Window(at_ms, until_ms), is_watched=False)

    def forget(self, before_ms: int) -> None:
        """What was before is told."""
        while self._ended and self._ended[0].end_ms <= before_ms:
            self._ended.popleft()
