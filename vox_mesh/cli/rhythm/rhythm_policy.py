"""`vox-mesh rhythm policy`: how fast the mesh goes, since when, and what comes next."""

from __future__ import annotations

from dataclasses import asdict

import click

from vox_mesh.cli.support.documents import read_file, tell_faults
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import Record, json_option, show_one
from vox_mesh.cli.support.session import run_beside
from vox_mesh.errors import BadPolicy
from vox_mesh.mesh import Mesh
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.rhythm.policy import TempoPolicy, parse_policy
from vox_mesh.views.rhythm import PoliciesView, PolicyView, policies_of


@click.group(no_args_is_help=False)
def policy() -> None:
    """Show and set the tempo policy."""


@policy.command()
@json_option
def show(as_json: bool) -> None:
    """Show the policy in force, since when it is, and what was announced to follow it.

    \b
    Example:
      vox-mesh rhythm policy show
    """
    found = run_beside("rhythm policy show", policies_of)
    show_one(asdict(found) if as_json else _lines(found), as_json=as_json)


@policy.command(name="set")
@click.argument("file")
@json_option
def set_(file: str, as_json: bool) -> int:
    """Set the policy that FILE says in YAML or JSON; - is stdin.

    It takes effect on a downbeat two or more bars ahead, on every node at the same one; where no node runs,
    in the bar of now. What is wrong with the file is told line by line, and ends with 2.

    \b
    Example:
      vox-mesh rhythm policy set tempo.yaml
    """
    try:
        wanted = parse_policy(*read_file(file))
    except BadPolicy as bad:
        tell_faults(bad, file)
        return ExitCode.USAGE
    announced, now_ms = run_beside("rhythm policy set", lambda mesh: _set(mesh, wanted))
    show_one(
        vars(announced) if as_json else {**_words(announced), "from": _moment(announced.anchor_ms, now_ms)},
        as_json=as_json,
    )
    return ExitCode.DONE


async def _set(mesh: Mesh, wanted: TempoPolicy) -> tuple[PolicyView, int]:
    return PolicyView.of(await mesh.rhythm.policies.set(wanted)), mesh.rhythm.times.now_ms


def _lines(found: PoliciesView) -> Record:
    """What is in force in full, and a line for each that follows."""
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
    return {**lines, "announced": coming or None}


def _words(view: PolicyView) -> Record:
    said = view.policy
    limits, adapting, bars = said["limits"], said["adaptation"], said["security"]["revoke_after_bars"]
    step = adapting["change_per_minute"].replace("_", " ")
    adapts = f"by up to {step} a minute, and not for less than {adapting['hysteresis_pct']:g} %"
    return {
        "cluster": said["cluster_id"],
        "tempo": _tempo(view),
        "phases": ", ".join(f"{name} {beats}" for name, beats in view.phases.items()),
        "limits": f"{limits['min_bpm']:g} to {limits['max_bpm']:g} beats a minute",
        "adapts": adapts if adapting["enable"] else False,
        "reports": said["observability"]["emit_bar_reports"],
        "keys": f"good until {bars} {'bar' if bars == 1 else 'bars'} after their own",
    }


def _tempo(view: PolicyView) -> str:
    return f"{view.tempo_bpm:g} beats a minute, {view.bar_len_beats} in a bar of {_seconds(_bar_ms(view))}"


def _bar_ms(view: PolicyView) -> int:
    return view.beat_ms * view.bar_len_beats


def _moment(at_ms: int, now_ms: int) -> str:
    away = f"in {_seconds(at_ms - now_ms)}" if at_ms > now_ms else f"{_seconds(now_ms - at_ms)} ago"
    return f"{iso_of(at_ms)} ({away})"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1_000:g} s"
