"""Track the read watermark: the log position that this process has seen, below which no read may fall.

An answer of the primary names the last frame that it reflects. A frame number has a meaning only within its
log, which answers do not name; but all answers over one connection belong to one log. So a hello after a
connection's first answer assigns the connection to a log; from then on each of its answers has a position.

A server shows a commit to other requests a moment before it counts the commit's frames. So the answer to a
request that has committed nothing may show one commit more than it says.
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


class _Uncounted(NamedTuple):
    """A frame after which an answer may show one more commit, and the time at which it was seen."""

    frame: int
    seen_at: float


class ReadWatermark:
    """The lowest position that a read may show. It rises with every answer of the primary."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._position: Position | None = None
        self._uncounted: _Uncounted | None = None  # in the log of the position
        self._unplaced_at: float | None = None
        self._logs: dict[int, str] = {}
        self._unknown: dict[int, float] = {}
        self.latest: tuple[int | None, int] = (None, 0)

    def note(self, frame: int | None, connection: int, has_committed: bool) -> None:
        """Record an answer of the primary, as of `frame`, over this connection (0: not kept open).

        `has_committed`: the request itself has changed something.
        """
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
            self._position, self._uncounted = Position(log_id, frame, now), None
        else:
            # The higher frame may be from a lost server, covered by a hello since; this answer is new.
            self._position = Position(log_id, max(frame, known.frame), now)
        if not has_committed and frame == self._position.frame:  # after a lower one, the next is counted
            self._uncounted = _Uncounted(frame, now)

    @property
    def highest(self) -> tuple[str, int] | None:
        """Return the log last seen and its highest frame seen; `None` if no answer had a position yet."""
        return None if self._position is None else self._position[:2]

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
        position, uncounted = self._position, self._uncounted
        if position is None or as_of > position.seen_at:
            return True
        if log_id != position.log_id or next_frame <= position.frame:
            return False
        return uncounted is None or as_of > uncounted.seen_at or next_frame > uncounted.frame + 1

    def needs_hello(self, log_id: str, as_of: float) -> bool:
        """Return whether only a hello, not further frames, can make such a copy meet the watermark."""
        if self._unplaced_at is not None and as_of <= self._unplaced_at:
            return True
        position, uncounted = self._position, self._uncounted
        if position is None or position.log_id != log_id:
            return position is not None
        return uncounted is not None and uncounted.frame == position.frame and as_of <= uncounted.seen_at


def _drop_oldest(connections: dict[int, Any]) -> None:
    while len(connections) > _MAX_CONNECTIONS:
        del connections[next(iter(connections))]
