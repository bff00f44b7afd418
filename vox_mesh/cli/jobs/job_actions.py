"""`vox-mesh job abort`, `retry`, `yield` and `wake`: actions on jobs, by id or by filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from vox_mesh.cli.jobs.job_options import job_argument, kind_option
from vox_mesh.cli.jobs.job_output import line, short_id, show_jobs
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import Function, seconds
from vox_mesh.cli.support.output import json_option, show_lines, show_one, show_several, table
from vox_mesh.cli.support.session import run_command
from vox_mesh.jobs import batches
from vox_mesh.jobs.batches import OPEN, RETRIED, JobSelection, find_existing
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.job_filter import JobFilter
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.views.jobs import AbortedView, JobView, RetriedView


def _selection(
    references: tuple[str, ...], state: str | None, kind: str | None, default: Sequence[JobState]
) -> JobSelection:
    """Return the selected jobs; by default, those in the default states."""
    has_filter = state is not None or kind is not None
    if bool(references) == has_filter:
        context = click.get_current_context()
        raise click.UsageError("pass either JOB or a filter: --state, --kind", context)
    return JobSelection(references, default if state is None else [JobState(state)], JobFilter(kind))


def _selection_options(states: Iterable[JobState]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for option in (
            click.option("--dry-run", is_flag=True, help="Show the affected jobs, and change nothing."),
            kind_option,
            click.option(
                "--state", type=click.Choice([each.value for each in states]), help="State of the jobs."
            ),
            click.argument("references", nargs=-1, metavar="[JOB...]"),
        ):
            function = option(function)
        return function

    return add


def _show_plan(jobs: Sequence[Job], verb: str, *, as_json: bool) -> int:
    """Print the result of a dry run."""
    show_jobs(jobs, as_json=as_json)
    if not as_json:
        show_lines([f"would {verb} {_count(len(jobs))}"])
    return ExitCode.DONE


def _count(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


@click.command()
@_selection_options(OPEN)
@click.option("--reason", default="aborted by hand", show_default=True, help="Reason for the op log.")
@json_option
def abort(
    references: tuple[str, ...],
    state: str | None,
    kind: str | None,
    dry_run: bool,
    reason: str,
    as_json: bool,
) -> int:
    """Abort open jobs, by id or by filter.

    A worker that runs one of them stops. Jobs that wait for its success fail. Ends with 1 if one of the JOBs
    had already ended.

    \b
    Example:
      vox-mesh job abort --state pending --kind 'cortex.*' --dry-run
    """
    selection = _selection(references, state, kind, OPEN)
    if dry_run:
        return _show_plan(
            run_command("job abort", lambda mesh: selection.all(mesh.jobs)), "abort", as_json=as_json
        )

    async def work(mesh: Mesh) -> tuple[list[Job], set[str]]:
        seen: list[str] = []
        aborted: set[str] = set()
        async for batch in selection.batches(mesh.jobs):
            seen += [job.job_id for job in batch]
            aborted |= await batches.abort(mesh.jobs, batch, reason)
        wanted = seen if selection.is_by_name else [job_id for job_id in seen if job_id in aborted]
        return (await find_existing(mesh.jobs, wanted) if as_json or selection.is_by_name else []), aborted

    jobs, aborted = run_command("job abort", work)
    if as_json:
        views = [AbortedView.ended(job, aborted=job.job_id in aborted) for job in jobs]
        show_several([vars(each) for each in views], as_json=True)
    else:
        shown = table([line(job) for job in jobs]) if selection.is_by_name else []
        show_lines([*shown, f"aborted {_count(len(aborted))}"])
    return ExitCode.NO if selection.is_by_name and len(aborted) < len(jobs) else ExitCode.DONE


@click.command()
@_selection_options(RETRIED)
@json_option
def retry(
    references: tuple[str, ...], state: str | None, kind: str | None, dry_run: bool, as_json: bool
) -> int:
    """Retry ended jobs as new jobs, by id or by filter.

    A filter selects failed jobs, unless --state is given. A new job keeps only those predecessors that are
    retried too. Retrying a job twice returns the same new job.

    \b
    Example:
      vox-mesh job retry --state failed --kind 'cortex.*' --dry-run
    """
    selection = _selection(references, state, kind, [JobState.FAILED])
    if dry_run:
        return _show_plan(
            run_command("job retry", lambda mesh: selection.all(mesh.jobs)), "retry", as_json=as_json
        )

    async def work(mesh: Mesh) -> list[tuple[Job, Scheduled]]:
        if selection.is_by_name:
            batches.refuse_open(await selection.all(mesh.jobs))  # before any of them is retried
        chosen = selection.batches(mesh.jobs)
        return [each async for batch in chosen for each in await batches.retry(mesh.jobs, batch)]

    retried = run_command("job retry", work)
    records = [vars(RetriedView.again(*each)) for each in retried]
    if as_json:
        show_several(records, as_json=True)
        return ExitCode.DONE
    new = sum(again.is_new for _, again in retried)
    before = f", {len(retried) - new} already retried" if new < len(retried) else ""
    lines = [{**each, **{name: short_id(each[name]) for name in ("job_id", "retry_of")}} for each in records]
    show_lines([*(table(lines) if selection.is_by_name else []), f"retried {_count(new)}{before}"])
    return ExitCode.DONE


@click.command(name="yield")
@job_argument
@click.option(
    "--delay",
    type=seconds,
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="Time before the job can be claimed again.",
)
@click.option("--reason", default="yielded by hand", show_default=True, help="Reason for the op log.")
@json_option
def yield_(reference: str, delay: float, reason: str, as_json: bool) -> None:
    """Return a running job to the queue and stop its worker.

    It does not count as a failure.

    \b
    Example:
      vox-mesh job yield 298aaf4c --delay 5m
    """

    async def work(mesh: Mesh) -> Job:
        return await batches.yield_job(mesh.jobs, reference, delay, reason)

    job = run_command("job yield", work)
    show_one(vars(JobView.of(job)) if as_json else line(job), as_json=as_json)


@click.command()
@job_argument
@json_option
def wake(reference: str, as_json: bool) -> None:
    """Have a suspended job go on now.

    Its sleeps are over, and the deadlines of what it waits for have passed. A job that waits for an answer,
    or only for jobs or messages without a deadline, is not woken.

    \b
    Example:
      vox-mesh job wake 298aaf4c
    """
    job = run_command("job wake", lambda mesh: mesh.jobs.wakes.wake(reference))
    show_one(vars(JobView.of(job)) if as_json else line(job), as_json=as_json)
