"""`vox-mesh cron`: jobs that come again and again."""

from __future__ import annotations

from typing import Any

import click
import orjson

from vox_mesh.cli.jobs.job_options import AskedJob, job_options
from vox_mesh.cli.support.options import TakesCommand
from vox_mesh.cli.support.output import Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_beside
from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.jobs.crons import CronJob
from vox_mesh.model.jobs.cron import iso
from vox_mesh.model.jobs.manifest import EXEC
from vox_mesh.views.jobs import CronView, RemovedCronView


@click.group(no_args_is_help=False)
def cron() -> None:
    """Have jobs scheduled again and again, each time once, by whichever node is first."""


@cron.command(cls=TakesCommand)
@click.argument("name")
@click.argument("expression", metavar="EXPRESSION")
@job_options
@click.option(
    "--timezone", metavar="ZONE", default="UTC", show_default=True, help="Where its times of day are."
)
@json_option
def add(name: str, expression: str, timezone: str, as_json: bool, **asked: Any) -> None:
    """Schedule a job whenever EXPRESSION says so: minute, hour, day of the month, month, day of the week.

    The job is in a file, of a kind for a handler, or a command after `--`. A cron that is there already, with
    all of this the same, stays as it is; with anything else, it is refused.

    \b
    Example:
      vox-mesh cron add report '0 8 * * MON-FRI' --timezone Europe/Berlin -- make report
    """
    try:
        manifests = AskedJob(**asked).manifests()
        if len(manifests) != 1:
            raise BadValue(
                f"there are {len(manifests)} manifests", hint="a cron has one: add a cron for each"
            )
        added = run_beside("cron add", lambda mesh: mesh.crons.add(name, expression, manifests[0], timezone))
    except BadManifest as bad:
        bad.hint = "see `vox-mesh cron add --help`"
        raise
    show_one(vars(CronView.of(added)) if as_json else _line(added), as_json=as_json)


@cron.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the crons: when each is due next, and the job of its last time.

    \b
    Example:
      vox-mesh cron list
    """
    found = run_beside("cron list", lambda mesh: mesh.crons.listed())
    show_several([vars(CronView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


@cron.command()
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Have no more jobs come of a cron; those that have come stay.

    \b
    Example:
      vox-mesh cron remove report
    """
    run_beside("cron remove", lambda mesh: mesh.crons.remove(name))
    show_one(vars(RemovedCronView(name)), as_json=as_json)


def _line(cron: CronJob) -> Record:
    """A cron as people want to see it."""
    core = orjson.loads(cron.manifest)
    what = core["kind"] if "kind" in core else f"{EXEC}: {' '.join((*core['command'], *core['args']))}"
    return {
        "name": cron.name,
        "expression": cron.expression,
        "timezone": cron.timezone,
        "job": what,
        "next": iso(cron.next_ms),
        "last": None if cron.last_ms is None else iso(cron.last_ms),
        "last job": None if cron.last_job is None else cron.last_job[:12],
    }
