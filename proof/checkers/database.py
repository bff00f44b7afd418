"""The database itself, when all is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proof.history import History
from proof.verdicts import Check


def integrity(history: History) -> Iterator[str | int]:
    """SQLite has looked through it; not every server lets itself be asked."""
    for event in history.notes("final.integrity"):
        if event.data["ok"] is not None:
            yield 1
            if not event.data["ok"]:
                yield f"the database is damaged: {'; '.join(event.data['said'])}"


def replica_equal(history: History) -> Iterator[str | int]:
    """The stage has compared each replica with the database."""
    for event in history.notes("final.replica"):
        yield 1
        if not event.data["equal"]:
            yield f"a replica differs from the database: {event.data}"
        if not event.data.get("intact", True):
            yield f"a replica is damaged: {event.data}"


DATABASE_CHECKS: Final = (
    Check("integrity", "the database is whole", integrity),
    Check("replica-equal", "a replica holds what the database holds", replica_equal),
)
