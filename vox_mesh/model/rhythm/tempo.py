"""Tempo: the positions of beats and bars in time, derived from the clock and never counted.

Times are milliseconds by the database's clock. A tempo has an anchor, its first downbeat; the next tempo's
anchor is a downbeat of the previous one, so bars follow each other without a gap.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import content_id

MINUTE_MS: Final = 60_000
SLOWEST_BPM: Final = 1 / 60
"""One beat per hour."""

FASTEST_BPM: Final = 600.0
"""Ten beats per second, for tests and demonstrations."""

LONGEST_BAR: Final = 64

_WINDOW_DIGITS: Final = 16
_WINDOW: Final = re.compile(rf"[0-9a-f]{{{_WINDOW_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat: its index in the bar from 1, its beginning, its length and its bar."""

    index: int
    epoch_ms: int
    beat_ms: int
    window_ms: int
    """When its bar begins."""
    bar_len: int

    @property
    def is_downbeat(self) -> bool:
        """Whether it is the first of its bar."""
        return self.index == 1

    @property
    def ends_ms(self) -> int:
        """When the next beat begins."""
        return self.epoch_ms + self.beat_ms

    @property
    def bar_ms(self) -> int:
        """The length of its bar."""
        return self.bar_len * self.beat_ms

    @property
    def window_ends_ms(self) -> int:
        """When the next bar begins."""
        return self.window_ms + self.bar_ms


@dataclass(frozen=True, slots=True)
class Tempo:
    """A tempo, in force from its anchor on."""

    bpm: float
    bar_len: int
    anchor_ms: int = 0

    def __post_init__(self) -> None:
        if not SLOWEST_BPM <= self.bpm <= FASTEST_BPM:
            raise BadValue(f"tempo must be from 1/60 to {FASTEST_BPM:g} beats a minute, got {self.bpm:g}")
        if not 1 <= self.bar_len <= LONGEST_BAR:
            raise BadValue(f"bar length must be from 1 to {LONGEST_BAR} beats, got {self.bar_len}")

    @property
    def beat_ms(self) -> int:
        """The length of a beat in whole milliseconds, equal on every node."""
        return round(MINUTE_MS / self.bpm)

    @property
    def bar_ms(self) -> int:
        """The length of a bar."""
        return self.beat_ms * self.bar_len

    def beat_at(self, at_ms: int) -> Beat:
        """Return the beat that contains a time."""
        beats = (at_ms - self.anchor_ms) // self.beat_ms
        bars, before = divmod(beats, self.bar_len)
        epoch_ms = self.anchor_ms + beats * self.beat_ms
        return Beat(before + 1, epoch_ms, self.beat_ms, self.anchor_ms + bars * self.bar_ms, self.bar_len)


class Window(NamedTuple):
    """One bar, from its start to its end."""

    start_ms: int
    end_ms: int


