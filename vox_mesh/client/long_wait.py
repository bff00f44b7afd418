"""A long wait, in steps that a node lets one request wait."""

from __future__ import annotations

import time
from typing import Final

MAX_WAIT_S: Final = 60.0
"""The longest time that a node lets one request wait."""


class LongWait:
    """The time until the end of a wait; `None` has no end."""

    def __init__(self, total_s: float | None) -> None:
        self._deadline = None if total_s is None else time.monotonic() + total_s
        self.is_last = False
        """Whether the wait is over after the current step."""

    def next_step(self) -> float:
        """Return the seconds of the next step."""
        left = MAX_WAIT_S if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        self.is_last = self._deadline is not None and left <= MAX_WAIT_S
        return min(left, MAX_WAIT_S)
