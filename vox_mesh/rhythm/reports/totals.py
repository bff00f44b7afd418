"""Totals over the bar reports made by this process; amendments are not counted twice."""

from __future__ import annotations

from vox_mesh.model.rhythm.reports import PROMISES, BarReport


class ReportTotals:
    """Counters since the process started. The sum over all nodes is the mesh's total."""

    def __init__(self) -> None:
        self.missing_bars = 0
        self.overruns = 0
        self.promises = dict.fromkeys(PROMISES, 0)

    def add(self, report: BarReport, before: BarReport | None) -> None:
        """Count what a report adds to its previous revision, if any."""
        if before is None and report.is_missing:
            self.missing_bars += report.bars
        self.overruns += max(0, report.overruns - (before.overruns if before else 0))
        for name in PROMISES:
            counted = before.promises.get(name, 0) if before else 0
            self.promises[name] += max(0, report.promises.get(name, 0) - counted)
