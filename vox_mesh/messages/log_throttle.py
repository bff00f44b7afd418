"""Sparing words: what others can make us say as often as they like, we say a few times a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

_TIMES: Final = 10
_WHILE_S: Final = 60.0


class ThrottledLogger:
    """Logs each kind of line so many times a minute at most, and then how often it went unsaid.

    A kind is a text before its values are filled in: so there are never more than the program has.
    """

    def __init__(self, log: logging.Logger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._monotonic = monotonic
        self._said: dict[str, tuple[float, int]] = {}  # since when, how often

    def __call__(self, level: int, text: str, *values: object) -> None:
        """Log this, unless it was often said just now."""
        now = self._monotonic()
        since, times = self._said.get(text, (now, 0))
        unsaid = 0
        if now - since >= _WHILE_S:
            since, times, unsaid = now, 0, max(0, times - _TIMES)
        self._said[text] = since, times + 1
        if times >= _TIMES:
            return
        if unsaid:
            self._log.log(level, text + " (and %d more like it, before)", *values, unsaid)
        else:
            self._log.log(level, text, *values)
