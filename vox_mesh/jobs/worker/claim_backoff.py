"""Claim backoff: how long a worker waits after failed claims, so that workers do not collide again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MAX_DOUBLINGS: Final = 16


class ClaimBackoff:
    """Delays that double with each failure in a row, up to a maximum, with jitter."""

    def __init__(self, base_s: float, max_s: float, chance: Callable[[], float]) -> None:
        """`chance` returns numbers from 0 to 1."""
        self._base_s = base_s
        self._max_s = max_s
        self._chance = chance
        self._failures = 0

    def next_delay(self) -> float:
        """Count a failure, and return the seconds to wait: from one half of the full delay to all of it."""
        full_s = min(self._max_s, self._base_s * (1 << min(self._failures, _MAX_DOUBLINGS)))
        self._failures += 1
        return full_s * (0.5 + 0.5 * self._chance())

    def reset(self) -> None:
        """Begin again with the shortest delay, after a success."""
        self._failures = 0
