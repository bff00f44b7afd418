"""The incarnations of nodes and the pace of a run, from the history."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from proof.history import History
from proof.workload import Pace

RECOVERY_S = 10.0
"""Within a TTL and this time, delayed work continues."""


@dataclass(slots=True)
class Incarnation:
    """One incarnation of a node, in the times of the history."""

    node: str
    number: int
    node_id: str
    began: float
    up: float = math.inf
    """When its node was open; infinity, if never."""
    ended: float = math.inf
    how: str = ""

    def __str__(self) -> str:
        return f"{self.node}.{self.number}"


def incarnations_of(history: History) -> list[Incarnation]:
    """Return all incarnations, in the order of their starts."""
    incarnations = {}
    for note in history.notes("life.began"):
        node, number = note.data["player"], note.data["life"]
        incarnations[node, number] = Incarnation(node, number, note.data["node_id"], note.at)
    for note in history.notes("up"):
        if (note.who, note.incarnation) in incarnations:
            incarnations[note.who, note.incarnation].up = note.at
    for note in history.notes("life.ended"):
        incarnation = incarnations[note.data["player"], note.data["life"]]
        incarnation.ended, incarnation.how = note.at, note.data["how"]
    return list(incarnations.values())


def pace_of(history: History, what: str = "pace") -> Pace | None:
    """Return the pace, from the notes of one workload; `None` if there is no such note."""
    notes = history.notes(what)
    if not notes:
        return None
    return Pace(notes[0].data["tick_s"], notes[0].data["ttl_s"], notes[0].data["rest_s"])


def writes_of(history: History) -> dict[str, Sequence[tuple[float, float]]]:
    """Return when the successful small writes of each node began and ended, in the order of their ends."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for operation in history.operations("write"):
        if operation.is_ok:
            found[operation.who].append((operation.began, operation.ended))
    return {who: sorted(writes, key=lambda write: write[1]) for who, writes in found.items()}
