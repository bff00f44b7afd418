"""`vox-mesh workflow`: run files of jobs that depend on each other."""

from __future__ import annotations

from typing import Any

import click

from vox_mesh.cli.jobs.job_options import current_folder, limit_option
from vox_mesh.cli.jobs.job_output import short_id
from vox_mesh.cli.jobs.waiting import wait
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import print_faults, read_file
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    fields,
    json_option,
    show_lines,
    show_one,
    show_several,
)
from vox_mesh.cli.support.session import run_command
from vox_mesh.errors import BadWorkflow
from vox_mesh.jobs.scheduling.workflows import WorkflowRun
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.proof import iso_time
from vox_mesh.views.workflows import RunView, WholeRunView


@click.group(cls=CommandGroup, no_args_is_help=False)
def workflow() -> None:
    """Run files of jobs that depend on each other."""


@workflow.command()
@click.argument("file", metavar="FILE")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="Parameter; repeatable.")
@click.option("--isolated", is_flag=True, help="Run commands in empty folders, not in this one.")
@click.option("--wait", "waits", is_flag=True, help="Wait for its end; end with 1 unless all jobs succeeded.")
@json_option
def run(file: str, params: tuple[str, ...], isolated: bool, waits: bool, as_json: bool) -> int:
    """Start a new run of a workflow file.

    Each call is a new run with an id of its own. Faults of the file are listed line by line, and end with 2.

    \b
    Example:
      vox-mesh workflow run release.yaml --param version=1.2 --wait
    """
    given = dict(_param(each) for each in params)
    folder = None if isolated else current_folder()
    text, name = read_file(file)

    async def work(mesh: Mesh) -> WorkflowRun:
        started = await mesh.workflows.run_text(text, name, given, folder=folder)
        if not waits:
            return started
        if not as_json:
            click.echo(f"vox-mesh: run {started.summary.run_id} started", err=True)
        await wait(mesh, started.jobs)
        return await mesh.workflows.find(started.summary.run_id)

    try:
        shown = run_command("workflow run", work)
    except BadWorkflow as bad:
        print_faults(bad, file)
        return ExitCode.USAGE
    _show(shown, as_json=as_json)
    return ExitCode.NO if waits and shown.summary.state != "succeeded" else ExitCode.DONE


def _param(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.BadParameter(f"must be NAME=VALUE, got {text!r}", param_hint="--param")
    return name, value


@workflow.command()
@click.argument("run_id", metavar="RUN")
@json_option
def show(run_id: str, as_json: bool) -> None:
    """Show a run and its jobs.

    \b
    Example:
      vox-mesh workflow show 01M7GAG5K8G3DHVWR8SNR37000
    """
    _show(run_command("workflow show", lambda mesh: mesh.workflows.find(run_id)), as_json=as_json)


@workflow.command(name="list")
@limit_option
@json_option
def list_(limit: int, as_json: bool) -> None:
    """List the newest runs.

    Runs are found among the 10,000 jobs that were scheduled last.

    \b
    Example:
      vox-mesh workflow list
    """
    found = run_command("workflow list", lambda mesh: mesh.workflows.listed(limit))
    views = [vars(RunView.from_record(each)) for each in found]
    show_several(views if as_json else [_line(each) for each in views], as_json=as_json)


def _show(run: WorkflowRun, *, as_json: bool) -> None:
    view = WholeRunView.of(run)
    if as_json:
        show_one({**vars(view), "items": [vars(each) for each in view.items]}, as_json=True)
        return
    about: dict[str, Any] = {**vars(view)}
    about["items"] = [{**vars(each), "job_id": short_id(each.job_id)} for each in about.pop("items")]
    show_lines(fields(_line(about)))


def _line(view: Record) -> Record:
    """Return a run with its times as text."""
    shown = dict(view)
    for name in ("created_ms", "ended_ms"):
        value = shown.pop(name)
        shown[name.removesuffix("_ms")] = None if value is None else iso_time(value)
    return shown
