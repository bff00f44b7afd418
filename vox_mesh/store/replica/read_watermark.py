"""Track the read watermark: the log position that this process has seen, below which no read may fall.

An answer of the primary names the last frame that it reflects. A frame number has a meaning only within its
log, which answers do not name; but all answers over one connection belong to one log. So a hello after a
connection's first answer assigns the connection to a log; from then on each of its answers has a position.

A server shows a commit to queries a moment before it counts the commit's frames. So the answer to a query may
show one commit more than it says. A write holds the lock of writers: by then all earlier ones are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_MAX_CONNECTIONS: Final = 16


class Position(NamedTuple):
    """A position in a log, and the time at which it was seen."""

    log_id: str
    frame: int
    seen_at: float


class ReadWatermark:
    """The lowest position that a read may show. It rises with every answer of the primary."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._position: Position | None = None
        self._queried_at: float | None = None  # when a query was last answered as of the position's frame
        self._unplaced_at: float | None = None
        self._logs: dict[int, str] = {}
        self._unknown: dict[int, float] = {}
        self.latest: tuple[int | None, int] = (None, 0)

    def note(self, frame: int | None, connection: int, is_query: bool) -> None:
        """Record an answer of the primary, as of `frame`, over this connection (0: not kept open)."""
        now = self.monotonic()
        self.latest = frame, connection
        log_id = self._logs.get(connection)
        if frame is None or log_id is None:
            self._unplaced_at = now
            if connection:
                self._unknown.setdefault(connection, now)
                _drop_oldest(self._unknown)
            return
        known = self._position
        if known is None or known.log_id != log_id:
            if known is not None:
                self._unplaced_at = now  # a hello must cover what was seen in the other log
            self._position, self._queried_at = Position(log_id, frame, now), None
        else:
            if frame > known.frame:
                self._queried_at = None  # a commit that was not counted then is counted now
            # The higher frame may be from a lost server, covered by a hello since; this answer is new.
            self._position = Position(log_id, max(frame, known.frame), now)
        if is_query and frame == self._position.frame:
            self._queried_at = now

    @property
    def latest_position(self) -> tuple[str, int] | None:
        """Return the log and the frame of the latest answer; `None` if its position is not known."""
        frame, connection = self.latest
        log_id = self._logs.get(connection)
        return None if frame is None or log_id is None else (log_id, frame)

    def place(self, log_id: str, asked_at: float) -> None:
        """Record a hello requested at `asked_at`: connections known before then belong to this log."""
        for connection in [key for key, seen_at in self._unknown.items() if seen_at < asked_at]:
            del self._unknown[connection]
            self._logs[connection] = log_id
        _drop_oldest(self._logs)

    def is_met_by(self, log_id: str, next_frame: int, as_of: float) -> bool:
        """Return whether a copy up to this frame, with every commit before `as_of`, meets the watermark."""
        if self._unplaced_at is not None and as_of <= self._unplaced_at:
            return False
        position, queried_at = self._position, self._queried_at
        if position is None or as_of > position.seen_at:
            return True
        if log_id != position.log_id or next_frame <= position.frame:
            return False
        return queried_at is None or as_of > queried_at or next_frame > position.frame + 1

    def needs_hello(self, log_id: str, as_of: float) -> bool:
        """Return whether only a hello, not further frames, can make such a copy meet the watermark."""
        if self._unplaced_at is not None and as_of <= self._unplaced_at:
            return True
        position, queried_at = self._position, self._queried_at
        if position is None or position.log_id != log_id:
            return position is not None
        return queried_at is not None and as_of <= queried_at


def _drop_oldest(connections: dict[int, Any]) -> None:
    while len(connections) > _MAX_CONNECTIONS:
        del connections[next(iter(connections))]
