"""Hybrid logical clocks: times that order events by cause, and stay close to a real clock.

A time is a wall part in milliseconds, a counter for what happens within one, and its author. The clock
that is followed (the database's) is passed in with every call.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue

MAX_AHEAD_MS: Final = 1_000
"""A remote time further ahead of the followed clock than this is not believed."""

_WALL_DIGITS: Final = 13
_LOGICAL_DIGITS: Final = 5
_WALL_LIMIT: Final = 10**_WALL_DIGITS
_LAST_LOGICAL: Final = 10**_LOGICAL_DIGITS - 1
_AUTHOR_AT: Final = _WALL_DIGITS + _LOGICAL_DIGITS + 2


_CLOCK: Final = re.compile(r"[0-9]{13}-[0-9]{5}-")


def clock_part(text: str, author: str) -> str | None:
    """What of a time of this author sorts it among all of them; `None` if it is none."""
    clock = text[:_AUTHOR_AT]
    return clock if text[_AUTHOR_AT:] == author and _CLOCK.match(clock) else None


class Hlc(NamedTuple):
    """One time. Comparing two compares their clocks, and sorting their texts sorts them the same way."""

    wall_ms: int
    logical: int
    author: str

    def __str__(self) -> str:
        return f"{self.wall_ms:013}-{self.logical:05}-{self.author}"

    @classmethod
    def parse(cls, text: str) -> Hlc:
        """The time that `text` shows."""
        if not _CLOCK.match(text) or len(text) == _AUTHOR_AT:
            raise BadValue(f"{text!r} is no time of a hybrid clock", hint="<13 digits>-<5 digits>-<author>")
        return cls(int(text[:13]), int(text[14:19]), text[_AUTHOR_AT:])


class HybridClock:
    """Gives every event of one author a time later than all it has given or received.

    The counter never waits: when it is full, the wall part goes on by a millisecond.
    """

    def __init__(self, author: str) -> None:
        self._author = author
        self._wall_ms = 0
        self._logical = 0

    @property
    def last(self) -> Hlc:
        """The latest time given or received."""
        return Hlc(self._wall_ms, self._logical, self._author)

    def tick(self, now_ms: int) -> Hlc:
        """The time of an event of our own."""
        if now_ms > self._wall_ms:
            return self._set(now_ms, 0)
        if self._logical == _LAST_LOGICAL:
            return self._set(self._wall_ms + 1, 0)
        self._logical += 1
        return Hlc(self._wall_ms, self._logical, self._author)

    def receive(self, remote: Hlc, now_ms: int) -> Hlc | None:
        """The time of having seen `remote`; `None`, and nothing merged, if it is too far ahead of us."""
        if remote.wall_ms > now_ms + MAX_AHEAD_MS:
            return None
        self.resume(remote)
        return self.tick(now_ms)

    def resume(self, earlier: Hlc) -> None:
        """Go on after a time of our own, whatever the followed clock says now."""
        if (earlier.wall_ms, earlier.logical) > (self._wall_ms, self._logical):
            self._set(earlier.wall_ms, earlier.logical)

    def _set(self, wall_ms: int, logical: int) -> Hlc:
        if not 0 <= wall_ms < _WALL_LIMIT:
            raise BadValue(f"{wall_ms} ms is no time that a hybrid clock can show")
        self._wall_ms, self._logical = wall_ms, logical
        return Hlc(wall_ms, logical, self._author)
