"""`vox-mesh roles` and `route`: the roles of nodes, and the routes of job kinds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_one, show_several
from vox_mesh.cli.support.recovery_keys import KEY_FILE, given_recovery_key, new_recovery_key
from vox_mesh.cli.support.session import run_command, start_quickly
from vox_mesh.mesh import Mesh
from vox_mesh.model.oplog.authorship import Owner
from vox_mesh.views.roles import (
    DesignatedView,
    OfferView,
    OwnerView,
    RecoveryKeyView,
    RoutedView,
    roles_of,
    routes_of,
)


@click.group(cls=CommandGroup, no_args_is_help=False)
def roles() -> None:
    """Show the roles of nodes, and change, pass on or recover them."""


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


@roles.command()
@click.option(
    "--recovery-key-file", "path", type=KEY_FILE, help="New file for the key.", show_default="the terminal"
)
@json_option
def recovery_key(path: Path | None, as_json: bool) -> None:
    """Make a new recovery key; the old one is void.

    Only the owner of the mesh may do this. The key makes another node the owner if this one's disk is lost.
    It is shown once, on a terminal only, and stored nowhere.

    \b
    Example:
      vox-mesh roles recovery-key
    """
    command, option = "roles recovery-key", "--recovery-key-file"
    home = start_quickly(command).home_dir
    with new_recovery_key(path, home, as_json=as_json, option=option) as new:
        op = run_command(command, lambda mesh: mesh.recovery.replace_key(new))
        show_one(vars(RecoveryKeyView(op.key, None if path is None else str(path))), as_json=as_json)


@roles.command()
@click.option(
    "--recovery-key-file",
    "path",
    type=KEY_FILE,
    help="File with the key; - is stdin.",
    show_default="a prompt",
)
@click.option(
    *("--new-recovery-key-file", "new_path"),
    type=KEY_FILE,
    help="New file for the next key.",
    show_default="the terminal",
)
@json_option
def recover(path: Path | None, new_path: Path | None, as_json: bool) -> None:
    """Make this node the owner, with the recovery key.

    For a mesh whose owner lost its disk. The acts of the old owner stay in force, later ones do not count.
    The recovery key is used up, and the next one is shown once, on a terminal only.

    \b
    Example:
      vox-mesh roles recover
    """
    command, option = "roles recover", "--new-recovery-key-file"
    home = start_quickly(command).home_dir
    with new_recovery_key(new_path, home, as_json=as_json, option=option) as new:
        given = given_recovery_key(path)
        owner = run_command(command, lambda mesh: mesh.recovery.recover(given, new))
        show_one(vars(OwnerView.from_record(owner)), as_json=as_json)


@roles.command()
@click.argument("node")
@json_option
def transfer_ownership(node: str, as_json: bool) -> None:
    """Offer the ownership of the mesh to a node.

    Only the owner may do this. NODE becomes the owner when `vox-mesh roles accept-ownership` is run there.
    What the owner does in between does not count. `vox-mesh roles recovery-key` withdraws the offer.

    \b
    Example:
      vox-mesh roles transfer-ownership builder-2
    """
    op = run_command("roles transfer-ownership", lambda mesh: mesh.recovery.offer(node))
    show_one(vars(OfferView(op.key, node)), as_json=as_json)


@roles.command()
@click.option(
    "--recovery-key-file", "path", type=KEY_FILE, help="New file for the key.", show_default="the terminal"
)
@json_option
def accept_ownership(path: Path | None, as_json: bool) -> None:
    """Make this node the owner, as the owner has offered.

    A new recovery key is shown once, on a terminal only, and stored nowhere.

    \b
    Example:
      vox-mesh roles accept-ownership
    """
    command, option = "roles accept-ownership", "--recovery-key-file"
    home = start_quickly(command).home_dir

    async def accept(mesh: Mesh) -> Owner:
        owner = await mesh.recovery.accept()
        await mesh.recovery.replace_key(new)
        return owner

    with new_recovery_key(path, home, as_json=as_json, option=option) as new:
        owner = run_command(command, accept)
        show_one(vars(OwnerView.from_record(owner)), as_json=as_json)


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
