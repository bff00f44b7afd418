"""The watch: which bars this node has seen, to tell quiet bars from missing ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from vox_mesh.model.rhythm.tempo import Timeline, Window

SOON_BARS: Final = 2
"""A node that looked at most this many bars ago knows what happened in between."""

_MAX_STRETCHES: Final = 64


class WatchedBars(NamedTuple):
    """Consecutive bars, all of which were watched, or none."""

    window: Window
    is_watched: bool


class BarWatch:
    """Records the watched stretches of time, bar by bar; the last one is open."""

    def __init__(self) -> None:
        self._ended: deque[Window] = deque(maxlen=_MAX_STRETCHES)
        self._since_ms: int | None = None
        self._looked_ms = 0

    @property
    def begins_ms(self) -> int | None:
        """When the first watched bar began, or `None`."""
        return self._ended[0].start_ms if self._ended else self._since_ms

    def look(self, timeline: Timeline, now_ms: int) -> None:
        """Record that this node looks now. The last bar before a gap was not seen to its end."""
        start_ms = timeline.window_at(now_ms).start_ms
        if self._since_ms is None:
            self._since_ms = start_ms
        elif start_ms < self._since_ms:  # the clock was set back: earlier records no longer apply
            self._ended.clear()
            self._since_ms = start_ms
        elif now_ms > self._looked_ms and timeline.bars_between(self._looked_ms, now_ms) > SOON_BARS:
            last_ms = timeline.window_at(self._looked_ms).start_ms
            if last_ms > self._since_ms:
                self._ended.append(Window(self._since_ms, last_ms))
            self._since_ms = start_ms
        self._looked_ms = now_ms

    def covers(self, at_ms: int) -> bool:
        """Return whether the bar at a time was watched."""
        is_now = self._since_ms is not None and at_ms >= self._since_ms
        return is_now or any(start_ms <= at_ms < end_ms for start_ms, end_ms in self._ended)

    def parts(self, window: Window) -> Iterator[WatchedBars]:
        """Yield these bars without a gap, divided into watched and unwatched ones."""
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
        """Drop everything before a time: it has been reported."""
        while self._ended and self._ended[0].end_ms <= before_ms:
            self._ended.popleft()
