"""The figures of a bar as rows: how they are read, and how a report is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.reports import BarReport, Figures
from vox_mesh.model.rhythm.tallies import delays_ms
from vox_mesh.store.rows import Row


def report_values(report: BarReport, figures: Figures | None) -> tuple[Any, ...]:
    """Return the values of a report in the order of the statement; one without data has no figures."""
    jobs, scored = (0, 0) if figures is None else (figures.counted_jobs, figures.counted_phrases)
    document = report.document()
    del document["tokens"]  # they are summed when it is read; earlier versions do not know the field
    return (
        report.start_ms,
        report.revision,
        report.window_id,
        report.end_ms,
        int(report.is_missing),
        sum(report.phrases.values()) - scored,
        sum(report.promises.values()),
        orjson.dumps(document).decode(),
        jobs,
    )


def parse_figures(row: Row) -> Figures:
    """Return the figures of a bar, as the database has summed them."""
    reporters, tasks, beats, overruns, firsts = orjson.loads(row["tasks"])
    phrases, phrase_overruns, cost, finished, more_firsts = orjson.loads(row["phrases"])
    scored, done, failed, done_beats, failed_beats, job_cost, delays, more_reporters = orjson.loads(
        row["jobs"]
    )
    return Figures(
        tasks=_without_zeros(_plus(tasks, done=scored)),
        beats=_without_zeros(_plus(beats, done=done_beats, failed=failed_beats)),
        reporters=reporters + more_reporters,
        late=tuple(orjson.loads(row["late"])),
        missing=tuple(orjson.loads(row["missing"])),
        deliverables=(tasks[ClaimState.DONE] or 0) + finished + done,
        overruns=_without_zeros(overruns),
        phrases=_without_zeros(_plus(phrases, done=scored)),
        phrase_overruns=phrase_overruns,
        cost=cost + job_cost,
        counted_jobs=done + failed,
        counted_phrases=scored,
        delays_ms=list(delays_ms(delays)),
        firsts=[(began_ms, useful_ms) for began_ms, useful_ms in (*firsts, *more_firsts)],
        promises=orjson.loads(row["promises"]),
    )


def _plus(counts: Mapping[str, int | None], **more: int) -> dict[str, int | None]:
    return {name: (count or 0) + more.get(name, 0) for name, count in counts.items()}


def _without_zeros(counts: dict[str, int | None]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
