"""`vox-mesh job`: schedule work, see where it stands, and wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from vox_mesh.cli.jobs.job_actions import abort, retry, yield_
from vox_mesh.cli.jobs.job_choice import job_argument, kind_option, limit_option
from vox_mesh.cli.jobs.job_options import AskedJob, job_options
from vox_mesh.cli.jobs.job_output import show_jobs, show_scheduled, whole_lines
from vox_mesh.cli.jobs.job_proof import bundle, verify
from vox_mesh.cli.jobs.job_views import dead, graph, logs, ready, rebuild
from vox_mesh.cli.jobs.job_wait import has_succeeded, wait
from vox_mesh.cli.support.documents import tell_faults
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import Function, TakesCommand, seconds
from vox_mesh.cli.support.output import json_option, show_lines, show_one, show_several
from vox_mesh.cli.support.session import run_beside
from vox_mesh.errors import BadManifest
from vox_mesh.jobs.batches import find_existing, find_named, list_pages
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.proof import iso_time
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.views.jobs import CountView, JobView, job_counts, show_whole_job

_STATES: Final = [state.value for state in JobState]


@click.group(no_args_is_help=False)
def job() -> None:
    """Schedule jobs, look at them, wait for them, end them, and check what they left.

    JOB is a job's id, at least the first 6 digits of it, or its ULID.
    """


for _command in (abort, retry, yield_, logs, graph, ready, dead, verify, bundle, rebuild):
    job.add_command(_command)


# --- scheduling ----------------------------------------------------------------------------------


def _scheduling_options(function: Function) -> Function:
    for option in (
        click.option("--ulid", help="A name of your own for it."),
        click.option(
            "--lease", metavar="DURATION|phase|bar", help="How long a claim of it holds, or until what ends."
        ),
        click.option("--backoff", metavar="DURATION", help="How long a failed attempt holds back the next."),
        click.option("--max-attempts", type=int, metavar="N", help="After so many failures it has failed."),
        click.option("--run-at", metavar="TIME", help="Not before that, such as 2030-01-31T08:00:00Z."),
        click.option("--priority", type=int, metavar="0-3", help="0 can wait, 3 is urgent; by default 1."),
        click.option(
            "--after",
            multiple=True,
            metavar="JOB",
            help="A job that must have succeeded before; JOB:end, ended; op:ULID, an op. Repeatable.",
        ),
        click.option("--cwd", metavar="FOLDER", help="Where the command runs: an absolute path."),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="What the command sees; repeatable."),
    ):
        function = option(function)
    return function


@job.command(cls=TakesCommand)
@job_options
@_scheduling_options
@click.option("--new", is_flag=True, help="Another job, even if there is one with the same manifest.")
@click.option("--wait", "waits", is_flag=True, help="Wait until it has ended: 1 if it has not succeeded.")
@json_option
def schedule(
    file: str | None,
    kind: str | None,
    payload: str | None,
    timeout: float | None,
    command: list[str],
    new: bool,
    waits: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Schedule a job of a kind for a handler, a command after `--`, or the jobs in a file.

    The same manifest is the same job: scheduled again, it is the one that is there. A file may hold several
    manifests, which are all scheduled or none; what is wrong with them is told line by line, and ends with 2.

    \b
    Example:
      vox-mesh job schedule --timeout 5m --env CI=1 -- make test
    """
    fields = _fields(**options)
    if file is not None and fields:
        raise click.UsageError(
            f"a file says all of its jobs: leave out --{next(iter(fields)).replace('_', '-')}",
            click.get_current_context(),
        )
    try:
        manifests = AskedJob(file, kind, payload, timeout, command).manifests(**fields)
        scheduled, ended = run_beside(
            "job schedule", lambda mesh: _schedule(mesh, manifests, new=new, waits=waits, as_json=as_json)
        )
    except BadManifest as bad:
        if file is None:
            bad.hint = "see `vox-mesh job schedule --help`"
            raise
        tell_faults(bad, file)
        return ExitCode.USAGE
    if as_json and waits:
        told = [
            {**vars(JobView.of(each)), "is_new": new.is_new}
            for new, each in zip(scheduled, ended, strict=True)
        ]
        show_several(told, as_json=True) if file is not None else show_one(told[0], as_json=True)
    elif as_json or not waits:
        show_scheduled(scheduled, as_json=as_json, is_one=file is None)
    else:
        show_jobs(ended, as_json=False)
    return ExitCode.DONE if has_succeeded(ended) else ExitCode.NO


