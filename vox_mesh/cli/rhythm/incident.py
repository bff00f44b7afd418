"""`vox-mesh rhythm incident`: freeze the tempo by hand, and release it."""

from __future__ import annotations

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_one
from vox_mesh.cli.support.session import run_command
from vox_mesh.rhythm.tempo.incidents import Incident
from vox_mesh.views.rhythm import IncidentView, incident_of


@click.group(cls=CommandGroup, no_args_is_help=False)
def incident() -> None:
    """Freeze the tempo during an incident."""


@incident.command()
@click.option(
    "--reason", metavar="TEXT", default="", help="Reason, up to 500 characters.", show_default="none"
)
@json_option
def declare(reason: str, as_json: bool) -> None:
    """Declare an incident: the tempo stops adapting.

    The tempo stays until the incident is cleared, also if the leader changes. Declared again, the incident
    gets the new reason. A policy that you set by hand still takes effect.

    \b
    Example:
      vox-mesh rhythm incident declare --reason "database failover"
    """
    _show(run_command("rhythm incident declare", lambda mesh: mesh.rhythm.incidents.declare(reason)), as_json)


@incident.command()
@json_option
def clear(as_json: bool) -> None:
    """Clear the incident: the tempo may adapt again.

    \b
    Example:
      vox-mesh rhythm incident clear
    """
    _show(run_command("rhythm incident clear", lambda mesh: mesh.rhythm.incidents.clear()), as_json)


@incident.command()
@json_option
def show(as_json: bool) -> None:
    """Show the declared incident, if any.

    \b
    Example:
      vox-mesh rhythm incident show
    """
    found = run_command("rhythm incident show", incident_of)
    show_one({"incident": None if found is None else vars(found)}, as_json=as_json)


def _show(found: Incident, as_json: bool) -> None:
    show_one(vars(IncidentView.of(found)), as_json=as_json)
