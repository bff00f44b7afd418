"""`vox-mesh job`: schedule, show and wait for jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from vox_mesh.cli.jobs.forks import fork, resume
from vox_mesh.cli.jobs.job_actions import abort, retry, wake, yield_
from vox_mesh.cli.jobs.job_options import (
    JobSource,
    binding_options,
    job_argument,
    job_options,
    kind_option,
    limit_option,
    tag_option,
)
from vox_mesh.cli.jobs.job_output import (
    job_records,
    known_job,
    short_id,
    show_ended,
    show_jobs,
    show_scheduled,
    show_spooled,
    whole_lines,
)
from vox_mesh.cli.jobs.job_views import bundle, dead, graph, logs, ready, rebuild, verify
from vox_mesh.cli.jobs.questions import answer, ask, questions
from vox_mesh.cli.jobs.results import artifact, result
from vox_mesh.cli.jobs.run_next import run_next
from vox_mesh.cli.jobs.steps import steps
from vox_mesh.cli.jobs.waiting import has_succeeded, wait
from vox_mesh.cli.jobs.work import renew, report, take
from vox_mesh.cli.support.all_scopes import all_scopes_option, show_all_scopes
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import Function, TrailingCommand, print_faults, seconds
from vox_mesh.cli.support.output import (
    CommandGroup,
    details_option,
    json_option,
    show_lines,
    show_one,
    show_several,
)
from vox_mesh.cli.support.session import AgentMesh, run_agent_command, run_command, start_shared
from vox_mesh.errors import BadManifest
from vox_mesh.jobs.batches import find_existing, find_named, list_pages
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.spooled import spooled_in
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.job_filter import JobFilter
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.proof import iso_time
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.runtime.open_store import spool_paths
from vox_mesh.views.jobs import CountView, JobView, WholeJobView, job_counts, show_whole_job

if TYPE_CHECKING:
    pass

_STATES: Final = [state.value for state in JobState]
_MAX_NAMED: Final = 5
"""How many jobs a line names."""


@click.group(cls=CommandGroup, no_args_is_help=False)
def job() -> None:
    """Schedule, inspect, wait for, abort and verify jobs.

    JOB is a job's id, at least its first 6 digits, or its ULID.
    """


for _command in (
    *(abort, retry, yield_, wake, result, artifact, logs, graph, ready, dead, verify, bundle, rebuild),
    *(take, renew, report, run_next, ask, questions, answer, steps, fork, resume),
):
    job.add_command(_command)


# --- scheduling ----------------------------------------------------------------------------------


def _scheduling_options(function: Function) -> Function:
    for option in (
        click.option("--agent", help="Agent that schedules it.", show_default="VOX_AGENT_ID, or the node"),
        click.option("--ulid", help="ULID of the job, chosen by you."),
        click.option(
            "--lease",
            metavar="DURATION|phase|bar",
            help="Lease of a claim: a time, or until the phase or bar ends.",
        ),
        click.option("--backoff", metavar="DURATION", help="Delay after a failed attempt."),
        click.option(
            "--max-interruptions",
            type=int,
            metavar="N",
            help="How often it is run again after its worker was lost; 0 for never.",
            show_default="5",
        ),
        click.option(
            "--max-attempts",
            type=int,
            metavar="N",
            help="Maximum number of failed attempts: --retries and 1.",
        ),
        click.option(
            "--retries",
            type=click.IntRange(0, 99),
            metavar="N",
            help="Number of retries after a failure.",
            show_default="0 for a command, 2 for a kind",
        ),
        click.option("--run-at", metavar="TIME", help="Earliest start, such as 2030-01-31T08:00:00Z."),
        click.option(
            "--priority",
            type=int,
            metavar="0-3",
            help="Priority, from 0 (low) to 3 (urgent).",
            show_default="1",
        ),
        click.option(
            "--after",
            multiple=True,
            metavar="JOB",
            help="Predecessor that must succeed; JOB:end, must end; op:ULID, an op. Repeatable.",
        ),
        click.option(
            "--cwd",
            metavar="FOLDER",
            help="Working folder of the command: an absolute path.",
            show_default="this folder",
        ),
        click.option(
            "--env",
            multiple=True,
            metavar="NAME=VALUE",
            help="Environment variable of the command; repeatable.",
        ),
        click.option(
            "--env-from",
            multiple=True,
            metavar="NAME=SECRET",
            help="Environment variable with a secret of the worker; repeatable.",
        ),
    ):
        function = option(function)
    return function


@job.command(cls=TrailingCommand)
@job_options
@_scheduling_options
@binding_options
@tag_option("Tag that a worker or agent must have to get the job; repeatable.")
@click.option("--once", is_flag=True, help="Schedule nothing if the same job exists; end with 4 then.")
@click.option("--new", is_flag=True, help="Schedule the jobs of a file as new ones, even if they exist.")
@click.option(
    "--defer", is_flag=True, help="Wait for jobs that are not scheduled yet; --after takes whole ids."
)
@click.option(
    "--wait", "waits", is_flag=True, help="Wait until it has ended; end with 1 unless it succeeded."
)
@details_option
@json_option
def schedule(
    file: str | None,
    kind: str | None,
    payload: str | None,
    timeout: float | None,
    command: list[str],
    isolated: bool,
    once: bool,
    new: bool,
    defer: bool,
    waits: bool,
    agent: str | None,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Schedule a job: a kind, a command or a file of manifests.

    A kind runs in a handler, a command follows `--` and runs in this folder. Each call schedules a new job.
    With --once, the same job is not scheduled again: the command says so, and ends with 4 unless --wait finds
    it unfinished or unsuccessful. The manifests of a file are scheduled all or none, and existing ones are
    not scheduled again; faults are listed line by line, and end with 2.

    \b
    Example:
      vox-mesh job schedule --timeout 5m --env CI=1 -- make test
    """
    if once and new:
        raise click.UsageError("--once and --new can't be combined")
    fields = _fields(**options)
    awaited: list[str] = []

    def announce(scheduled: Sequence[Scheduled]) -> None:
        if not as_json:
            show_scheduled(scheduled, as_json=False, verbose=verbose)

    if file is not None and fields:
        raise click.UsageError(
            f"{_first_given(options)} can't be combined with --file: set it in the file",
            click.get_current_context(),
        )
    try:
        manifests = JobSource(file, kind, payload, timeout, command, isolated).manifests(**fields)
        is_new = new or (file is None and not once)
        scheduled, known, ended = run_agent_command(
            "job schedule",
            lambda mesh: _schedule(
                mesh, manifests, awaited if waits else None, announce, new=is_new, defer=defer
            ),
            agent,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*_going_on(awaited)) from None
    except BadManifest as bad:
        if file is None:
            bad.hint = "see `vox-mesh job schedule --help`"
            raise
        print_faults(bad, file)
        return ExitCode.USAGE
    if as_json and waits:
        records = [
            {**vars(JobView.of(each)), "is_new": new.is_new}
            for new, each in zip(scheduled, ended, strict=True)
        ]
        show_several(records, as_json=True) if file is not None else show_one(records[0], as_json=True)
    elif as_json or not waits:
        show_scheduled(scheduled, as_json=as_json, verbose=verbose, is_one=file is None)
    else:
        show_ended(ended, verbose=verbose)
    if not has_succeeded(ended):
        return ExitCode.NO
    is_known = len(known) == len(scheduled) and (not waits or all(each.has_ended for each in known))
    return ExitCode.NOTHING_NEW if once and is_known else ExitCode.DONE


