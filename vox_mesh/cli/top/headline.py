"""The lines above the panels, and the whole view as plain text."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import Final

from vox_mesh.cli.support.output import table
from vox_mesh.cli.top.panels import PANELS, span, text_of
from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.model.rhythm.plan import TempoSource
from vox_mesh.views.overview import DatabaseLine, Overview, RhythmLine

BARS: Final = "▁▂▃▄▅▆▇█"
_RATE_WINDOW_MS: Final = 5_000
_RATE_SECONDS: Final = 60


class Rate:
    """The ops per second: recently, and second by second."""

    def __init__(self) -> None:
        self._samples = deque[tuple[int, int]]()
        self._counts = deque[int](maxlen=_RATE_SECONDS)
        self._second: tuple[int, int] | None = None

    def add(self, now_ms: int, last_id: int) -> None:
        """Add a sample: the last id of the log at this time, by the database's clock."""
        self._samples.append((now_ms, last_id))
        while len(self._samples) > 2 and now_ms - self._samples[1][0] >= _RATE_WINDOW_MS:
            self._samples.popleft()
        second = now_ms // 1_000
        if self._second is None:
            self._second = second, last_id
        elif second > self._second[0]:
            passed, grown = second - self._second[0], max(0, last_id - self._second[1])
            # Samples may be far apart: spread the growth evenly.
            share, rest = divmod(grown, passed)
            for n in range(min(passed, _RATE_SECONDS)):
                self._counts.append(share + (n < rest))
            self._second = second, last_id

    @property
    def per_second(self) -> float:
        """The ops per second in the last seconds."""
        if len(self._samples) < 2:
            return 0.0
        (began_ms, first), (now_ms, last) = self._samples[0], self._samples[-1]
        return max(0, last - first) * 1_000 / max(1, now_ms - began_ms)

    def bars(self, width: int) -> str:
        """Draw a bar for each of the last seconds, scaled to the highest."""
        counts = list(self._counts)[-width:]
        top = max([1, *counts])
        return "".join(BARS[(count * (len(BARS) - 1) + top - 1) // top] for count in counts)


Words = list[tuple[str, str]]
"""Pieces of text, each with its style."""

_CIRCUITS: Final = {"open": "red", "half-open": "yellow"}
_SLOW_MS: Final = 2_000


def database_words(database: DatabaseLine) -> Words:
    """Return the backend, its latency, its circuit breaker and its address."""
    return [
        (database.home, "bold"),
        (f"  answers in {database.answered_ms:.1f} ms", "green"),
        *_circuit_words(database.circuit),
        (f"  {text_of(database.address)}", ""),
    ]


def _circuit_words(circuit: str) -> Words:
    return [] if circuit == "off" else [(f"  circuit {circuit}", _CIRCUITS.get(circuit, ""))]


def fault_words(fault: MeshError, seconds: float, circuit: str) -> Words:
    """Return for how long there was no update, and why."""
    what = "database away for" if isinstance(fault, DatabaseUnavailable) else "no update for"
    return [
        (f"{what} {span(seconds * 1_000)}", "bold red"),
        *_circuit_words(circuit),
        (f"  {text_of(fault.line)}", "red"),
    ]


def replica_words(overview: Overview) -> Words:
    """Return the number of replicas, and the lag of the slowest."""
    lags = overview.replica_lags_ms
    if not lags:
        return []
    slowest = max(lags)
    text = f"{len(lags)} replica{'' if len(lags) == 1 else 's'}, lag {span(slowest)}"
    return [(text, "yellow" if slowest > _SLOW_MS else "")]


def approval_words(overview: Overview, where: str) -> Words:
    """Return how many approvals wait for a decision, and where to decide on them."""
    count = overview.open_approvals
    if not count:
        return []
    what = "1 approval waits" if count == 1 else f"{count} approvals wait"
    return [(f"{what}: {where}", "bold yellow")]


def rhythm_words(rhythm: RhythmLine) -> Words:
    """Return the beat, the leader, the declared incident, and the last bar report."""
    beat, report = rhythm.beat, rhythm.report
    words = [
        (f"beat {beat.beat_index}/{beat.bar_len_beats} {text_of(beat.phase)}", "bold"),
        (f"  {beat.tempo_bpm:g} bpm", "yellow" if beat.source == TempoSource.MEDIAN else ""),
        (f"  leader {text_of(beat.leader or '-')}", ""),
    ]
    if rhythm.incident is not None:
        words.append((f"  incident: {text_of(rhythm.incident.reason or 'declared')}", "bold red"))
    if report is not None:
        kpis = [f"{name} {value:.2g}" for name, value in asdict(report.kpis).items() if value is not None]
        words += [(f"  last bar: {', '.join(kpis) or 'quiet'}", "")]
        words += [(f"  {alarm.name}", "bold red") for alarm in report.alarms]
    return words


def headlines(overview: Overview) -> list[str]:
    """Return the header lines as plain text."""
    all_words = (
        database_words(overview.database),
        replica_words(overview),
        approval_words(overview, "vox-mesh approvals list"),
        rhythm_words(overview.rhythm),
    )
    lines = ["".join(text for text, _ in words) for words in all_words]
    return [line for line in lines if line]


def plain_lines(overview: Overview) -> list[str]:
    """Return the whole view as plain text, panel by panel."""
    lines = [*headlines(overview), f"last op {overview.last_op_id}"]
    for panel in PANELS:
        lines += ["", f"{panel.title.lower()}: {panel.summary(overview)}"]
        names = [column.name or "note" for column in panel.columns]
        rows = [
            dict(zip(names, (text for text, _ in line.cells), strict=True)) for line in panel.lines(overview)
        ]
        lines += [f"  {line}" for line in table(rows)] if rows else []
    return lines
