"""Who lived when, and how quick everything was, as the history tells it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from proof.history import History
from proof.scene import Pace

RECOVERY_S = 10.0
"""So long after a time to live at the latest, what was held up goes on."""


@dataclass(slots=True)
class Life:
    """One life of a player, in the times of the history."""

    player: str
    number: int
    node_id: str
    began: float
    up: float = math.inf
    """When its node was open; never, perhaps."""
    ended: float = math.inf
    how: str = ""

    def __str__(self) -> str:
        return f"{self.player}.{self.number}"


def lives_of(history: History) -> list[Life]:
    """All lives, in the order in which they began."""
    lives = {}
    for note in history.notes("life.began"):
        player, number = note.data["player"], note.data["life"]
        lives[player, number] = Life(player, number, note.data["node_id"], note.at)
    for note in history.notes("up"):
        if (note.who, note.life) in lives:
            lives[note.who, note.life].up = note.at
    for note in history.notes("life.ended"):
        life = lives[note.data["player"], note.data["life"]]
        life.ended, life.how = note.at, note.data["how"]
    return list(lives.values())


def pace_of(history: History, what: str = "pace") -> Pace | None:
    """How quick everything was, by the notes of one workload; `None` if there is no such note."""
    notes = history.notes(what)
    if not notes:
        return None
    return Pace(notes[0].data["tick_s"], notes[0].data["ttl_s"], notes[0].data["rest_s"])


def writes_of(history: History) -> dict[str, Sequence[tuple[float, float]]]:
    """When the small writes of each player began and ended that succeeded, in the order of their ends."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for deed in history.deeds("write"):
        if deed.is_ok:
            found[deed.who].append((deed.began, deed.ended))
    return {who: sorted(writes, key=lambda write: write[1]) for who, writes in found.items()}
