"""The stage of reports: when bars begin, how reports read in short, and what may have ended in a bar."""

from __future__ import annotations

from typing import Any

from tests.support.messages.messaging import write
from tests.support.rhythm.grounds import BAR_MS, BEAT_MS, BEGIN_MS, ClockedReporter
from vox_mesh.model.rhythm.reports import BarReport


def start(bar: int) -> int:
    """When a bar begins."""
    return BEGIN_MS + bar * BAR_MS


def bars(reports: list[BarReport]) -> list[tuple[int, int, str]]:
    """For which bars reports stand, how many, and of which sort they are."""
    return [
        (
            (report.start_ms - BEGIN_MS) // BAR_MS,
            report.bars,
            "missing"
            if report.is_missing
            else "reported"
            if report.reporters or report.missing.count
            else "quiet",
        )
        for report in reports
    ]


async def every(player: ClockedReporter) -> list[BarReport]:
    """All reports in their last revision, the first bar first."""
    return (await player.bar_reporter.reports(1_000, fresh=True))[::-1]


def assert_tiled(reports: list[BarReport]) -> None:
    """Each report ends where the next begins: no bar is there twice, or not at all."""
    assert [report.end_ms for report in reports[:-1]] == [report.start_ms for report in reports[1:]]


async def phrase(player: ClockedReporter, name: str, at_ms: int, **changed: Any) -> None:
    """Have a phrase have ended."""
    columns = {
        "phrase_id": name,
        "agent_id": "p",
        "task_id": name,
        "attempt": 1,
        "outcome": "done",
        "beats": "{}",
        "waited": "{}",
        "overruns": 0,
        "first_useful_ms": at_ms - BEAT_MS,
        "resources": "{}",
        "bu": 3.0,
        "cost": 1.5,
        "window_ms": player.ground.timeline.window_at(at_ms).start_ms,
        "began_ms": at_ms - 3 * BEAT_MS,
        "ended_ms": at_ms,
        "node_id": "n",
        "hlc": "h",
        **changed,
    }
    places = ", ".join(f"?{place}" for place in range(3, 3 + len(columns)))
    sql = f"INSERT INTO phrase_ends (scope_id, repository_id, {', '.join(columns)}) VALUES (?1, ?2, {places})"
    await write(player.node, sql, *columns.values())


async def thread(player: ClockedReporter, name: str, state: str, ended_ms: int) -> None:
    """Have a thread of help have ended."""
    columns = "scope_id, repository_id, thread_id, asker, state, asked_ms, closes_ms, ended_ms"
    sql = f"INSERT INTO help_threads ({columns}) VALUES (?1, ?2, ?3, 'a', ?4, ?5, ?5, ?5)"
    await write(player.node, sql, name, state, ended_ms)
