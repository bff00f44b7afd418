"""Clocks that only a test moves."""

from __future__ import annotations


class Clock:
    """A monotonic clock in seconds."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