def _fields(after: Sequence[str], env: Sequence[str], priority: int | None, **texts: Any) -> dict[str, Any]:
    """The fields of a manifest that the options stand for; what is wrong with them, the manifest tells."""
    variables = dict(map(_variable, env))
    fields = {"priority": priority, "after": [*map(_awaited, after)], "env": variables, **texts}
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _awaited(text: str) -> str | dict[str, str]:
    name, _, when = text.partition(":")
    if name == "op":
        return {"op": when}
    return {"job": name, "when": when} if when else text


def _variable(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value


async def _schedule(
    mesh: Mesh, manifests: Sequence[Any], *, new: bool, waits: bool, as_json: bool
) -> tuple[list[Scheduled], list[Job]]:
    """Schedule them, and wait for their end if that is wanted."""
    scheduled = await mesh.jobs.schedule_all(manifests, new=new)
    if not waits:
        return scheduled, []
    if not as_json:
        show_scheduled(scheduled, as_json=False, is_one=False)
    jobs = await find_existing(mesh.jobs, [each.job_id for each in scheduled])
    by_id = {each.job_id: each for each in await wait(mesh, jobs)}
    return scheduled, [by_id[each.job_id] for each in scheduled]


# --- looking -------------------------------------------------------------------------------------


@job.command(name="list")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@kind_option
@click.option("--node", metavar="NODE", help="Only those that this node has, or had last.")
@click.option("--counts", is_flag=True, help="How many there are of each kind, by state.")
@limit_option
@json_option
def list_(
    state: str | None, kind: str | None, node: str | None, counts: bool, limit: int, as_json: bool
) -> None:
    """List jobs, the newest first; or count them.

    With --counts, `oldest` is since when the longest waiting job of a kind could have been claimed.

    \b
    Example:
      vox-mesh job list --state running --kind 'cortex.*'
    """
    if counts:
        if state is not None or node is not None:
            raise click.UsageError("--counts goes with --kind only", click.get_current_context())
        _show_counts(run_beside("job list", lambda mesh: job_counts(mesh, kind)), as_json=as_json)
        return
    states = [None if state is None else JobState(state)]

    async def look(mesh: Mesh) -> list[Job]:
        pages = list_pages(mesh.jobs, states, kind=kind, claimer=node, limit=limit)
        return [each async for page in pages for each in page]

    show_jobs(run_beside("job list", look), as_json=as_json)


def _show_counts(counts: Sequence[CountView], *, as_json: bool) -> None:
    told = [{**vars(each)} for each in counts]
    if not as_json:
        for each in told:
            since_ms = each.pop("oldest_ms")
            each["oldest"] = None if since_ms is None else iso_time(since_ms)
    show_several(told, as_json=as_json)


@job.command()
@job_argument
@json_option
def show(reference: str, as_json: bool) -> None:
    """Show all of a job: its state, manifest, attempts, progress, what it waits for, and what it left.

    \b
    Example:
      vox-mesh job show 298aaf4c
    """
    view = run_beside("job show", lambda mesh: show_whole_job(mesh, reference))
    if as_json:
        show_one(vars(view), as_json=True)
    else:
        show_lines(whole_lines(view))


@job.command(name="wait")
@click.argument("references", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=seconds, metavar="DURATION", help="How long; by default until they end.")
@json_option
def wait_(references: tuple[str, ...], timeout: float | None, as_json: bool) -> int:
    """Wait until jobs have ended; in a terminal, with a progress bar.

    Ends with 0 if all have succeeded, 1 if one has not, or the time is over.

    \b
    Example:
      vox-mesh job wait 298aaf4c 7d1f02aa --timeout 10m
    """

    async def work(mesh: Mesh) -> list[Job]:
        return await wait(mesh, await find_named(mesh.jobs, references), timeout)

    jobs = run_beside("job wait", work)
    show_jobs(jobs, as_json=as_json)
    if left := sum(not each.has_ended for each in jobs):
        click.echo(f"vox-mesh: {left} of {len(jobs)} jobs have not ended in time", err=True)
    return ExitCode.DONE if has_succeeded(jobs) else ExitCode.NO
