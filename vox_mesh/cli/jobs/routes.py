"""`vox-mesh route`: which kinds of job go to one node only."""

from __future__ import annotations

import click

from vox_mesh.cli.support.output import json_option, show_one, show_several
from vox_mesh.cli.support.session import run_beside
from vox_mesh.views.nodes import RoutedView, routes_of


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
    op = run_beside("route set", lambda mesh: mesh.roles.set_route(kind, node))
    show_one(vars(RoutedView(op.key, kind, node)), as_json=as_json)


@route.command()
@click.argument("kind")
@json_option
def clear(kind: str, as_json: bool) -> None:
    """Have jobs of KIND go anywhere again, as far as no other route is for them.

    \b
    Example:
      vox-mesh route clear 'cortex.extract.*'
    """
    op = run_beside("route clear", lambda mesh: mesh.roles.clear_route(kind))
    show_one(vars(RoutedView(op.key, kind, None)), as_json=as_json)


@route.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the routes, and the state of the nodes that they lead to.

    \b
    Example:
      vox-mesh route list
    """
    found = run_beside("route list", routes_of)
    show_several([vars(each) for each in found], as_json=as_json)
