"""`vox-mesh nodes`: who is here."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

import click

from vox_mesh.cli.support.output import (
    Record,
    json_option,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.start import start_shared
from vox_mesh.mesh import Mesh
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.nodes import STALE_MS, Node
from vox_mesh.settings import Settings
from vox_mesh.views.nodes import NodeView, kinds_of, with_roles

_SILENT: Final = (NodeState.CRITICAL, NodeState.DEAD)
_NO_HEARTBEAT: Final = (
    "no heartbeat advances: either no node runs, or the database cannot be written "
    "(such as on a full disk); run `vox-mesh doctor`"
)


@click.group(invoke_without_command=True, no_args_is_help=False)
@click.option(
    "--stale-ms",
    type=click.IntRange(min=0),
    metavar="MS",
    default=STALE_MS,
    show_default=True,
    help="How long a node may have been silent and still count as live.",
)
@click.option("--all", "wants_all", is_flag=True, help="Also those that have left or died.")
@json_option
@click.pass_context
def nodes(context: click.Context, stale_ms: int, wants_all: bool, as_json: bool) -> None:
    """List the live nodes: state, role, host, age, load, what each works on, and its clock's distance.

    \b
    Example:
      vox-mesh nodes --all
    """
    if context.invoked_subcommand is not None:
        if as_json or wants_all or stale_ms != STALE_MS:
            raise click.UsageError(f"options of `{context.invoked_subcommand}` stand after it", context)
        return
    found = asyncio.run(_listed(start_shared("nodes"), None if wants_all else stale_ms))
    show_several([vars(NodeView.of(*each)) if as_json else _line(*each) for each in found], as_json=as_json)


async def _listed(settings: Settings, stale_ms: int | None) -> list[tuple[Node, str]]:
    async with Mesh.open_command(settings) as mesh:
        found = await (mesh.nodes.all() if stale_ms is None else mesh.nodes.live_nodes_from_db(stale_ms))
        if not found or stale_ms is None:
            _note_silence(await mesh.nodes.all())
        return await with_roles(mesh, found)


def _note_silence(nodes: list[Node]) -> None:
    """Say so if all nodes fell silent: they may live, and have no place to write their heartbeats."""
    staying = [node for node in nodes if node.left_ms is None]
    if staying and all(node.state in _SILENT for node in staying):
        click.echo(f"vox-mesh: {_NO_HEARTBEAT}", err=True)


def _line(node: Node, role: str) -> Record:
    """A node as people want to see it."""
    return {
        "node_id": node.node_id,
        "state": node.state.value,
        "role": role,
        "host": node.host,
        "age": f"{node.age_ms / 1_000:.1f}s",
        "load": f"{node.load}/{node.capacity}",
        "works on": node.activity or ", ".join(kinds_of(node)),
        "clock": f"{node.clock_distance_ms:+} ms",
    }


@nodes.command()
@json_option
def watch(as_json: bool) -> None:
    """Show who comes, leaves, falls silent or does something else, as it happens, until Ctrl-C.

    In a terminal the list is drawn anew with every change; otherwise, and with --json, each change is a line.

    \b
    Example:
      vox-mesh nodes watch
    """
    asyncio.run(_watch(start_shared("nodes watch"), as_json))


async def _watch(settings: Settings, as_json: bool) -> None:
    is_drawn = sys.stdout.isatty() and not as_json
    seen: dict[str, Record] = {}
    async with Mesh.open_command(settings) as mesh, aclosing(mesh.nodes.watch()) as changes:
        async for found in changes:
            told = await with_roles(mesh, found)
            if is_drawn:
                click.clear()
                show_lines(table([_line(*each) for each in told]))
                continue
            for node, role in told:
                now = _standing(node, role)
                if seen.get(node.node_id) != now:
                    seen[node.node_id] = now
                    if as_json:
                        show_next(vars(NodeView.of(node, role)))
                    else:
                        show_lines([_event(node, now)])


def _standing(node: Node, role: str) -> Record:
    """What makes a node worth a line when it changes."""
    line = {**_line(node, role), "incarnation": node.incarnation, "agent": node.agent_id}
    return {name: value for name, value in line.items() if name not in ("age", "clock")}


def _event(node: Node, standing: Record) -> str:
    time = datetime.fromtimestamp(node.now_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return "  ".join((time, *table([standing])[1].split("  ")))


@nodes.command()
@click.argument("node")
@click.option("--key", help="The public key, ed25519:<hex>; without it, the one that the node came with.")
@json_option
def rekey(node: str, key: str | None, as_json: bool) -> None:
    """Accept a new key for NODE, which is known with another. Only the owner of the mesh may.

    Make sure that it is NODE's: compare the key with the one that NODE says it was refused with.

    \b
    Example:
      vox-mesh nodes rekey builder-1
    """
    show_one(asyncio.run(_rekey(start_shared("nodes rekey"), node, key)), as_json=as_json)


async def _rekey(settings: Settings, node: str, key: str | None) -> Record:
    async with Mesh.open_command(settings) as mesh:
        return vars(await mesh.roles.accept_key(node, key))
