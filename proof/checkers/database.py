"""The state of the database and its replicas at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proof.history import History
from proof.verdicts import Check

_SPOILS_REPLICAS: Final = frozenset(
    (
        *("torn-replica", "disk-full", "server-kill", "server-restart", "server-pause", "server-stall"),
        *("store-back", "commits-lost"),
    )
)
"""Faults after which a replica may have to start over, though the log has the same id."""


def integrity(history: History) -> Iterator[str | int]:
    """SQLite's integrity check passes; not every server supports it."""
    for event in history.notes("final.integrity"):
        if event.data["ok"] is not None:
            yield 1
            if not event.data["ok"]:
                yield f"the database is damaged: {'; '.join(event.data['said'])}"


def replica_equal(history: History) -> Iterator[str | int]:
    """Each replica equals the database."""
    for event in history.notes("final.replica"):
        yield 1
        if not event.data["equal"]:
            yield f"a replica differs from the database: {event.data}"
        if not event.data.get("intact", True):
            yield f"a replica is damaged: {event.data}"


def replica_keeps(history: History) -> Iterator[str | int]:
    """No replica dropped its copy when only a compaction of the server's log had happened.

    Examined are the compactions that replicas went through.
    """
    yield sum(event.data["count"] for event in history.notes("final.compactions"))
    excuses = [event for event in history.notes("fault.began") if event.data["kind"] in _SPOILS_REPLICAS]
    for event in history.notes("replica.started_over"):
        is_excused = any(each.at < event.at and each.data["player"] in ("", event.who) for each in excuses)
        if event.data["is_same_log"] and event.data["held"] > 1 and not is_excused:
            yield f"the replica of {event.who} started over at {event.at:.3f}: {event.data}"


DATABASE_CHECKS: Final = (
    Check("integrity", "the database passes SQLite's integrity check", integrity),
    Check("replica-equal", "a replica holds what the database holds", replica_equal),
    Check(
        "replica-keeps", "a replica does not start over because the server compacts its log", replica_keeps
    ),
)
