"""`vox-mesh nodes`: the nodes of the mesh."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

import click

from vox_mesh.cli.support.all_scopes import all_scopes_option, show_all_scopes
from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    json_option,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import run_command
from vox_mesh.mesh import Mesh
from vox_mesh.model.nodes.liveness import STALE_MS, NodeState
from vox_mesh.nodes.nodes import Node
from vox_mesh.views.nodes import (
    AdmittedNodeView,
    NodeStanding,
    NodeView,
    RemovedNodeView,
    kinds_of,
    version_text,
    with_standings,
)

_NOT_WRITING: Final = (NodeState.CRITICAL, NodeState.DEAD)
_NO_HEARTBEAT: Final = (
    "no heartbeat advances: no node runs, or the database can't be written (such as on a full disk); "
    "run `vox-mesh doctor`"
)


@click.group(cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@click.option(
    "--stale-ms",
    type=click.IntRange(min=0),
    metavar="MS",
    default=STALE_MS,
    show_default=True,
    help="Maximum age of the heartbeat of a live node.",
)
@click.option("--all", "wants_all", is_flag=True, help="Include nodes that have left or died.")
@all_scopes_option
@json_option
@click.pass_context
def nodes(
    context: click.Context, stale_ms: int, wants_all: bool, all_scopes: bool, as_json: bool
) -> int | None:
    """List the live nodes.

    Shows the state, role, whether it is admitted, host, heartbeat age, version of the package and of the
    schema, load, activity and clock offset.

    \b
    Example:
      vox-mesh nodes --all
    """
    if context.invoked_subcommand is not None:
        if as_json or wants_all or all_scopes or stale_ms != STALE_MS:
            raise click.UsageError(f"options of `{context.invoked_subcommand}` must follow it", context)
        return None

    async def read(mesh: Mesh) -> list[tuple[Node, NodeStanding]]:
        return await _list(mesh, None if wants_all else stale_ms)

    def records(found: list[tuple[Node, NodeStanding]]) -> list[Record]:
        return [vars(NodeView.of(*each)) if as_json else _line(*each) for each in found]

    if all_scopes:
        return show_all_scopes("nodes", read, records, as_json=as_json)
    show_several(records(run_command("nodes", read)), as_json=as_json)
    return None


async def _list(mesh: Mesh, stale_ms: int | None) -> list[tuple[Node, NodeStanding]]:
    found = await (mesh.nodes.all() if stale_ms is None else mesh.nodes.live_nodes_from_db(stale_ms))
    if not found or stale_ms is None:
        _warn_if_none_writes(await mesh.nodes.all())
    return await with_standings(mesh, found)


def _warn_if_none_writes(nodes: list[Node]) -> None:
    """Warn if no node writes heartbeats: they may be up and unable to write."""
    staying = [node for node in nodes if node.left_ms is None]
    if staying and all(node.state in _NOT_WRITING for node in staying):
        click.echo(f"vox-mesh: {_NO_HEARTBEAT}", err=True)


def _line(node: Node, standing: NodeStanding) -> Record:
    """Return a node's row of the table."""
    return {
        "node_id": node.node_id,
        "state": node.state.value,
        "role": standing.role,
        "admitted": "yes" if standing.is_admitted else "no",
        "host": node.host,
        "age": f"{node.age_ms / 1_000:.1f}s",
        "version": version_text(node.version, node.schema_version),
        "load": f"{node.load}/{node.capacity}",
        "works on": node.activity or ", ".join(kinds_of(node)),
        "clock": f"{node.clock_distance_ms:+} ms",
    }


@nodes.command()
@json_option
def watch(as_json: bool) -> None:
    """Show changes of nodes as they happen, until Ctrl-C.

    A terminal shows the whole list after every change; otherwise, and with --json, each change is a line.

    \b
    Example:
      vox-mesh nodes watch
    """
    run_command("nodes watch", lambda mesh: _watch(mesh, as_json))


async def _watch(mesh: Mesh, as_json: bool) -> None:
    is_drawn = sys.stdout.isatty() and not as_json
    seen: dict[str, Record] = {}
    async with aclosing(mesh.nodes.watch()) as changes:
        async for found in changes:
            current = await with_standings(mesh, found)
            if is_drawn:
                click.clear()
                show_lines(table([_line(*each) for each in current]))
                continue
            for node, standing in current:
                state = _watched_state(node, standing)
                if seen.get(node.node_id) != state:
                    seen[node.node_id] = state
                    if as_json:
                        show_next(vars(NodeView.of(node, standing)))
                    else:
                        show_lines([_event(node, state)])


def _watched_state(node: Node, standing: NodeStanding) -> Record:
    """Return the values whose change is worth a line."""
    line = {**_line(node, standing), "incarnation": node.incarnation, "agent": node.agent_id}
    return {name: value for name, value in line.items() if name not in ("age", "clock")}


def _event(node: Node, state: Record) -> str:
    time = datetime.fromtimestamp(node.now_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return "  ".join((time, *table([state])[1].split("  ")))


@nodes.command()
@click.argument("node")
@click.option("--key", help="Public key, ed25519:<hex>.", show_default="the key that the node presented")
@json_option
def rekey(node: str, key: str | None, as_json: bool) -> None:
    """Accept a new key for a known node.

    Only the owner of the mesh may do this. First compare the key with the one in NODE's error message.

    \b
    Example:
      vox-mesh nodes rekey builder-1
    """
    show_one(vars(run_command("nodes rekey", lambda mesh: mesh.roles.accept_key(node, key))), as_json=as_json)


@nodes.command()
@click.argument("node")
@click.option("--key", help="Public key, ed25519:<hex>.", show_default="the key that the node presented")
@json_option
def admit(node: str, key: str | None, as_json: bool) -> None:
    """Admit a node, which then joins a strict mesh.

    Only the owner of the mesh may do this. First compare the key with the one in NODE's error message.

    \b
    Example:
      vox-mesh nodes admit builder-1
    """
    admitted = run_command("nodes admit", lambda mesh: mesh.grants.admit_node(node, key))
    show_one(vars(AdmittedNodeView(*admitted)), as_json=as_json)


@nodes.command()
@click.argument("node")
@json_option
def remove(node: str, as_json: bool) -> None:
    """Remove a node that has died or left from the lists.

    A live node is refused. The keys of NODE and its entries in the log stay. If it comes back, it joins
    again.

    \b
    Example:
      vox-mesh nodes remove builder-1
    """
    op_id = run_command("nodes remove", lambda mesh: mesh.nodes.remove(node))
    show_one(vars(RemovedNodeView(op_id, node)), as_json=as_json)
