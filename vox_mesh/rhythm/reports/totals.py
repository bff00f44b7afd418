"""What the reports made here have told, added up: each thing once, however often one was amended."""

from __future__ import annotations

from vox_mesh.model.rhythm.reports import PROMISES, BarReport


class Tally:
    """Counts from when the process began. What all nodes have counted is what happened in the mesh."""

    def __init__(self) -> None:
        self.missing_bars = 0
        self.overruns = 0
        self.promises = dict.fromkeys(PROMISES, 0)

    def add(self, report: BarReport, before: BarReport | None) -> None:
        """Count what a report tells that the one before it on the same bars did not, if there was one."""
        if before is None and report.is_missing:
            self.missing_bars += report.bars
        self.overruns += max(0, report.overruns - (before.overruns if before else 0))
        for name in PROMISES:
            known = before.promises.get(name, 0) if before else 0
            self.promises[name] += max(0, report.promises.get(name, 0) - known)
