"""The ledger of keys that were answered: how long each is remembered at the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from vox_mesh.store.write.request import NOTHING, Forgetting

_KEPT_SECONDS: Final = 60.0
_KEPT_KEYS: Final = 16_384
_CHUNK: Final = 256  # fewer are not worth two more statements in a request
_LEFT_BEHIND_S: Final = 86_400
_LOOK_BACK_SECONDS: Final = 3_600.0


class IdempotencyKeyPruner:
    """Says which keys the next request may forget.

    A key that was sent once and answered is forgotten a minute later, or when 16,384 newer ones were
    answered. A key that had to be sent again may still be on its way somewhere: it is left at the
    database for a day.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._answered: deque[tuple[float, str]] = deque()
        self._with_rows: set[str] = set()
        self._looked_back = monotonic() - _LOOK_BACK_SECONDS

    def answered(self, keys: Iterable[str], *, with_rows: Sequence[str] = ()) -> None:
        """These were sent once, and their answers have come; those of some had rows, which are kept too."""
        now = self._monotonic()
        self._answered.extend([(now, key) for key in keys])
        if with_rows:
            self._with_rows.update(with_rows)

    def due(self, *, may_look_back: bool) -> Forgetting:
        """What the next request may forget. `may_look_back`: no key of ours waits in a spool."""
        now = self._monotonic()
        count = self._due_count(now)
        looks_back = may_look_back and now - self._looked_back >= _LOOK_BACK_SECONDS
        if not count and not looks_back:
            return NOTHING
        keys = [key for _, key in islice(self._answered, count)]
        with_rows = [key for key in keys if key in self._with_rows]
        return Forgetting(keys, with_rows, _LEFT_BEHIND_S if looks_back else None)

    def _due_count(self, now: float) -> int:
        answered = self._answered
        surplus = len(answered) - _KEPT_KEYS
        if surplus >= _CHUNK:
            return min(surplus, 4 * _CHUNK)
        if len(answered) >= _CHUNK and answered[_CHUNK - 1][0] < now - _KEPT_SECONDS:
            return _CHUNK
        return 0

    def forgot(self, forgetting: Forgetting) -> None:
        """A request with these was applied."""
        for _ in forgetting.keys:
            self._answered.popleft()
        self._with_rows.difference_update(forgetting.with_rows)
        if forgetting.older_than_s is not None:
            self._looked_back = self._monotonic()
