"""The lines above the panels: where the data lives, how fast it changes, and how we stand with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.model.rhythm.plan import TempoSource
from vox_mesh.top.panels import span, text_of
from vox_mesh.views.overview import DatabaseLine, Overview, RhythmLine

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


def rhythm_words(rhythm: RhythmLine) -> Words:
    """The beat, who leads, and how the last bar went of which there is anything to tell."""
    beat, report = rhythm.beat, rhythm.report
    words = [
        (f"beat {beat.beat_index}/{beat.bar_len_beats} {text_of(beat.phase)}", "bold"),
        (f"  {beat.tempo_bpm:g} bpm", "yellow" if beat.source == TempoSource.MEDIAN else ""),
        (f"  leader {text_of(beat.leader or '-')}", ""),
    ]
    if report is not None:
        told = [f"{name} {value:.2g}" for name, value in asdict(report.kpis).items() if value is not None]
        words += [(f"  last bar: {', '.join(told) or 'quiet'}", "")]
        words += [(f"  {alarm.name}", "bold red") for alarm in report.alarms]
    return words


def headlines(overview: Overview) -> list[str]:
    """The same as plain text."""
    all_words = (
        database_words(overview.database),
        replica_words(overview),
        rhythm_words(overview.rhythm),
    )
    lines = ["".join(text for text, _ in words) for words in all_words]
    return [line for line in lines if line]
