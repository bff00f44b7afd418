"""Keep the positions of the primary that a copy is still to reach."""

from __future__ import annotations

from collections import deque
from typing import Final

from vox_mesh.store.replica.answering import NEVER

_WRITE_INTERVAL_S: Final = 0.5
_MAX_PENDING: Final = 64


class PendingHellos:
    """Hellos whose position a copy has not reached: when each was sent, and the next frame it reported."""

    def __init__(self) -> None:
        self._pending: deque[tuple[float, int]] = deque()
        self._wrote_at = NEVER  # when the last write that counts as a hello was sent
        self._write_position: tuple[str, int] | None = None  # and the position that its answer reported

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def oldest_at(self) -> float:
        """Return when the oldest was sent; never, if there is none."""
        return self._pending[0][0] if self._pending else -NEVER

    def add(self, asked_at: float, next_frame: int) -> None:
        """Add a hello, unless there are too many."""
        if len(self._pending) < _MAX_PENDING:
            self._pending.append((asked_at, next_frame))

    def add_write(self, asked_at: float, answered: tuple[str, int] | None, held: tuple[str, int]) -> bool:
        """Use the answer to a write as a hello, if it reports a position in the copy's own log.

        Return whether it was used.

        `held` is the copy's log and its next frame, `answered` the position of that answer, if it is known.
        """
        if answered is None or asked_at < self._wrote_at + _WRITE_INTERVAL_S:
            return False
        (log_id, frame), (own_log_id, next_frame) = answered, held
        # A frame that never arrived may be lost with its server: do not wait for it again.
        is_new = answered != self._write_position or frame < next_frame
        is_used = log_id == own_log_id and is_new and len(self._pending) < _MAX_PENDING
        if is_used:
            self._wrote_at, self._write_position = asked_at, answered
            self._pending.append((asked_at, frame + 1))
        return is_used

    def settle(self, next_frame: int) -> float:
        """Drop the hellos that a copy up to this frame has reached. Return when the newest was sent."""
        newest = NEVER
        while self._pending and self._pending[0][1] <= next_frame:
            newest = max(newest, self._pending.popleft()[0])
        return newest

    def clear(self) -> None:
        """Drop all."""
        self._pending.clear()
