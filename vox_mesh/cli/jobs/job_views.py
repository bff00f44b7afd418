"""`vox-mesh job logs`, `graph`, `ready`, `dead`, `rebuild`, `verify`, `bundle`: views and proofs of jobs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from vox_mesh.cli.jobs.job_options import job_argument, kind_option, limit_option
from vox_mesh.cli.jobs.job_output import dot, show_jobs, tree
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import (
    Record,
    fields,
    json_option,
    printable,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import run_command, run_on_mesh, start_quickly, start_shared
from vox_mesh.errors import BadValue, ExportRefused
from vox_mesh.jobs.batches import find_named, list_pages
from vox_mesh.jobs.progress import Piece
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.keys import is_public_key
from vox_mesh.model.jobs.bundle import check_bundle
from vox_mesh.model.jobs.job_filter import JobFilter
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.views.graphs.job_graph import MAX_JOBS, Graph, GraphView, graph_around, graph_of_open
from vox_mesh.views.jobs import PieceView, bundle_proof, ready_jobs, rebuild_roster, verify_proof

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

_PAGE_SIZE: Final = 100
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PRIVATE: Final = 0o600


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
        pages = list_pages(mesh.jobs, [JobState.FAILED], JobFilter(kind), limit=limit)
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


# --- proofs --------------------------------------------------------------------------------------


_FILE = click.Path(path_type=Path)
_archive_option = click.option(
    "--archive",
    "place",
    metavar="PATH|URL",
    help="Archive of the log with the ops of pruned jobs.",
    show_default="VOX_ARCHIVE_DIR or VOX_ARCHIVE_URL",
)


def _settings_with(command: str, place: str | None) -> Settings:
    """Start a command that reads the archive at this place; without one, the archive of the settings."""
    if place is None:
        return start_quickly(command)
    is_url = "://" in place
    values = {
        "archive_dir": None if is_url else Path(place).absolute(),
        "archive_url": place if is_url else None,
    }
    return start_shared(command, **values)


@click.command()
@click.argument("reference", required=False, metavar="[JOB]")
@click.option("--file", type=_FILE, help="File written by `vox-mesh job bundle`.")
@click.option(
    "--key", metavar="ed25519:HEX", help="With --file: public key of the worker that must have signed."
)
@_archive_option
@json_option
def verify(
    reference: str | None, file: Path | None, key: str | None, place: str | None, as_json: bool
) -> int:
    """Verify the proof of a job and its outputs.

    Ends with 0 if the proof holds; otherwise with 1 and a list of faults. --file needs no database and no
    settings: pass the worker's key, as you know it, with --key. Ops of a pruned job that were deleted from
    the database are read from the archive of the log, whose files must be the recorded ones.

    \b
    Example:
      vox-mesh job verify --file bundle.json --key ed25519:3b6a...
    """
    if (reference is None) == (file is None):
        raise click.UsageError("pass either JOB or --file", click.get_current_context())
    if place is not None and file is not None:
        raise click.UsageError("--archive and --file can't be used together", click.get_current_context())
    if key is not None and file is None:
        raise click.UsageError("--key needs --file", click.get_current_context())
    if key is not None and not is_public_key(key):
        raise click.BadParameter(f"must be ed25519: and 64 hex digits, got {key!r}", param_hint="--key")
    view: Record
    if file is not None:
        faults, remarks = check_bundle(_read(file), worker_key=key)
        view = {"file": str(file), "valid": not faults, "faults": faults, "remarks": remarks}
    else:
        settings = _settings_with("job verify", place)
        view = vars(asyncio.run(run_on_mesh(settings, lambda mesh: verify_proof(mesh, str(reference)))))
    is_valid, faults, remarks = view["valid"], view["faults"], view["remarks"]
    if as_json:
        show_one(view, as_json=True)
    else:
        about = {name: view[name] for name in ("file", "job_id", "state", "trailers") if view.get(name)}
        verdict = "the proof holds" if is_valid else "the proof does not hold"
        lines = [f"wrong: {each}" for each in faults] + [f"note: {each}" for each in remarks]
        show_lines([*fields(about), *map(printable, lines), verdict])
    return ExitCode.DONE if is_valid else ExitCode.NO


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadValue(f"{file} can't be read: {error.strerror}", hint="pass another file") from None


@click.command()
@job_argument
@click.option("-o", "--output", "file", type=_FILE, help="New file for the bundle.", show_default="stdout")
@_archive_option
@json_option
def bundle(reference: str, file: Path | None, place: str | None, as_json: bool) -> int:
    """Write a bundle to verify a job's proof elsewhere.

    It has the manifest, the proof and the outputs; an output that is not here, or too large, is represented
    by its hash. Only you can read the file. A bundle must not be changed, not even by a line break. A proof
    that does not hold is not bundled: it ends with 1, as `vox-mesh job verify` would.

    \b
    Example:
      vox-mesh job bundle 298aaf4c -o bundle.json
    """
    settings = _settings_with("job bundle", place)
    job_id, text, faults = asyncio.run(run_on_mesh(settings, lambda mesh: bundle_proof(mesh, reference)))
    if faults:
        for each in faults:
            click.echo(f"vox-mesh: {printable(each)}", err=True)
        return ExitCode.NO
    content = text.encode()
    if file is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return ExitCode.DONE
    _write(file, content)
    show_one({"job_id": job_id, "file": str(file), "bytes": len(content)}, as_json=as_json)
    return ExitCode.DONE


def _write(file: Path, content: bytes) -> None:
    try:
        descriptor = os.open(file, _NEW_FILE, _PRIVATE)
        with os.fdopen(descriptor, "wb") as new:
            new.write(content)
    except FileExistsError:
        raise ExportRefused(f"{file} already exists", hint="pass a new file") from None
    except OSError as error:
        raise BadValue(f"{file} can't be written: {error.strerror}", hint="pass another file") from None
