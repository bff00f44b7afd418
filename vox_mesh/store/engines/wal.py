"""Monitor the file backend's write-ahead log: its size, and whether a reader pins it."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 2**20
"""A log that is larger, and can't be checkpointed to its end, is pinned by a reader."""

_FRAME_HEADER_BYTES: Final = 24
_CHECK_INTERVAL_S: Final = 10.0
_WARN_INTERVAL_S: Final = 600.0
_CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"
_PAGE_SIZE: Final = "PRAGMA page_size"


class WalStatus(NamedTuple):
    """The status of the write-ahead log."""

    bytes: int
    """Its size on disk."""

    held_bytes: int
    """The part that the last checkpoint could not process."""

    max_bytes: int = MAX_BYTES

    @property
    def is_pinned(self) -> bool:
        """Return whether a reader prevents it from being emptied, so that it grows."""
        return self.held_bytes > 0 and self.bytes > self.max_bytes


class WalWatch:
    """Checks the log periodically, and warns if it is pinned."""

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_BYTES, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._monotonic = monotonic
        self._checked_at = self._warned_at = -float("inf")
        self._held_bytes = 0

    @property
    def status(self) -> WalStatus:
        """Return its current size, and the part that was held at the last check."""
        try:
            size = self._path.stat().st_size
        except OSError:
            size = 0
        return WalStatus(size, self._held_bytes, self._max_bytes)

    def check_if_due(self, connection: sqlite3.Connection) -> None:
        """Check the log after a write, unless it was checked recently."""
        now = self._monotonic()
        if now - self._checked_at < _CHECK_INTERVAL_S:
            return
        self._checked_at = now
        if self.status.bytes <= self._max_bytes:
            self._held_bytes = 0
            return
        status = self.check(connection)
        if status.is_pinned and now - self._warned_at >= _WARN_INTERVAL_S:
            self._warned_at = now
            _log.warning(
                "write-ahead log pinned by a reader: bytes=%d held_bytes=%d path=%s; "
                "end the program that keeps a read transaction open",
                *(status.bytes, status.held_bytes, self._path),
            )

    def check(self, connection: sqlite3.Connection) -> WalStatus:
        """Checkpoint as far as readers allow, and return the status."""
        try:
            _, frames, checkpointed = connection.execute(_CHECKPOINT).fetchone()
            (page_bytes,) = connection.execute(_PAGE_SIZE).fetchone()
        except sqlite3.Error:  # busy: left to the next check
            return self.status
        self._held_bytes = max(0, frames - checkpointed) * (page_bytes + _FRAME_HEADER_BYTES)
        return self.status
