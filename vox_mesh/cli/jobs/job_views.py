"""`vox-mesh job logs`, `graph`, `ready`, `dead` and `rebuild`: views of jobs."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import click

from vox_mesh.cli.jobs.job_options import job_argument, kind_option, limit_option
from vox_mesh.cli.jobs.job_output import dot, show_jobs, tree
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import (
    json_option,
    printable,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import run_command
from vox_mesh.jobs.batches import find_named, list_pages
from vox_mesh.jobs.progress import Piece
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.views.job_graph import MAX_JOBS, Graph, GraphView, graph_around, graph_of_open
from vox_mesh.views.jobs import PieceView, ready_jobs
from vox_mesh.views.proofs import rebuild_roster

_PAGE_SIZE: Final = 100


# --- logs ----------------------------------------------------------------------------------------


@click.command()
@job_argument
@click.option("--follow", is_flag=True, help="Follow the output until the job has ended.")
@json_option
def logs(reference: str, follow: bool, as_json: bool) -> None:
    """Show the output and log of a job, of all attempts.

    Its stdout goes to stdout, everything else to stderr. The log has a size limit; the artifacts have the
    whole output of the last attempt. With --json and --follow each piece is a document on its own line.

    \b
    Example:
      vox-mesh job logs 298aaf4c --follow
    """

    async def work(mesh: Mesh) -> list[Piece]:
        job_id = (await mesh.jobs.find(reference)).job_id
        found: list[Piece] = []
        async with aclosing(mesh.jobs.notes.follow(job_id) if follow else _read_log(mesh, job_id)) as pieces:
            async for piece in pieces:
                if not as_json:
                    _print(piece)
                elif follow:
                    show_next(vars(PieceView.from_record(piece)))
                else:
                    found.append(piece)
        return found

    found = run_command("job logs", work)
    if as_json and not follow:
        show_several([vars(PieceView.from_record(piece)) for piece in found], as_json=True)


async def _read_log(mesh: Mesh, job_id: str) -> AsyncGenerator[Piece, None]:
    after = 0
    while pieces := await mesh.jobs.notes.logged(job_id, after=after, limit=_PAGE_SIZE):
        for piece in pieces:
            yield piece
        after = pieces[-1].n


def _print(piece: Piece) -> None:
    out = sys.stdout if piece.stream == "stdout" else sys.stderr
    lines = piece.text.split("\n")
    out.write("\n".join(map(printable, lines)) if out.isatty() else piece.text)
    out.flush()


# --- dependencies --------------------------------------------------------------------------------


@click.command()
@click.argument("references", nargs=-1, metavar="[JOB...]")
@click.option("--dot", "as_dot", is_flag=True, help="Print in the format of Graphviz.")
@json_option
def graph(references: tuple[str, ...], as_dot: bool, as_json: bool) -> None:
    """Show the dependencies of jobs.

    Without JOB, shows all open jobs.

    \b
    Example:
      vox-mesh job graph 298aaf4c --dot | dot -Tsvg > jobs.svg
    """
    if as_dot and as_json:
        raise click.UsageError("--dot and --json can't be combined", click.get_current_context())

    async def read(mesh: Mesh) -> Graph:
        if references:
            return await graph_around(
                mesh.jobs, [job.job_id for job in await find_named(mesh.jobs, references)]
            )
        return await graph_of_open(mesh.jobs)

    found = run_command("job graph", read)
    if as_json:
        show_one(vars(GraphView.of(found)), as_json=True)
    else:
        show_lines(dot(found) if as_dot else tree(found))
    if found.is_cut:
        click.echo(f"vox-mesh: only the first {MAX_JOBS} jobs are shown", err=True)


# --- ready and failed jobs -----------------------------------------------------------------------


@click.command()
@kind_option
@limit_option
@json_option
def ready(kind: str | None, limit: int, as_json: bool) -> None:
    """List the ready jobs by priority, then age.

    \b
    Example:
      vox-mesh job ready --kind exec
    """
    show_jobs(run_command("job ready", lambda mesh: ready_jobs(mesh, kind, limit)), as_json=as_json)


@click.command()
@kind_option
@limit_option
@json_option
def dead(kind: str | None, limit: int, as_json: bool) -> None:
    """List failed jobs and their reasons, newest first.

    \b
    Example:
      vox-mesh job dead --kind 'cortex.*'
    """

    async def read(mesh: Mesh) -> list[Job]:
        pages = list_pages(mesh.jobs, [JobState.FAILED], kind=kind, limit=limit)
        return [job async for page in pages for job in page]

    show_jobs(run_command("job dead", read), as_json=as_json)


# --- rebuild -------------------------------------------------------------------------------------


@click.command()
@click.option("--check", "checks", is_flag=True, help="Compare, and change nothing.")
@click.option("--repair", "repairs", is_flag=True, help="Rewrite the job tables from the log.")
@json_option
def rebuild(checks: bool, repairs: bool, as_json: bool) -> int:
    """Replay the op log and compare it with the job tables.

    Ends with 1 if they differ, or if the log has a transition that the rules don't allow.

    \b
    Example:
      vox-mesh job rebuild --check
    """
    if checks == repairs:
        raise click.UsageError("pass either --check or --repair", click.get_current_context())

    view = run_command("job rebuild", lambda mesh: rebuild_roster(mesh, repair=repairs))
    if as_json:
        show_one(vars(view), as_json=True)
    else:
        differences = [vars(each) for each in view.differences]
        lines = table(differences) if differences else []
        lines += [
            f"op {each.op_id} ({each.kind}) of job {each.job_id}: {each.what}" for each in view.findings
        ]
        verdict = "repaired" if repairs else "found"
        show_lines([*lines, f"{verdict} {len(differences)} differences between the job tables and the log"])
    is_right = not view.findings and (repairs or not view.differences)
    return ExitCode.DONE if is_right else ExitCode.NO
