"""`vox-mesh rhythm report`: what became of the last bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from vox_mesh.cli.support.output import Record, json_option, printable, show_lines, show_several, table
from vox_mesh.cli.support.session import run_beside
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.reports import BarReport

_LAST: Final = 8
_MOST: Final = 10_000


@click.command()
@click.option(
    "--last",
    type=click.IntRange(min=1, max=_MOST),
    metavar="N",
    default=_LAST,
    show_default=True,
    help="How many, the newest first.",
)
@json_option
def report(last: int, as_json: bool) -> None:
    """Show what became of the last bars: tasks by state, overruns, promises, figures and alarms.

    A bar that nobody could look at is there too, as missing. A revision above 1 has taken in what came late.

    \b
    Example:
      vox-mesh rhythm report --last 3
    """
    found = run_beside("rhythm report", lambda mesh: _reports(mesh, last))
    if as_json:
        show_several([each.document() for each in found], as_json=True)
    else:
        show_lines([*table([_line(each) for each in found]), *_advice(found)])


async def _reports(mesh: Mesh, last: int) -> list[BarReport]:
    return await mesh.rhythm.reverb.reports(last, fresh=True)


def _line(report: BarReport) -> Record:
    kpis = report.kpis
    return {
        "window": report.window_id,
        "from": iso_of(report.start_ms),
        "bars": report.bars,
        "rev": report.revision,
        "tasks": "missing" if report.is_missing else _tasks(report),
        "overruns": report.overruns,
        "promises": _counts(report.promises),
        "TNT": _figure(kpis.tnt),
        "BPD": _figure(kpis.bpd),
        "WR": _figure(kpis.wr),
        "eta": _figure(kpis.eta),
        "PMR": _figure(kpis.pmr),
        "CPD": _figure(kpis.cpd),
        "TTFU": _figure(kpis.ttfu),
        "alarms": ", ".join(alarm.name for alarm in report.alarms),
    }


def _tasks(report: BarReport) -> str:
    return _counts({state: report.tasks.get(state, 0) for state in ClaimState}) or "quiet"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def _advice(found: Sequence[BarReport]) -> list[str]:
    """What follows from the last bar of which there is something to tell."""
    newest = next((each for each in found if each.suggestion.text), None)
    if newest is None:
        return []
    suggested = newest.suggestion
    phases = ", ".join(f"{name} {beats}" for name, beats in suggested.phases.items())
    return [printable(f"{newest.window_id} suggests: {suggested.tempo}; {phases} ({suggested.text})")]
