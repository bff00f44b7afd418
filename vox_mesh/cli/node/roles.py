"""`vox-mesh roles`: who owns the mesh, and whom the owner has put in charge of what."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import click

from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.start import start_shared
from vox_mesh.mesh import Mesh
from vox_mesh.settings import Settings
from vox_mesh.views.nodes import DesignatedView, roles_of


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
        return asdict(await roles_of(mesh))


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
    async with Mesh.open_command(settings) as mesh:
        op = await mesh.roles.designate_coordinator(node)
        return vars(DesignatedView(op.key, node))
