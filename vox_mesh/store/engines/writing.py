"""Write to a database file, in the event loop's thread if that is fast, otherwise in another thread."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Final

from vox_mesh.store.batch import Batch, BatchResult, StepError
from vox_mesh.store.engines import sqlite

_FAST_S: Final = 0.001
_TRIAL: Final = 32
_MAX_KNOWN: Final = 1_024
_MAX_FAST_BYTES: Final = 16_384  # of values: one statement can insert any number of rows from a JSON array
_BUSY_TIMEOUT_MS: Final = 5_000
_CHECKPOINT_PAGES: Final = 1_000


class WritePace:
    """Tells from earlier writes whether the next one will be fast, wherever they ran."""

    def __init__(self) -> None:
        self._fast_in_row = 0
        self._fast_statements: set[str] = set()  # the ones whose last batch was fast

    def is_fast(self, batch: Batch) -> bool:
        """Return whether to run a batch in the loop's thread. Now and then one is left to the other thread.

        That one checkpoints the write-ahead log, which takes longer than a write.
        """
        if self._fast_in_row < _TRIAL or self._fast_in_row % _TRIAL == 0:
            return False
        if batch.scripts > 1:  # while the other thread writes for several callers, others go on
            return False
        if not self._fast_statements.issuperset([step.sql for step in batch.steps]):
            return False
        return _value_bytes(batch) <= _MAX_FAST_BYTES

    def note(self, batch: Batch, seconds: float) -> None:
        """Record how long a batch took."""
        statements = [step.sql for step in batch.steps]
        if seconds > _FAST_S:
            self._fast_in_row = 0
            self._fast_statements.difference_update(statements)
            return
        self._fast_in_row += 1
        if len(self._fast_statements) >= _MAX_KNOWN:
            self._fast_statements.clear()
        self._fast_statements.update(statements)


def _value_bytes(batch: Batch) -> int:
    """Return about how many bytes of values a batch has, without its numbers."""
    return sum(len(value) for step in batch.steps for value in step.params if isinstance(value, str | bytes))


class WritingConnection:
    """The connection that writes to the file, used by one thread at a time.

    In the loop's thread it neither waits for a lock nor checkpoints: only the disk can hold it up.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._is_for_loop = False
        self.pace = WritePace()

    def for_thread(self) -> sqlite3.Connection:
        """Return the connection, set up for the writing thread."""
        if self._is_for_loop:
            self._set_up(_BUSY_TIMEOUT_MS, _CHECKPOINT_PAGES)
            self._is_for_loop = False
        return self._connection

    def walk(self, batch: Batch, before_last: Callable[[], None] | None = None) -> BatchResult:
        """Run a batch in the writing thread, in this process's turn."""
        began = time.perf_counter()
        result = sqlite.walk(self.for_thread(), batch, before_last)
        self.pace.note(batch, time.perf_counter() - began)
        return result

    def walk_in_loop(self, batch: Batch) -> BatchResult | None:
        """Run a batch in the loop's thread; `None` if another program has locked the file."""
        if not self._is_for_loop:
            self._set_up(0, 0)
            self._is_for_loop = True
        began = time.perf_counter()
        result = sqlite.walk(self._connection, batch)
        self.pace.note(batch, time.perf_counter() - began)
        first = result.steps[0]
        return None if isinstance(first, StepError) and first.is_busy else result

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _set_up(self, busy_timeout_ms: int, checkpoint_pages: int) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint_pages}")
