"""`vox-mesh roles`: who owns the mesh, and whom the owner has put in charge of what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import click

from vox_mesh.cli.output import json_option, show_one
from vox_mesh.cli.start import start_shared
from vox_mesh.coordination.roles import Coordinator
from vox_mesh.errors import Refused
from vox_mesh.mesh import Mesh
from vox_mesh.settings import Settings


@click.group(no_args_is_help=False)
def roles() -> None:
    """Show the owner, the coordinator and the routes, and designate a coordinator."""


@roles.command()
@json_option
def show(as_json: bool) -> None:
    """Show the owner of the mesh, the coordinator and the routes.

    A coordinator that has died or left is said to drift; nobody takes its place until the owner says so.

    \b
    Example:
      vox-mesh roles show --json
    """
    record = asyncio.run(_show(start_shared("roles show")))
    show_one(record if as_json else {**record, "routes": record["routes"] or None}, as_json=as_json)


async def _show(settings: Settings) -> dict[str, Any]:
    async with Mesh.open_command(settings) as mesh:
        owner = await mesh.roles.owner()
        coordinator = await mesh.roles.coordinator()
        routes = await mesh.roles.routes()
    return {
        "owner": None if owner is None else owner._asdict(),
        "coordinator": None if coordinator is None else _told(coordinator),
        "routes": routes,
    }


def _told(coordinator: Coordinator) -> dict[str, Any]:
    return {
        "node_id": coordinator.node_id,
        "state": "unknown" if coordinator.node is None else coordinator.node.state.value,
        "drift": coordinator.is_drifting,
        "op_id": coordinator.op_id,
        "hlc": coordinator.hlc,
    }


@roles.command()
@click.argument("node")
@json_option
def designate_coordinator(node: str, as_json: bool) -> None:
    """Make NODE the coordinator. Only the owner of the mesh may.

    \b
    Example:
      vox-mesh roles designate-coordinator builder-1
    """
    settings = start_shared("roles designate-coordinator")
    show_one(asyncio.run(_designate(settings, node)), as_json=as_json)


async def _designate(settings: Settings, node: str) -> dict[str, Any]:
    async with Mesh.open_command(settings) as mesh, explaining_refusals(mesh):
        op = await mesh.roles.designate_coordinator(node)
        return {"op_id": op.key, "node_id": node, "role": "coordinator"}


@asynccontextmanager
async def explaining_refusals(mesh: Mesh) -> AsyncIterator[None]:
    """Add what to do to a refusal of what only the owner may do."""
    try:
        yield
    except Refused as refused:
        owner = await mesh.roles.owner()
        if refused.reason == "the_owner_keeps_its_key":
            refused.hint = "put the owner's key.pem back: its key is what the mesh knows it by"
        elif refused.reason != "not_the_owner":
            refused.hint = "stop that node first"
        elif owner is None:
            refused.hint = "the mesh has no owner yet: the first node that is started becomes it"
        else:
            refused.hint = f"the owner of the mesh is {owner.node_id}: run this there, with its key"
        raise
