"""`vox-mesh job result` and `vox-mesh job artifact`: what jobs have produced."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import orjson

from vox_mesh.cli.jobs.job_options import job_argument
from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import CommandGroup, json_option, printable, show_one, show_several
from vox_mesh.cli.support.session import run_on_mesh, start_shared
from vox_mesh.errors import BadValue
from vox_mesh.jobs.proof.artifacts import Artifacts, ArtifactSource
from vox_mesh.jobs.results import find_output, outputs_of, read_result
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import Job
from vox_mesh.settings import Settings

T = TypeVar("T")

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PRIVATE: Final = 0o600


def _run(command: str, work: Callable[[Mesh, Artifacts], Coroutine[Any, Any, T]]) -> T:
    """Run the work of a command that may fetch files from nodes."""
    settings = start_shared(command)

    async def run(mesh: Mesh) -> T:
        source = await _source(mesh, settings)
        return await work(mesh, mesh.artifacts_with(lambda: source))

    return asyncio.run(run_on_mesh(settings, run))


async def _source(mesh: Mesh, settings: Settings) -> ArtifactSource | None:
    """Return where a command reads the files of other nodes, if it has the token of the mesh."""
    from vox_mesh.http.artifact_client import HttpArtifactSource  # imported late: it loads a client
    from vox_mesh.http.server import relay_keys_of
    from vox_mesh.model.base.shared_tokens import token_id
    from vox_mesh.nodes.home_token import find_token

    given = settings.token
    token = find_token(settings.home_dir) if given is None else given.get_secret_value()
    if token is None:
        return None
    await mesh.rhythm.refresh()
    mesh.messages.directory.token_id = token_id(token, *mesh.store.mesh_id)
    return HttpArtifactSource(mesh.messages.directory, relay_keys_of(mesh, token))


@click.command()
@job_argument
@click.option("--wait", "waits", is_flag=True, help="Wait until the job has ended.")
@click.option("--timeout", type=seconds, metavar="DURATION", help="Time to wait; needs --wait.")
@json_option
def result(reference: str, waits: bool, timeout: float | None, as_json: bool) -> None:
    """Print the result of a job that has succeeded.

    The result is what the handler returned, as JSON, or what the command printed on stdout. Ends with 1 if
    the job has not succeeded.

    \b
    Example:
      vox-mesh job result 298aaf4c --wait
    """
    if timeout is not None and not waits:
        raise click.UsageError("--timeout needs --wait", click.get_current_context())

    async def work(mesh: Mesh, artifacts: Artifacts) -> tuple[Job, Any]:
        job = await mesh.jobs.find(reference)
        if waits:
            try:
                job = await mesh.jobs.wait(job, timeout=timeout)
            except TimeoutError:
                job = await mesh.jobs.find(job)
        return job, await read_result(job, artifacts.body)

    job, value = _run("job result", work)
    if as_json:
        show_one({"job_id": job.job_id, "state": job.state, "result": value}, as_json=True)
    else:
        text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        click.echo("\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text)


@click.group(cls=CommandGroup, no_args_is_help=False)
def artifact() -> None:
    """List and get the artifacts of jobs."""


@artifact.command(name="list")
@job_argument
@json_option
def list_(reference: str, as_json: bool) -> None:
    """List the artifacts of a job.

    \b
    Example:
      vox-mesh job artifact list 298aaf4c
    """
    job = _run("job artifact list", lambda mesh, _: mesh.jobs.find(reference))
    show_several([each._asdict() for each in outputs_of(job).values()], as_json=as_json)


@artifact.command()
@job_argument
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="New file to write to.",
    show_default="stdout",
)
def get(reference: str, name: str, output: Path | None) -> None:
    """Write an artifact of a job to a file or to stdout.

    A large artifact is fetched from the node that has it, verified by its hash, and kept in the home. That
    needs the token of the mesh (VOX_MESH_TOKEN).

    \b
    Example:
      vox-mesh job artifact get 298aaf4c report.pdf -o report.pdf
    """

    async def work(mesh: Mesh, artifacts: Artifacts) -> Path:
        return await artifacts.path(find_output(await mesh.jobs.find(reference), name).hash)

    path = _run("job artifact get", work)
    with path.open("rb") as source:
        if output is None:
            shutil.copyfileobj(source, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        try:
            with os.fdopen(os.open(output, _NEW_FILE, _PRIVATE), "wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise BadValue(
                f"{output} can't be written: {error.strerror}", hint="pass a new file in a writable folder"
            ) from None
