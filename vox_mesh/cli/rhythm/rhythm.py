"""`vox-mesh rhythm`: the tempo policy of the mesh, and the reports on its bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

import click

from vox_mesh.cli.rhythm.help import help_group
from vox_mesh.cli.rhythm.incident import incident
from vox_mesh.cli.rhythm.status import status
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import print_faults, read_file
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    json_option,
    printable,
    show_lines,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import run_command
from vox_mesh.errors import BadPolicy
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.model.rhythm.policy import TempoPolicy, parse_policy
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.views.rhythm import PoliciesView, PolicyView, policies_of
from vox_mesh.views.tokens import spend_text

_BARS: Final = 8
_MAX_BARS: Final = 10_000


@click.group(cls=CommandGroup, no_args_is_help=False)
def rhythm() -> None:
    """Show and set the tempo, and show reports on bars."""


rhythm.add_command(help_group)
rhythm.add_command(incident)
rhythm.add_command(status)


# --- the policy ----------------------------------------------------------------------------------


@rhythm.group(cls=CommandGroup, no_args_is_help=False)
def policy() -> None:
    """Show and set the tempo policy."""


@policy.command()
@json_option
def show(as_json: bool) -> None:
    """Show the tempo policy in force and announced changes.

    \b
    Example:
      vox-mesh rhythm policy show
    """
    found = run_command("rhythm policy show", policies_of)
    show_one(asdict(found) if as_json else _fields(found), as_json=as_json)


@policy.command(name="set")
@click.argument("file")
@json_option
def set_(file: str, as_json: bool) -> int:
    """Set the tempo policy from a YAML or JSON file.

    FILE may be - for stdin. The policy takes effect on the same downbeat on every node, at least two bars
    ahead; if no node runs, in the current bar. The faults of a file are listed line by line, and end with 2.

    \b
    Example:
      vox-mesh rhythm policy set tempo.yaml
    """
    try:
        wanted = parse_policy(*read_file(file))
    except BadPolicy as bad:
        print_faults(bad, file)
        return ExitCode.USAGE
    announced, now_ms = run_command("rhythm policy set", lambda mesh: _set(mesh, wanted))
    show_one(
        vars(announced) if as_json else {**_words(announced), "from": _moment(announced.anchor_ms, now_ms)},
        as_json=as_json,
    )
    return ExitCode.DONE


async def _set(mesh: Mesh, wanted: TempoPolicy) -> tuple[PolicyView, int]:
    return PolicyView.of(await mesh.rhythm.policies.set(wanted)), mesh.rhythm.times.now_ms


def _fields(found: PoliciesView) -> Record:
    """Return the policy in force, and a row for each announced one."""
    current = found.in_force
    lines = {
        **_words(current),
        "since": _moment(current.anchor_ms, found.now_ms) if current.op_id else None,
        "why": current.reason,
    }
    coming = [
        {"tempo": _tempo(each), "from": _moment(each.anchor_ms, found.now_ms), "why": each.reason}
        for each in found.announced
    ]
    declared = found.incident
    frozen = {} if declared is None else {"incident": f"{declared.declared_at} {declared.reason}".rstrip()}
    return {**lines, **frozen, "announced": coming or None}


def _words(view: PolicyView) -> Record:
    document = view.policy
    limits, adapting = document["limits"], document["adaptation"]
    bars = document["security"]["revoke_after_bars"]
    step = adapting["change_per_minute"].replace("_", " ")
    moves = "; phases by a beat" if adapting["phases"] else ""
    adapts = f"by up to {step} a minute, if it deviates by {adapting['hysteresis_pct']:g} % or more{moves}"
    return {
        "cluster": document["cluster_id"],
        "tempo": _tempo(view),
        "phases": ", ".join(f"{name} {beats}" for name, beats in view.phases.items()),
        "limits": f"{limits['min_bpm']:g} to {limits['max_bpm']:g} beats a minute",
        "adapts": adapts if adapting["enable"] else False,
        "reports": document["observability"]["emit_bar_reports"],
        "keys": f"valid until {bars} {'bar' if bars == 1 else 'bars'} after their own",
    }


def _tempo(view: PolicyView) -> str:
    return f"{view.tempo_bpm:g} beats a minute, {view.bar_len_beats} in a bar of {_seconds(_bar_ms(view))}"


def _bar_ms(view: PolicyView) -> int:
    return view.beat_ms * view.bar_len_beats


def _moment(at_ms: int, now_ms: int) -> str:
    distance = f"in {_seconds(at_ms - now_ms)}" if at_ms > now_ms else f"{_seconds(now_ms - at_ms)} ago"
    return f"{iso_of(at_ms)} ({distance})"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1_000:g} s"


# --- reports -------------------------------------------------------------------------------------


@rhythm.command()
@click.option(
    "--last",
    type=click.IntRange(min=1, max=_MAX_BARS),
    metavar="N",
    default=_BARS,
    show_default=True,
    help="Number of bars, newest first.",
)
@json_option
def report(last: int, as_json: bool) -> None:
    """Show the reports on the last bars.

    A report has the tasks by state, overruns, promises, KPIs and alarms of its bar. A bar that no node could
    observe is listed as missing. A revision above 1 includes entries that arrived late.

    \b
    Example:
      vox-mesh rhythm report --last 3
    """
    found = run_command("rhythm report", lambda mesh: _reports(mesh, last))
    if as_json:
        show_several([each.document() for each in found], as_json=True)
    else:
        has_tokens = any(each.tokens for each in found)
        lines = [_line(each, has_tokens=has_tokens) for each in found]
        show_lines([*table(lines), *_advice(found)])


async def _reports(mesh: Mesh, last: int) -> list[BarReport]:
    return await mesh.rhythm.bar_reporter.reports(last, fresh=True)


def _line(report: BarReport, *, has_tokens: bool) -> Record:
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
        **({"tokens": spend_text(report.tokens)} if has_tokens else {}),
        "alarms": ", ".join(alarm.name for alarm in report.alarms),
    }


def _tasks(report: BarReport) -> str:
    return _counts({state: report.tasks.get(state, 0) for state in ClaimState}) or "quiet"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"


def _advice(found: Sequence[BarReport]) -> list[str]:
    """Return the suggestion of the newest bar that has one."""
    newest = next((each for each in found if each.suggestion.text), None)
    if newest is None:
        return []
    suggested = newest.suggestion
    phases = ", ".join(f"{name} {beats}" for name, beats in suggested.phases.items())
    return [printable(f"{newest.window_id} suggests: {suggested.tempo}; {phases} ({suggested.text})")]
