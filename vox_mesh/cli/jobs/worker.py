"""`vox-mesh worker`: processes that work on jobs, and who takes no more."""

from __future__ import annotations

import click

from vox_mesh.cli.jobs.worker_run import run
from vox_mesh.cli.support.output import json_option, show_one, show_several
from vox_mesh.cli.support.session import run_beside
from vox_mesh.mesh import Mesh
from vox_mesh.views.jobs import WorkerView, find_worker, workers


@click.group(no_args_is_help=False)
def worker() -> None:
    """Run a worker, list the workers, and have one take no more jobs."""


worker.add_command(run)


@worker.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Have it take jobs again.")
@json_option
def drain(node: str, undo: bool, as_json: bool) -> None:
    """Have NODE take no more jobs, until this is undone; what it has in hand goes on.

    \b
    Example:
      vox-mesh worker drain builder-1
    """
    show_one(vars(run_beside("worker drain", lambda mesh: _drain(mesh, node, undo))), as_json=as_json)


async def _drain(mesh: Mesh, node_id: str, undo: bool) -> WorkerView:
    await find_worker(mesh, node_id)  # or say that there is none
    await (mesh.job_kinds.undrain(node_id) if undo else mesh.job_kinds.drain(node_id))
    return await find_worker(mesh, node_id)


@worker.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the workers: the kinds they work on, how many jobs they have room for, and have in hand.

    Nodes that are gone are listed as long as they have jobs in hand, or are not to take any.

    \b
    Example:
      vox-mesh worker list
    """
    found = [vars(each) for each in run_beside("worker list", workers)]
    if not as_json:
        found = [{**each, "kinds": ", ".join(each["kinds"])} for each in found]
    show_several(found, as_json=as_json)
