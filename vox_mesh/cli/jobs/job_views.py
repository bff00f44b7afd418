"""`vox-mesh job logs`, `graph`, `ready`, `dead` and `rebuild`: looks at jobs from other sides."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import click

from vox_mesh.cli.jobs.job_choice import job_argument, kind_option, limit_option
from vox_mesh.cli.jobs.job_graph import dot, tree
from vox_mesh.cli.jobs.job_output import show_jobs
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
from vox_mesh.cli.support.session import run_beside
from vox_mesh.jobs.batches import find_named, list_pages
from vox_mesh.jobs.progress import Piece
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.views.job_graph import MAX_JOBS, Graph, GraphView, graph_around, graph_of_open
from vox_mesh.views.jobs import PieceView, ready_jobs
from vox_mesh.views.proofs import rebuild_roster

_PIECES: Final = 100


# --- what jobs print -----------------------------------------------------------------------------


@click.command()
@job_argument
@click.option("--follow", is_flag=True, help="Go on with what it prints, until it has ended.")
@json_option
def logs(reference: str, follow: bool, as_json: bool) -> None:
    """Show what a job has printed and logged, in all of its attempts.

    Its stdout goes to stdout, everything else to stderr. It is kept up to a bound; all that the last attempt
    has printed is in its artifacts. With --json and --follow each piece is a document on a line of its own.

    \b
    Example:
      vox-mesh job logs 298aaf4c --follow
    """

    async def work(mesh: Mesh) -> list[Piece]:
        job_id = (await mesh.jobs.find(reference)).job_id
        found: list[Piece] = []
        async with aclosing(mesh.jobs.notes.follow(job_id) if follow else _logged(mesh, job_id)) as pieces:
            async for piece in pieces:
                if not as_json:
                    _print(piece)
                elif follow:
                    show_next(vars(PieceView.of(piece)))
                else:
                    found.append(piece)
        return found

    found = run_beside("job logs", work)
    if as_json and not follow:
        show_several([vars(PieceView.of(piece)) for piece in found], as_json=True)


async def _logged(mesh: Mesh, job_id: str) -> AsyncGenerator[Piece, None]:
    after = 0
    while pieces := await mesh.jobs.notes.logged(job_id, after=after, limit=_PIECES):
        for piece in pieces:
            yield piece
        after = pieces[-1].n


def _print(piece: Piece) -> None:
    out = sys.stdout if piece.stream == "stdout" else sys.stderr
    lines = piece.text.split("\n")
    out.write("\n".join(map(printable, lines)) if out.isatty() else piece.text)
    out.flush()


# --- what waits for what -------------------------------------------------------------------------


@click.command()
@click.argument("references", nargs=-1, metavar="[JOB...]")
@click.option("--dot", "as_dot", is_flag=True, help="For Graphviz.")
@json_option
def graph(references: tuple[str, ...], as_dot: bool, as_json: bool) -> None:
    """Show what waits for what: of these jobs, or of all that are still to be done.

    \b
    Example:
      vox-mesh job graph 298aaf4c --dot | dot -Tsvg > jobs.svg
    """
    if as_dot and as_json:
        raise click.UsageError("choose one of --dot and --json", click.get_current_context())

    async def look(mesh: Mesh) -> Graph:
        if references:
            return await graph_around(
                mesh.jobs, [job.job_id for job in await find_named(mesh.jobs, references)]
            )
        return await graph_of_open(mesh.jobs)

    found = run_beside("job graph", look)
    if as_json:
        show_one(vars(GraphView.of(found)), as_json=True)
    else:
        show_lines(dot(found) if as_dot else tree(found))
    if found.is_cut:
        click.echo(f"vox-mesh: there are more than {MAX_JOBS} jobs, and the others are not shown", err=True)


# --- what is to be done, and what went wrong -----------------------------------------------------


@click.command()
@kind_option
@limit_option
@json_option
def ready(kind: str | None, limit: int, as_json: bool) -> None:
    """List the jobs that could be claimed now: the most urgent first, then those that wait longest.

    \b
    Example:
      vox-mesh job ready --kind exec
    """
    show_jobs(run_beside("job ready", lambda mesh: ready_jobs(mesh, kind, limit)), as_json=as_json)


@click.command()
@kind_option
@limit_option
@json_option
def dead(kind: str | None, limit: int, as_json: bool) -> None:
    """List the jobs that have failed, the newest first, and why.

    \b
    Example:
      vox-mesh job dead --kind 'cortex.*'
    """

    async def look(mesh: Mesh) -> list[Job]:
        pages = list_pages(mesh.jobs, [JobState.FAILED], kind=kind, limit=limit)
        return [job async for page in pages for job in page]

    show_jobs(run_beside("job dead", look), as_json=as_json)


# --- the roster and the log ----------------------------------------------------------------------


@click.command()
@click.option("--check", "checks", is_flag=True, help="Compare, and change nothing.")
@click.option("--repair", "repairs", is_flag=True, help="Make the roster as the log has it.")
@json_option
def rebuild(checks: bool, repairs: bool, as_json: bool) -> int:
    """Follow the log from its beginning, and compare what comes of it with the roster.

    Ends with 1 if they differ, or if the log has something that the rules don't allow.

    \b
    Example:
      vox-mesh job rebuild --check
    """
    if checks == repairs:
        raise click.UsageError("choose one of --check and --repair", click.get_current_context())

    view = run_beside("job rebuild", lambda mesh: rebuild_roster(mesh, repair=repairs))
    if as_json:
        show_one(vars(view), as_json=True)
    else:
        told = [vars(each) for each in view.differences]
        lines = table(told) if told else []
        lines += [
            f"op {each.op_id} ({each.kind}) of job {each.job_id}: {each.what}" for each in view.findings
        ]
        verdict = "mended" if repairs else "found"
        show_lines([*lines, f"{verdict} {len(told)} differences between the roster and the log"])
    is_right = not view.findings and (repairs or not view.differences)
    return ExitCode.DONE if is_right else ExitCode.NO
