"""The write-ahead log of the file home: how long it is, and whether a reader keeps it from being emptied."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 2**20
"""A log that is longer, and can't be checkpointed to its end, is pinned by a reader."""

_FRAME_HEADER_BYTES: Final = 24
_LOOK_S: Final = 10.0
_WARN_S: Final = 600.0
_CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"
_PAGE_SIZE: Final = "PRAGMA page_size"


class WalStatus(NamedTuple):
    """How the write-ahead log stands."""

    bytes: int
    """What it takes on disk."""

    held_bytes: int
    """How much of it the last checkpoint had to leave."""

    max_bytes: int = MAX_BYTES

    @property
    def is_pinned(self) -> bool:
        """Whether a reader keeps it from being emptied, and it grows."""
        return self.held_bytes > 0 and self.bytes > self.max_bytes


class WalWatch:
    """Looks at the log now and then, and warns of one that is pinned."""

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_BYTES, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._monotonic = monotonic
        self._looked_at = self._warned_at = -float("inf")
        self._held_bytes = 0

    @property
    def status(self) -> WalStatus:
        """How long it is now, and how much of it was held when it was last looked at."""
        try:
            size = self._path.stat().st_size
        except OSError:
            size = 0
        return WalStatus(size, self._held_bytes, self._max_bytes)

    def look_now_and_then(self, connection: sqlite3.Connection) -> None:
        """After a write: look, unless that was done just now."""
        now = self._monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        if self.status.bytes <= self._max_bytes:
            self._held_bytes = 0
            return
        status = self.look(connection)
        if status.is_pinned and now - self._warned_at >= _WARN_S:
            self._warned_at = now
            _log.warning(
                "write-ahead log pinned by a reader: bytes=%d held_bytes=%d path=%s; "
                "end the program that keeps a read transaction open",
                *(status.bytes, status.held_bytes, self._path),
            )

    def look(self, connection: sqlite3.Connection) -> WalStatus:
        """Checkpoint as far as readers allow, and return what that left."""
        try:
            _, frames, checkpointed = connection.execute(_CHECKPOINT).fetchone()
            (page_bytes,) = connection.execute(_PAGE_SIZE).fetchone()
        except sqlite3.Error:  # busy: the next look tells
            return self.status
        self._held_bytes = max(0, frames - checkpointed) * (page_bytes + _FRAME_HEADER_BYTES)
        return self.status