class Timeline:
    """All tempos in order. The first one also applies to all time before its anchor."""

    def __init__(self, tempos: Iterable[Tempo]) -> None:
        self.tempos: Final = tuple(sorted(tempos, key=lambda tempo: tempo.anchor_ms))
        if not self.tempos:
            raise BadValue("timeline must have at least one tempo, got none")
        for before, after in pairwise(self.tempos):
            if before.beat_at(after.anchor_ms).window_ms != after.anchor_ms:
                raise BadValue(f"tempo must change on a downbeat of the one before it, got {after.anchor_ms}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and self.tempos == other.tempos

    def __hash__(self) -> int:
        return hash(self.tempos)

    @cached_property
    def _anchors(self) -> list[int]:
        return [tempo.anchor_ms for tempo in self.tempos]

    @property
    def last(self) -> Tempo:
        """The last tempo."""
        return self.tempos[-1]

    def _index_at(self, at_ms: int) -> int:
        return max(0, bisect_right(self._anchors, at_ms) - 1)

    def tempo_at(self, at_ms: int) -> Tempo:
        """Return the tempo in force at a time."""
        return self.tempos[self._index_at(at_ms)]

    def beat_at(self, at_ms: int) -> Beat:
        """Return the beat that contains a time."""
        return self.tempo_at(at_ms).beat_at(at_ms)

    def window_at(self, at_ms: int) -> Window:
        """Return the bar that contains a time."""
        beat = self.beat_at(at_ms)
        return Window(beat.window_ms, beat.window_ends_ms)

    def windows(self, from_ms: int, until_ms: int) -> Iterator[Window]:
        """Yield the bars from the one that contains `from_ms` that have ended by `until_ms`."""
        window = self.window_at(from_ms)
        while window.end_ms <= until_ms:
            yield window
            window = self.window_at(window.end_ms)

    def bars_between(self, from_ms: int, until_ms: int) -> int:
        """Return the number of downbeats after `from_ms`, up to `until_ms`, which must not be earlier."""
        at_ms, index, bars = self.window_at(from_ms).start_ms, self._index_at(from_ms), 0
        while index + 1 < len(self.tempos) and self._anchors[index + 1] <= until_ms:
            bars += (self._anchors[index + 1] - at_ms) // self.tempos[index].bar_ms
            at_ms, index = self._anchors[index + 1], index + 1
        return bars + (until_ms - at_ms) // self.tempos[index].bar_ms

    def downbeat_after(self, at_ms: int, bars: int = 1) -> int:
        """Return the beginning of the bar that is `bars` after the one that contains a time."""
        at_ms, index, left = self.window_at(at_ms).start_ms, self._index_at(at_ms), bars
        while index + 1 < len(self.tempos):
            available = (self._anchors[index + 1] - at_ms) // self.tempos[index].bar_ms
            if left < available:
                break
            at_ms, index, left = self._anchors[index + 1], index + 1, left - available
        return at_ms + left * self.tempos[index].bar_ms

    # --- time in beats ---------------------------------------------------------------------------------

    def after(self, now_ms: int, beats: float | Fraction) -> int:
        """Return the time this many beats from now, or before now, across tempo changes."""
        left, at_ms = Fraction(beats), now_ms
        index = self._index_at(now_ms)
        while left > 0:
            tempo = self.tempos[index]
            end_ms = self._anchors[index + 1] if index + 1 < len(self.tempos) else None
            available = None if end_ms is None else Fraction(end_ms - at_ms, tempo.beat_ms)
            if end_ms is None or available is None or left <= available:
                return at_ms + round(left * tempo.beat_ms)
            left, at_ms, index = left - available, end_ms, index + 1
        while left < 0:
            tempo = self.tempos[index]
            available = Fraction(at_ms - tempo.anchor_ms, tempo.beat_ms)
            if index == 0 or -left <= available:
                return at_ms + round(left * tempo.beat_ms)
            left, at_ms, index = left + available, tempo.anchor_ms, index - 1
        return at_ms

    def beats_between(self, from_ms: int, until_ms: int) -> float:
        """Return the beats between two times; negative if the second is earlier."""
        if until_ms < from_ms:
            return -self.beats_between(until_ms, from_ms)
        index = self._index_at(from_ms)
        if index + 1 == len(self.tempos) or until_ms <= self._anchors[index + 1]:  # the usual case, kept fast
            return (until_ms - from_ms) / self.tempos[index].beat_ms
        beats, at_ms = Fraction(0), from_ms
        while index + 1 < len(self.tempos) and self._anchors[index + 1] < until_ms:
            beats += Fraction(self._anchors[index + 1] - at_ms, self.tempos[index].beat_ms)
            at_ms, index = self._anchors[index + 1], index + 1
        return float(beats + Fraction(until_ms - at_ms, self.tempos[index].beat_ms))

    def delta_beats(self, now_ms: int, target_ms: int) -> int:
        """Return the beats from now to a time, rounded."""
        return round(self.beats_between(now_ms, target_ms))


class Metronome:
    """Yields each beat once, by a clock read from time to time. It waits for a clock that steps back.

    After a jump it yields only the downbeats of the skipped bars, and the current beat.
    """

    def __init__(self, last_epoch_ms: int) -> None:
        self._last_ms = last_epoch_ms

    def beats(self, timeline: Timeline, now_ms: int) -> Iterator[Beat]:
        """Yield the beats that have begun since the last call."""
        current = timeline.beat_at(now_ms)
        if current.epoch_ms <= self._last_ms:
            return
        is_jump = timeline.bars_between(self._last_ms, now_ms) > 1
        at_ms = timeline.beat_at(self._last_ms).ends_ms
        while at_ms <= current.epoch_ms:
            beat = timeline.beat_at(at_ms)
            if not is_jump or beat.is_downbeat or beat == current:
                self._last_ms = at_ms
                yield beat
            if not is_jump:
                at_ms = beat.ends_ms
            elif beat.window_ms < current.window_ms:
                at_ms = beat.window_ends_ms
            else:
                at_ms = max(beat.ends_ms, current.epoch_ms)


@lru_cache(maxsize=64)  # most events of a busy node are in a few bars
def window_id(cluster_id: str, start_ms: int) -> str:
    """Return the name of a bar, equal on every node that knows when it began."""
    return content_id({"cluster": cluster_id, "start_ms": start_ms})[:_WINDOW_DIGITS]


def is_window_id(value: object) -> bool:
    """Return whether a value has the form of a bar's name."""
    return isinstance(value, str) and _WINDOW.fullmatch(value) is not None


def is_beat_index(value: object) -> bool:
    """Return whether a value is the number of a beat in a bar."""
    return type(value) is int and 1 <= value <= LONGEST_BAR


class BeatStamp(NamedTuple):
    """The bar and the beat of an event."""

    window: str
    beat_index: int

    @property
    def is_valid(self) -> bool:
        """Whether both have their form; what was received may hold anything."""
        return is_window_id(self.window) and is_beat_index(self.beat_index)


class Until(StrEnum):
    """The boundary at which a lock ends."""

    PHASE = "phase"
    BAR = "bar"
