"""`vox-mesh roles` and `route`: the roles of nodes, and the routes of job kinds."""

from __future__ import annotations

from dataclasses import asdict

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command
from vox_mesh.views.roles import DesignatedView, RoutedView, roles_of, routes_of


@click.group(cls=CommandGroup, no_args_is_help=False)
def roles() -> None:
    """Show the roles of nodes, and designate a coordinator."""


@roles.command()
@json_option
def show(as_json: bool) -> None:
    """Show the owner, the coordinator and the routes.

    A coordinator that has died or left is shown as drifting: only the owner can replace it.

    \b
    Example:
      vox-mesh roles show --json
    """
    record = asdict(run_command("roles show", roles_of))
    show_one(record if as_json else {**record, "routes": record["routes"] or None}, as_json=as_json)


@roles.command()
@click.argument("node")
@json_option
def designate_coordinator(node: str, as_json: bool) -> None:
    """Make a node the coordinator.

    Only the owner of the mesh may do this.

    \b
    Example:
      vox-mesh roles designate-coordinator builder-1
    """
    op = run_command("roles designate-coordinator", lambda mesh: mesh.roles.designate_coordinator(node))
    show_one(vars(DesignatedView(op.key, node)), as_json=as_json)


# --- routes --------------------------------------------------------------------------------------


@click.group(cls=CommandGroup, no_args_is_help=False)
def route() -> None:
    """Route kinds of job to one node.

    Only the owner of the mesh may change routes. KIND is a kind such as cortex.extract, a pattern such as
    cortex.* for all kinds below one, or * for every kind. The most specific route of a job applies.
    """


@route.command(name="set")
@click.argument("kind")
@click.argument("node")
@json_option
def set_(kind: str, node: str, as_json: bool) -> None:
    """Route jobs of a kind to one node only.

    Jobs that other nodes already run stay there.

    \b
    Example:
      vox-mesh route set 'cortex.extract.*' builder-1
    """
    op = run_command("route set", lambda mesh: mesh.roles.set_route(kind, node))
    show_one(vars(RoutedView(op.key, kind, node)), as_json=as_json)


@route.command()
@click.argument("kind")
@json_option
def clear(kind: str, as_json: bool) -> None:
    """Remove the route of a kind.

    Its jobs go to any node again, unless another route matches them.

    \b
    Example:
      vox-mesh route clear 'cortex.extract.*'
    """
    op = run_command("route clear", lambda mesh: mesh.roles.clear_route(kind))
    show_one(vars(RoutedView(op.key, kind, None)), as_json=as_json)


@route.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the routes and the states of their nodes.

    \b
    Example:
      vox-mesh route list
    """
    show_several([vars(each) for each in run_command("route list", routes_of)], as_json=as_json)
