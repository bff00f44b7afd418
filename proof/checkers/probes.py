"""The circuit breaker: after the reset timeout, one probe decides whether the database is back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proof.history import History
from proof.verdicts import Check


def one_probe(history: History) -> Iterator[str | int]:
    """No other call was admitted during a probe."""
    for event in history.notes("probe"):
        yield 1
        if count := event.data["beside"]:
            yield f"{event.who} admitted {count} more calls during its probe at {event.at:.3f}"


PROBE_CHECKS: Final = (
    Check("one-probe", "while a circuit is half-open, one call goes through at a time", one_probe),
)
