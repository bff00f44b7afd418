"""`vox-mesh route`: which kinds of job go to one node only."""

from __future__ import annotations

import click

from vox_mesh.cli.beside import run_beside
from vox_mesh.cli.output import Record, json_option, show_one, show_several
from vox_mesh.cli.roles import explaining_refusals
from vox_mesh.errors import NotKnown
from vox_mesh.mesh import Mesh


@click.group(no_args_is_help=False)
def route() -> None:
    """Have kinds of job go to one node only. Only the owner of the mesh may.

    KIND is a kind, as in cortex.extract, all kinds below one, as in cortex.*, or * for all there are. Of
    several routes for a job, that of the pattern which says most is in force.
    """


@route.command(name="set")
@click.argument("kind")
@click.argument("node")
@json_option
def set_(kind: str, node: str, as_json: bool) -> None:
    """Have jobs of KIND go to NODE only; those that others have in hand stay there.

    \b
    Example:
      vox-mesh route set 'cortex.extract.*' builder-1
    """
    show_one(run_beside("route set", lambda mesh: _set(mesh, kind, node)), as_json=as_json)


async def _set(mesh: Mesh, kind: str, node_id: str) -> Record:
    if await mesh.nodes.find(node_id) is None:
        raise NotKnown(f"no node {node_id!r} was ever here", hint="see `vox-mesh nodes --all`")
    return await _said(mesh, kind, node_id)


async def _said(mesh: Mesh, kind: str, node_id: str | None) -> Record:
    async with explaining_refusals(mesh):
        op = await mesh.roles.route_kind(kind, node_id)
    return {"op_id": op.key, "kind": kind, "node_id": node_id}


@route.command()
@click.argument("kind")
@json_option
def clear(kind: str, as_json: bool) -> None:
    """Have jobs of KIND go anywhere again, as far as no other route is for them.

    \b
    Example:
      vox-mesh route clear 'cortex.extract.*'
    """
    show_one(run_beside("route clear", lambda mesh: _clear(mesh, kind)), as_json=as_json)


async def _clear(mesh: Mesh, kind: str) -> Record:
    if kind not in await mesh.roles.routes():
        raise NotKnown(f"there is no route for {kind}", hint="see `vox-mesh route list`")
    return await _said(mesh, kind, None)


@route.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the routes, and the state of the nodes that they lead to.

    \b
    Example:
      vox-mesh route list
    """
    show_several(run_beside("route list", _listed), as_json=as_json)


async def _listed(mesh: Mesh) -> list[Record]:
    states = {node.node_id: node.state.value for node in await mesh.nodes.all()}
    return [
        {"kind": kind, "node_id": node_id, "state": states.get(node_id, "unknown")}
        for kind, node_id in (await mesh.roles.routes()).items()
    ]
