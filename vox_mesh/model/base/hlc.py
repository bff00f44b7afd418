"""Hybrid logical clocks: times that order events by cause, and stay close to a real clock.

A time is a wall part in milliseconds, a counter for events within one, and its author. The followed clock
(the database's) is passed in with every call.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue

MAX_AHEAD_MS: Final = 1_000
"""A remote time further ahead of the followed clock than this is rejected."""

_WALL_DIGITS: Final = 13
_LOGICAL_DIGITS: Final = 5
_WALL_LIMIT: Final = 10**_WALL_DIGITS
_MAX_LOGICAL: Final = 10**_LOGICAL_DIGITS - 1
_AUTHOR_OFFSET: Final = _WALL_DIGITS + _LOGICAL_DIGITS + 2


_CLOCK_PATTERN: Final = re.compile(r"[0-9]{13}-[0-9]{5}-")


_DATED_PATTERN: Final = re.compile(
    r"(?P<moment>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z)"
    r"(\+[0-9]{1,15}:[0-9]{1,15})?\+(?P<logical>[0-9]{1,5})"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def clock_part(text: str, author: str) -> str | None:
    """Return the sortable part of a time of this author; `None` if it is not one."""
    clock = text[:_AUTHOR_OFFSET]
    return clock if text[_AUTHOR_OFFSET:] == author and _CLOCK_PATTERN.match(clock) else None


class Hlc(NamedTuple):
    """One time. Times compare by their clocks, and their texts sort in the same order."""

    wall_ms: int
    logical: int
    author: str

    def __str__(self) -> str:
        return f"{self.wall_ms:013}-{self.logical:05}-{self.author}"

    @classmethod
    def parse(cls, text: str) -> Hlc:
        """Return the time that `text` represents."""
        if not _CLOCK_PATTERN.match(text) or len(text) == _AUTHOR_OFFSET:
            raise BadValue(f"{text!r} is no time of a hybrid clock", hint="<13 digits>-<5 digits>-<author>")
        return cls(int(text[:13]), int(text[14:19]), text[_AUTHOR_OFFSET:])

    @classmethod
    def read(cls, text: str, author: str) -> Hlc:
        """Return the time that `text` represents, also in the form of a beat frame: with a date, and without
        an author, such as `2025-09-03T02:12:27.183Z+17`, or `…Z+1287:3+17` with a bar and a beat before it.
        """
        found = _DATED_PATTERN.fullmatch(text)
        if found is None:
            return cls.parse(text)
        try:
            moment = datetime.fromisoformat(found["moment"])
        except ValueError:
            raise BadValue(f"{text!r} is no time of a hybrid clock: there is no such date") from None
        return cls((moment - _EPOCH) // _MILLISECOND, int(found["logical"]), author)


class HybridClock:
    """Give every event of one author a time later than all it has given or received.

    The counter never waits: when it is full, the wall part advances by a millisecond.
    """

    def __init__(self, author: str) -> None:
        self._author = author
        self._wall_ms = 0
        self._logical = 0

    @property
    def last(self) -> Hlc:
        """Return the latest time given or received."""
        return Hlc(self._wall_ms, self._logical, self._author)

    def tick(self, now_ms: int) -> Hlc:
        """Return the time of a local event."""
        if now_ms > self._wall_ms:
            return self._set(now_ms, 0)
        if self._logical == _MAX_LOGICAL:
            return self._set(self._wall_ms + 1, 0)
        self._logical += 1
        return Hlc(self._wall_ms, self._logical, self._author)

    def receive(self, remote: Hlc, now_ms: int) -> Hlc | None:
        """Merge `remote`, and return the time of that event; `None`, and no merge, if it is too far ahead."""
        if remote.wall_ms > now_ms + MAX_AHEAD_MS:
            return None
        self.resume(remote)
        return self.tick(now_ms)

    def resume(self, earlier: Hlc) -> None:
        """Continue after a time of our own, regardless of the followed clock."""
        if (earlier.wall_ms, earlier.logical) > (self._wall_ms, self._logical):
            self._set(earlier.wall_ms, earlier.logical)

    def _set(self, wall_ms: int, logical: int) -> Hlc:
        if not 0 <= wall_ms < _WALL_LIMIT:
            raise BadValue(f"{wall_ms} ms is no time that a hybrid clock can show")
        self._wall_ms, self._logical = wall_ms, logical
        return Hlc(wall_ms, logical, self._author)
