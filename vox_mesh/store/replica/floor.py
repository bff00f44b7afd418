"""The floor: what this process has seen of the primary, below which no read may fall.

An answer of the primary names the last frame it saw. A frame number means something only in its log, and
answers do not name that; but all answers over one connection come from one log. So a connection is placed in
a log by a hello that was said after its first answer, and then each of its answers has a position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_KEPT: Final = 16


class Position(NamedTuple):
    """A place in a log, and when it was seen."""

    log_id: str
    frame: int
    seen_at: float


class ReadWatermark:
    """Rises with every answer of the primary, to a write or to a read."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._position: Position | None = None
        self._unplaced_at: float | None = None
        self._logs: dict[int, str] = {}
        self._unknown: dict[int, float] = {}
        self.latest: tuple[int | None, int] = (None, 0)

    def note(self, frame: int | None, connection: int) -> None:
        """The primary has answered: as of `frame`, over this connection (0: one that is not kept)."""
        now = self.monotonic()
        self.latest = frame, connection
        log_id = self._logs.get(connection)
        if frame is None or log_id is None:
            self._unplaced_at = now
            if connection:
                self._unknown.setdefault(connection, now)
                _forget_oldest(self._unknown)
        elif self._position is None or self._position.log_id != log_id:
            if self._position is not None:
                self._unplaced_at = now  # what was seen in the other log is not forgotten: a hello covers it
            self._position = Position(log_id, frame, now)
        else:
            # The higher frame may be a dead server's, met by a hello since; this answer is seen only now.
            self._position = Position(log_id, max(frame, self._position.frame), now)

    @property
    def highest(self) -> tuple[str, int] | None:
        """The log that was last seen, and its highest frame that was; `None`: no answer had a place yet."""
        return None if self._position is None else self._position[:2]

    def place(self, log_id: str, asked_at: float) -> None:
        """The primary said hello to a question of that moment: connections known before then are its own."""
        for connection in [key for key, seen_at in self._unknown.items() if seen_at < asked_at]:
            del self._unknown[connection]
            self._logs[connection] = log_id
        _forget_oldest(self._logs)

    def is_met_by(self, log_id: str, next_frame: int, as_of: float) -> bool:
        """Whether a copy that has come to this frame, and holds every commit before `as_of`, will do."""
        if self._unplaced_at is not None and as_of <= self._unplaced_at:
            return False
        position = self._position
        return (
            position is None
            or as_of > position.seen_at
            or (log_id == position.log_id and next_frame > position.frame)
        )

    def needs_hello(self, log_id: str, as_of: float) -> bool:
        """Whether such a copy can only meet the floor by a hello: it is not a matter of frames."""
        if self._unplaced_at is not None and as_of <= self._unplaced_at:
            return True
        return self._position is not None and self._position.log_id != log_id


def _forget_oldest(connections: dict[int, Any]) -> None:
    while len(connections) > _KEPT:
        del connections[next(iter(connections))]
