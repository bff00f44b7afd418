"""The metrics of the rhythm: beats, and the last bar's report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from vox_mesh.http.metrics.instruments import counter, counters, gauge, histogram
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.plan import TempoSource
from vox_mesh.model.rhythm.reports import BarReport, parse_report
from vox_mesh.nodes.census import Census
from vox_mesh.rhythm.rhythm import Rhythm

MAX_SUBJECTS: Final = 50
"""The maximum number of budgets exported, most spent first."""

ALARMS: Final = ("promise_miss_rate", "overrun_rate", "no_status_claims")

_MAX_AGE_BARS: Final = 3
"""The maximum age of the last report in bars: quiet bars are not reported."""


def collect_rhythm(rhythm: Rhythm, census: Census | None) -> Iterator[Metric]:
    """Yield the metrics of the rhythm."""
    frame, tally = rhythm.frame(), rhythm.bar_reporter.totals
    yield histogram(
        "vox_beat_lateness_seconds",
        "Delay of beats on this node.",
        rhythm.pulse.lateness,
    )
    yield gauge("vox_tempo_bpm", "Beats per minute.", frame.tempo_bpm)
    yield gauge("vox_beat_index", "Index of the current beat in its bar, from 1.", frame.beat_index)
    yield gauge("vox_rhythm_leader", "1 if this node leads the rhythm.", rhythm.is_leader)
    yield gauge(
        "vox_rhythm_degraded",
        "1 if this node follows the median, as policies differ and there is no leader.",
        frame.source == TempoSource.MEDIAN,
    )
    yield counter(
        "vox_rhythm_windows_missing",
        "Bars that no node could observe, as reported by this node.",
        tally.missing_bars,
    )
    yield gauge(
        "vox_status_claims_live", "Tasks whose status this node claims in each beat.", rhythm.status.live
    )
    yield counter("vox_status_claims", "Status claims written by this node.", rhythm.status.written)
    yield histogram(
        "vox_bar_report_latency_seconds",
        "Time from the end of a bar to its report by this node.",
        rhythm.bar_reporter.latency,
    )
    yield counters(
        "vox_promises",
        "Promises of help by verdict, as reported by this node.",
        "verdict",
        tally.promises,
    )
    yield counter("vox_overruns", "Phase overruns, as reported by this node.", tally.overruns)
    kpis = GaugeMetricFamily("vox_kpi", "KPIs of the last bar.", labels=("name",))
    alarms = GaugeMetricFamily("vox_rhythm_alarm", "Alarms of the last bar.", labels=("name",))
    report = None if census is None else _last_bar(rhythm, census)
    yield from _bar_gauges(report)
    spent = GaugeMetricFamily("vox_budget_spent_ratio", "Spent part of each budget.", labels=("subject",))
    if census is not None:
        for subject, part in census.budgets.items():
            spent.add_metric((subject,), part)
        for name, value in asdict(report.kpis).items() if report is not None else ():
            if value is not None:
                kpis.add_metric((name,), value)
        raised = {alarm.name for alarm in report.alarms} if report is not None else set()
        for name in ALARMS:
            alarms.add_metric((name,), name in raised)
    yield kpis
    yield alarms
    yield spent


def _bar_gauges(report: BarReport | None) -> Iterator[Metric]:
    """Yield the counts of the last bar; without a report, empty families."""
    tasks = GaugeMetricFamily(
        "vox_bar_tasks", "Tasks of the last bar by their last state.", labels=("state",)
    )
    claims = GaugeMetricFamily("vox_bar_claims", "Status claims in the last bar.", labels=("state",))
    queue = GaugeMetricFamily("vox_bar_queue_depth", "Jobs that waited at the end of the last bar.")
    busy = GaugeMetricFamily(
        "vox_bar_utilisation_ratio", "Busy share at the end of the last bar.", labels=("resource",)
    )
    if report is not None:
        for family, counts in ((tasks, report.tasks), (claims, report.beats)):
            for state in ClaimState:
                family.add_metric((state,), counts.get(state, 0))
        standing = report.standing
        if standing.queue_depth is not None:
            queue.add_metric((), standing.queue_depth)
        for resource, share in (
            ("capacity", standing.utilisation),
            ("cpu", standing.cpu_utilisation),
            ("gpu", standing.gpu_utilisation),
        ):
            if share is not None:
                busy.add_metric((resource,), share)
    yield from (tasks, claims, queue, busy)


def _last_bar(rhythm: Rhythm, census: Census) -> BarReport | None:
    """Return the report on the last bar, unless it is too old."""
    report, now_ms = parse_report(census.last_report), rhythm.times.now_ms
    if report is None:
        return None
    bars = rhythm.timeline.bars_between(report.end_ms, max(now_ms, report.end_ms))
    return report if bars < _MAX_AGE_BARS else None