def _fields(
    after: Sequence[str],
    env: Sequence[str],
    env_from: Sequence[str],
    priority: int | None,
    retries: int | None,
    tags: Sequence[str],
    **texts: Any,
) -> dict[str, Any]:
    """Return the manifest fields of the options; the manifest validates them."""
    if retries is not None:
        if texts["max_attempts"] is not None:
            raise click.UsageError("--retries and --max-attempts can't be combined")
        texts["max_attempts"] = retries + 1
    fields = {
        "priority": priority,
        "after": [*map(_predecessor, after)],
        "tags": [*tags],
        "env": dict(_variable(each, "--env") for each in env),
        "env_from": dict(_variable(each, "--env-from") for each in env_from),
        **texts,
    }
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _first_given(options: Mapping[str, Any]) -> str:
    """Return the first of the options that has a value, in the way users write it."""
    names = {each.name: each.opts[0] for each in click.get_current_context().command.params}
    return next(names[name] for name, value in options.items() if value not in (None, ()))


def _predecessor(text: str) -> str | dict[str, str]:
    name, _, when = text.partition(":")
    if name == "op":
        return {"op": when}
    return {"job": name, "when": when} if when else text


def _variable(text: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise click.BadParameter(f"must be NAME=VALUE, got {text!r}", param_hint=option)
    return name, value


def _going_on(awaited: Sequence[str]) -> list[str]:
    """Return what to do about scheduled jobs whose end was not awaited; nothing if there are none."""
    if not awaited:
        return []
    if len(awaited) > _MAX_NAMED:
        return ["the jobs go on: see `vox-mesh job list`"]
    named = " ".join(map(short_id, awaited))
    return [f"the {'job goes' if len(awaited) == 1 else 'jobs go'} on: wait with `vox-mesh job wait {named}`"]


async def _schedule(
    mesh: AgentMesh,
    manifests: Sequence[Manifest],
    awaited: list[str] | None,
    announce: Callable[[Sequence[Scheduled]], None],
    *,
    new: bool,
    defer: bool,
) -> tuple[list[Scheduled], list[Job], list[Job]]:
    """Schedule jobs; unless `awaited` is `None`, announce them, put their ids there, and wait for their end.

    Return the scheduled jobs, the known ones among them, and the ended ones if it waited.
    """
    if isinstance(mesh, Mesh):
        scheduled, now_ms = await mesh.jobs.schedule_all(manifests, new=new, defer=defer), mesh.clock.now_ms
    else:
        documents = [each.document() for each in manifests]
        scheduled = await mesh.jobs.schedule_all(documents, new=new, defer=defer)
        now_ms = time.time_ns() // 1_000_000
    known = await _existing(mesh, [each.job_id for each in scheduled if not each.is_new])
    for each in known:
        click.echo(f"vox-mesh: {known_job(each, now_ms)}", err=True)
    if awaited is None:
        return scheduled, known, []
    awaited += [each.job_id for each in scheduled]
    announce(scheduled)
    jobs = await _existing(mesh, [each.job_id for each in scheduled])
    by_id = {each.job_id: each for each in await wait(mesh, jobs)}
    return scheduled, known, [by_id[each.job_id] for each in scheduled]


async def _existing(mesh: AgentMesh, job_ids: Sequence[str]) -> list[Job]:
    if isinstance(mesh, Mesh):
        return await find_existing(mesh.jobs, job_ids)
    return await mesh.jobs.find_named(job_ids)


# --- looking -------------------------------------------------------------------------------------


@job.command(name="list")
@click.option("--state", type=click.Choice(_STATES), help="State of the jobs.")
@kind_option
@click.option("--node", metavar="NODE", help="Node that runs the jobs, or ran them last.")
@click.option("--counts", is_flag=True, help="Count the jobs of each kind by state.")
@click.option("--spooled", is_flag=True, help="Jobs that nodes on this machine keep for the database.")
@limit_option
@all_scopes_option
@json_option
def list_(
    state: str | None,
    kind: str | None,
    node: str | None,
    counts: bool,
    spooled: bool,
    limit: int,
    all_scopes: bool,
    as_json: bool,
) -> int | None:
    """List or count jobs, newest first.

    With --counts, `oldest` is the time since which the oldest ready job of a kind waits. With --spooled, jobs
    that were scheduled while the database was unreachable, in order; those it refused later come first.

    \b
    Example:
      vox-mesh job list --state running --kind 'cortex.*'
    """
    if all_scopes and (spooled or counts):
        raise click.UsageError("--all-scopes can't be combined with --spooled or --counts")
    if spooled:
        if state is not None or node is not None or counts:
            raise click.UsageError(
                "--spooled can be combined with --kind and --limit only", click.get_current_context()
            )
        jobs = spooled_in(spool_paths(start_shared("job list")), kind, limit)
        show_spooled(jobs, as_json=as_json)
        return None
    if counts:
        if state is not None or node is not None:
            raise click.UsageError("--counts can be combined with --kind only", click.get_current_context())
        _show_counts(run_command("job list", lambda mesh: job_counts(mesh, kind)), as_json=as_json)
        return None
    states = [None if state is None else JobState(state)]

    async def read(mesh: Mesh) -> list[Job]:
        pages = list_pages(mesh.jobs, states, JobFilter(kind, node), limit=limit)
        return [each async for page in pages for each in page]

    if all_scopes:
        return show_all_scopes(
            "job list", read, lambda jobs: job_records(jobs, as_json=as_json), as_json=as_json
        )
    show_jobs(run_command("job list", read), as_json=as_json)
    return None


def _show_counts(counts: Sequence[CountView], *, as_json: bool) -> None:
    records = [{**vars(each)} for each in counts]
    if not as_json:
        for each in records:
            since_ms = each.pop("oldest_ms")
            each["oldest"] = None if since_ms is None else iso_time(since_ms)
    show_several(records, as_json=as_json)


@job.command()
@job_argument
@json_option
def show(reference: str, as_json: bool) -> None:
    """Show a job in full.

    Shows its state, manifest, attempts, progress, predecessors, successors and outputs.

    \b
    Example:
      vox-mesh job show 298aaf4c
    """

    async def read(mesh: AgentMesh) -> WholeJobView:
        if isinstance(mesh, Mesh):
            return await show_whole_job(mesh, reference)
        return WholeJobView.of_document(await mesh.jobs.show(reference))

    view = run_agent_command("job show", read)
    if as_json:
        show_one(vars(view), as_json=True)
    else:
        show_lines(whole_lines(view))


@job.command(name="wait")
@click.argument("references", nargs=-1, required=True, metavar="JOB...")
@click.option("--timeout", type=seconds, metavar="DURATION", help="Time to wait.", show_default="no limit")
@json_option
def wait_(references: tuple[str, ...], timeout: float | None, as_json: bool) -> int:
    """Wait until jobs have ended.

    A terminal shows a progress bar. Ends with 0 if all jobs succeeded, with 1 if not or after the timeout.

    \b
    Example:
      vox-mesh job wait 298aaf4c 7d1f02aa --timeout 10m
    """

    async def work(mesh: AgentMesh) -> list[Job]:
        if isinstance(mesh, Mesh):
            jobs = await find_named(mesh.jobs, references)
        else:
            jobs = await mesh.jobs.find_named(references)
        return await wait(mesh, jobs, timeout)

    jobs = run_agent_command("job wait", work)
    show_jobs(jobs, as_json=as_json)
    if left := sum(not each.has_ended for each in jobs):
        click.echo(f"vox-mesh: {left} of {len(jobs)} jobs have not ended within the timeout", err=True)
    return ExitCode.DONE if has_succeeded(jobs) else ExitCode.NO
