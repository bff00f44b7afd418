"""`vox-mesh worker`: processes that work on jobs, and who takes no more."""

from __future__ import annotations

import click

from vox_mesh.cli.beside import run_beside
from vox_mesh.cli.nodes import kinds_of
from vox_mesh.cli.output import Record, json_option, show_one, show_several
from vox_mesh.cli.worker_run import run
from vox_mesh.coordination.nodes import Node
from vox_mesh.errors import NotKnown
from vox_mesh.jobs.roster import Situation
from vox_mesh.mesh import Mesh
from vox_mesh.model.liveness import State


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
    show_one(run_beside("worker drain", lambda mesh: _drain(mesh, node, undo)), as_json=as_json)


async def _drain(mesh: Mesh, node_id: str, undo: bool) -> Record:
    node = await mesh.nodes.find(node_id)
    if node is None:
        raise NotKnown(f"no node {node_id!r} was ever here", hint="see `vox-mesh nodes --all`")
    await (mesh.job_kinds.undrain(node_id) if undo else mesh.job_kinds.drain(node_id))
    return _record(node, await mesh.jobs.roster.situation())


@worker.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the workers: the kinds they work on, how many jobs they have room for, and have in hand.

    Nodes that are gone are listed as long as they have jobs in hand, or are not to take any.

    \b
    Example:
      vox-mesh worker list
    """
    found = run_beside("worker list", _listed)
    if not as_json:
        found = [{**each, "kinds": ", ".join(each["kinds"])} for each in found]
    show_several(found, as_json=as_json)


async def _listed(mesh: Mesh) -> list[Record]:
    situation = await mesh.jobs.roster.situation()
    return [
        _record(node, situation)
        for node in await mesh.nodes.all()
        if (node.capacity and node.state not in (State.DEAD, State.LEFT))
        or node.node_id in situation.places
        or node.node_id in situation.drains
    ]


def _record(node: Node, situation: Situation) -> Record:
    return {
        "node_id": node.node_id,
        "state": node.state.value,
        "kinds": kinds_of(node),
        "capacity": node.capacity,
        "in_hand": situation.places.get(node.node_id, 0),
        "draining": node.node_id in situation.drains,
    }
