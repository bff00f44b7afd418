"""The lines above the panels: where the data lives, how fast it changes, and how we stand with it."""

from __future__ import annotations

from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.top.panels import span, text_of
from vox_mesh.views.overview import DatabaseLine, Overview

Words = list[tuple[str, str]]
"""Text, each with its style."""

_CIRCUITS: Final = {"open": "red", "half-open": "yellow"}
_SLOW_MS: Final = 2_000


def database_words(database: DatabaseLine) -> Words:
    """Where the data lives, and how we stand with it."""
    return [
        (database.home, "bold"),
        (f"  answers in {database.answered_ms:.1f} ms", "green"),
        *_circuit_words(database.circuit),
        (f"  {text_of(database.address)}", ""),
    ]


def _circuit_words(circuit: str) -> Words:
    return [] if circuit == "off" else [(f"  circuit {circuit}", _CIRCUITS.get(circuit, ""))]


def fault_words(fault: MeshError, seconds: float, circuit: str) -> Words:
    """That nothing new can be seen, for how long, and why."""
    what = "the database is away for" if isinstance(fault, DatabaseUnavailable) else "nothing new for"
    return [
        (f"{what} {span(seconds * 1_000)}", "bold red"),
        *_circuit_words(circuit),
        (f"  {text_of(fault.line)}", "red"),
    ]


def replica_words(overview: Overview) -> Words:
    """How many replicas there are, and how far the slowest is behind."""
    lags = overview.replica_lags_ms
    if not lags:
        return []
    slowest = max(lags)
    told = f"{len(lags)} replica{'' if len(lags) == 1 else 's'}, lag {span(slowest)}"
    return [(told, "yellow" if slowest > _SLOW_MS else "")]


def headlines(overview: Overview) -> list[str]:
    """The same as plain text."""
    lines = ["".join(text for text, _ in database_words(overview.database))]
    lines += ["".join(text for text, _ in replica_words(overview))]
    return [line for line in lines if line]
