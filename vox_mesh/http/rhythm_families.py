"""The metrics of the rhythm: beats, and what became of the last bar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from vox_mesh.http.measures import counter, counters, gauge, histogram
from vox_mesh.model.rhythm.frames import Source
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.rhythm.rhythm import Rhythm

MAX_SUBJECTS: Final = 50
"""So many budgets are told, those of which most is spent."""

ALARMS: Final = ("promise_miss_rate", "overrun_rate", "no_status_claims")

_LAST_BARS: Final = 3
"""So old may the last report be: nothing is written of bars in which nothing happens."""


class RhythmSeen(NamedTuple):
    """What had to be asked for."""

    report: BarReport | None
    spent: dict[str, float]
    """Of each budget that has a bound, which part is spent."""

    @classmethod
    async def of(cls, rhythm: Rhythm) -> RhythmSeen:
        """Ask for it."""
        reports = await rhythm.reverb.reports(1)
        now_ms = rhythm.times.now_ms
        recent = [
            each
            for each in reports
            if rhythm.timeline.bars_between(each.end_ms, max(now_ms, each.end_ms)) < _LAST_BARS
        ]
        spent = {
            subject: standing.bu / standing.budget.max_bu
            for subject, standing in (await rhythm.budgets.standings()).items()
            if standing.budget.max_bu
        }
        most = sorted(spent, key=lambda subject: (-spent[subject], subject))[:MAX_SUBJECTS]
        return cls(recent[0] if recent else None, {subject: spent[subject] for subject in most})


def rhythm_families(rhythm: Rhythm, seen: RhythmSeen | None) -> Iterator[Metric]:
    """All of them."""
    frame, tally = rhythm.frame(), rhythm.reverb.tally
    yield histogram(
        "vox_beat_lateness_seconds",
        "How long after they had begun beats were told on this node.",
        rhythm.pulse.lateness,
    )
    yield gauge("vox_tempo_bpm", "Beats in a minute.", frame.tempo_bpm)
    yield gauge("vox_beat_index", "The place of this beat in its bar, from 1.", frame.beat_index)
    yield gauge("vox_rhythm_leader", "Whether this node leads the rhythm.", rhythm.is_leader)
    yield gauge(
        "vox_rhythm_degraded",
        "Whether this node goes by the median, since policies differ and nobody leads.",
        frame.source == Source.MEDIAN,
    )
    yield counter(
        "vox_rhythm_windows_missing",
        "Bars that nobody could look at, as this node has reported.",
        tally.missing_bars,
    )
    yield gauge(
        "vox_status_claims_live", "Tasks whose status this node tells in each beat.", rhythm.status.live
    )
    yield counters(
        "vox_promises",
        "Promises of help by what came of them, as this node has reported.",
        "verdict",
        tally.promises,
    )
    yield counter("vox_overruns", "Phases overrun, as this node has reported.", tally.overruns)
    kpis = GaugeMetricFamily("vox_kpi", "The figures of the last bar.", labels=("name",))
    alarms = GaugeMetricFamily("vox_rhythm_alarm", "Alarms of the last bar.", labels=("name",))
    spent = GaugeMetricFamily(
        "vox_budget_spent_ratio", "Which part of each budget is spent.", labels=("subject",)
    )
    if seen is not None:
        for subject, part in seen.spent.items():
            spent.add_metric((subject,), part)
        report = seen.report
        for name, value in asdict(report.kpis).items() if report is not None else ():
            if value is not None:
                kpis.add_metric((name,), value)
        raised = {alarm.name for alarm in report.alarms} if report is not None else set()
        for name in ALARMS:
            alarms.add_metric((name,), name in raised)
    yield kpis
    yield alarms
    yield spent
