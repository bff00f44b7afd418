"""`vox-mesh job fork` and `resume`: new jobs that begin with the stored steps of others."""

from __future__ import annotations

import click

from vox_mesh.cli.jobs.job_options import job_argument
from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.session import run_command
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.mesh import Mesh
from vox_mesh.views.jobs import ScheduledView


@click.command()
@job_argument
@click.option("--from", "step", metavar="STEP", required=True, help="Step to run again, by name or number.")
@json_option
def fork(reference: str, step: str, as_json: bool) -> None:
    """Start a new job from a step of another.

    The new job gets the stored results of the steps before it.

    \b
    Example:
      vox-mesh job fork 298aaf4c --from charge
    """

    async def work(mesh: Mesh) -> Scheduled:
        return await mesh.jobs.forks.fork(reference, step)

    _show(run_command("job fork", work), as_json=as_json)


@click.command()
@job_argument
@json_option
def resume(reference: str, as_json: bool) -> None:
    """Go on with a failed or aborted job as a new job.

    The new job gets the stored results of the old one's steps. Resuming a job twice returns the same new job.

    \b
    Example:
      vox-mesh job resume 298aaf4c
    """

    async def work(mesh: Mesh) -> Scheduled:
        return await mesh.jobs.forks.resume(reference)

    _show(run_command("job resume", work), as_json=as_json)


def _show(scheduled: Scheduled, *, as_json: bool) -> None:
    show_one(vars(ScheduledView.from_record(scheduled)), as_json=as_json)
