"""`vox-mesh cron`: recurring jobs."""

from __future__ import annotations

from typing import Any

import click

from vox_mesh.cli.jobs.job_options import JobSource, binding_options, job_options, manifest_hint
from vox_mesh.cli.jobs.job_output import short_id, template_text
from vox_mesh.cli.support.options import TrailingCommand
from vox_mesh.cli.support.output import CommandGroup, Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command
from vox_mesh.jobs.scheduling.crons import CronJob
from vox_mesh.model.jobs.scheduling.cron import iso
from vox_mesh.views.jobs import CronView, RemovedCronView


@click.group(cls=CommandGroup, no_args_is_help=False)
def cron() -> None:
    """Add, list and remove recurring jobs.

    Each occurrence is scheduled once, by any node.
    """


@cron.command(cls=TrailingCommand)
@click.argument("name")
@click.argument("expression", metavar="EXPRESSION")
@job_options
@binding_options
@click.option(
    "--timezone", metavar="ZONE", default="UTC", show_default=True, help="Time zone of the expression."
)
@json_option
def add(
    name: str,
    expression: str,
    timezone: str,
    at: str | None,
    during: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Schedule a job at the times of a cron expression.

    EXPRESSION has five fields: minute, hour, day of the month, month, day of the week. Or it is `every N
    bars` of the mesh's rhythm: then the job is scheduled on a downbeat. The job is in a file, a kind for a
    handler, or a command after `--`. Adding an identical cron again changes nothing; a different cron of the
    same name is refused.

    \b
    Example:
      vox-mesh cron add report '0 8 * * MON-FRI' --timezone Europe/Berlin -- make report
    """
    with manifest_hint("cron"):
        manifest = JobSource(**asked).single_manifest("cron", at=at, during=during)
        added = run_command("cron add", lambda mesh: mesh.crons.add(name, expression, manifest, timezone))
    show_one(vars(CronView.of(added)) if as_json else _line(added), as_json=as_json)


@cron.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the crons with their next time and last job.

    \b
    Example:
      vox-mesh cron list
    """
    found = run_command("cron list", lambda mesh: mesh.crons.listed())
    show_several([vars(CronView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


@cron.command()
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a cron; jobs that it has scheduled stay.

    \b
    Example:
      vox-mesh cron remove report
    """
    run_command("cron remove", lambda mesh: mesh.crons.remove(name))
    show_one(vars(RemovedCronView(name)), as_json=as_json)


def _line(cron: CronJob) -> Record:
    """Return a cron's row of the table."""
    return {
        "name": cron.name,
        "expression": cron.expression,
        "timezone": cron.timezone,
        "job": template_text(cron.manifest),
        "next": iso(cron.next_ms),
        "last": None if cron.last_ms is None else iso(cron.last_ms),
        "last job": None if cron.last_job is None else short_id(cron.last_job),
    }
