"""`vox-mesh git export` and `git import`: jobs as refs of a git repository."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import CommandGroup, json_option, printable, show_lines, show_one
from vox_mesh.cli.support.session import run_on_mesh, start_shared
from vox_mesh.jobs.git.job_refs import Refusal
from vox_mesh.jobs.git.repository import GitRepository

if TYPE_CHECKING:
    from vox_mesh.mesh import Mesh

Report = TypeVar("Report")

_repo_option = click.option(
    "--repo",
    "folder",
    type=click.Path(path_type=Path),
    default=".",
    show_default="the current folder",
    metavar="DIR",
    help="Repository, with or without a work tree.",
)


@click.group(cls=CommandGroup, no_args_is_help=False)
def git() -> None:
    """Export jobs to a git repository, and import them."""


def _run(
    command: str, folder: Path, work: Callable[[Mesh, GitRepository], Coroutine[Any, Any, Report]]
) -> Report:
    settings = start_shared(command)

    async def run() -> Report:
        repository = await GitRepository.open(folder)
        return await run_on_mesh(settings, lambda mesh: work(mesh, repository))

    return asyncio.run(run())


@git.command()
@_repo_option
@json_option
def export(folder: Path, as_json: bool) -> int:
    """Write jobs, claims and results to refs of a repository.

    Refs are below refs/gatos/jobs/. An export writes only what is missing, and running it again changes
    nothing. Ends with 1 if a job was refused.

    \b
    Example:
      vox-mesh git export --repo ../audit
    """
    report = _run("git export", folder, lambda mesh, repository: mesh.job_exporter(repository).run())
    if as_json:
        show_one(_document(report), as_json=True)
    else:
        lines = [f"jobs: {report.jobs}, refs created: {report.created}, claims deleted: {report.deleted}"]
        if report.missing_artifacts:
            lines.append(f"outputs named by their hash only: {report.missing_artifacts}")
        show_lines([*lines, *_refusals(report.refused)])
    return ExitCode.NO if report.refused else ExitCode.DONE


@git.command(name="import")
@_repo_option
@json_option
def import_(folder: Path, as_json: bool) -> int:
    """Schedule the jobs of a repository, and take results.

    A manifest must have the id that its ref names. A result must be signed with the key that this mesh
    trusts for its worker. All else is refused by name. Ends with 1 if something was refused.

    \b
    Example:
      vox-mesh git import --repo ../audit
    """
    report = _run("git import", folder, lambda mesh, repository: mesh.job_importer(repository).run())
    if as_json:
        show_one(_document(report), as_json=True)
    else:
        counts = f"scheduled: {len(report.scheduled)}, completed: {len(report.completed)}"
        others = f"unchanged: {report.unchanged}, skipped: {report.skipped}"
        show_lines([f"{counts}, {others}", *_refusals(report.refused)])
    return ExitCode.NO if report.refused else ExitCode.DONE


def _refusals(refused: Sequence[Refusal]) -> list[str]:
    return [printable(f"refused: {each.name}: {each.reason}") for each in refused]


def _document(report: Any) -> dict[str, Any]:
    return {**asdict(report), "refused": [each._asdict() for each in report.refused]}
