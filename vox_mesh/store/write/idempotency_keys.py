"""Decide how long the database keeps idempotency keys, and prune them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from vox_mesh.store.write.script_batch import NOTHING_TO_PRUNE, Pruning

_RETENTION_S: Final = 60.0
_MAX_KEYS: Final = 16_384
_CHUNK: Final = 256  # fewer are not worth two more statements in a batch
_UNANSWERED_RETENTION_S: Final = 86_400
_FULL_PRUNE_INTERVAL_S: Final = 3_600.0


class IdempotencyKeyPruner:
    """Chooses the keys that the next batch may prune.

    A key that was sent once and answered is pruned a minute later, or after 16,384 newer keys. A copy of a
    retried key may still arrive: the database keeps it for a day.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._answered: deque[tuple[float, str]] = deque()
        self._with_rows: set[str] = set()
        self._fully_pruned_at = monotonic() - _FULL_PRUNE_INTERVAL_S

    def note_answered(self, keys: Iterable[str], *, with_rows: Sequence[str] = ()) -> None:
        """Record keys that were sent once and answered; the answers `with_rows` are stored too."""
        now = self._monotonic()
        self._answered.extend([(now, key) for key in keys])
        if with_rows:
            self._with_rows.update(with_rows)

    def due(self, *, may_prune_all: bool) -> Pruning:
        """Return what the next batch may prune. `may_prune_all`: no key of this writer is in a spool."""
        now = self._monotonic()
        count = self._due_count(now)
        is_full = may_prune_all and now - self._fully_pruned_at >= _FULL_PRUNE_INTERVAL_S
        if not count and not is_full:
            return NOTHING_TO_PRUNE
        keys = [key for _, key in islice(self._answered, count)]
        with_rows = [key for key in keys if key in self._with_rows]
        return Pruning(keys, with_rows, _UNANSWERED_RETENTION_S if is_full else None)

    def _due_count(self, now: float) -> int:
        answered = self._answered
        surplus = len(answered) - _MAX_KEYS
        if surplus >= _CHUNK:
            return min(surplus, 4 * _CHUNK)
        if len(answered) >= _CHUNK and answered[_CHUNK - 1][0] < now - _RETENTION_S:
            return _CHUNK
        return 0

    def note_pruned(self, pruning: Pruning) -> None:
        """Record that a batch with this pruning was applied."""
        for _ in pruning.keys:
            self._answered.popleft()
        self._with_rows.difference_update(pruning.with_rows)
        if pruning.older_than_s is not None:
            self._fully_pruned_at = self._monotonic()
