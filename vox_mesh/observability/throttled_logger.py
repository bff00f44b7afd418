"""Throttled logging, for lines that remote parties can trigger as often as they like."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

_MAX_LINES: Final = 10
_PERIOD_S: Final = 60.0


class ThrottledLogger:
    """Log each kind of line at most 10 times a minute, and then how many were suppressed.

    A kind is the text before its values are filled in, so their number is bounded by the program.
    """

    def __init__(self, log: logging.Logger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._monotonic = monotonic
        self._counts: dict[str, tuple[float, int]] = {}  # start of the period, count

    def __call__(self, level: int, text: str, *values: object) -> None:
        """Log the line, unless its kind was logged too often in this period."""
        now = self._monotonic()
        since, times = self._counts.get(text, (now, 0))
        suppressed = 0
        if now - since >= _PERIOD_S:
            since, times, suppressed = now, 0, max(0, times - _MAX_LINES)
        self._counts[text] = since, times + 1
        if times >= _MAX_LINES:
            return
        if suppressed:
            self._log.log(level, text + " (and %d more like it, before)", *values, suppressed)
        else:
            self._log.log(level, text, *values)
