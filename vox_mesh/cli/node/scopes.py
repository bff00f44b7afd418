"""`vox-mesh scopes`: the scopes of the directory, their databases and whether these can be reached."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command, run_on_mesh, start_for_scopes, start_shared
from vox_mesh.errors import BadValue
from vox_mesh.messages.outbound import count_outbound

if TYPE_CHECKING:
    from vox_mesh.mesh import Mesh
    from vox_mesh.runtime.scopes import ScopeAnswer
    from vox_mesh.settings import Settings


@click.group(cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@json_option
@click.pass_context
def scopes(context: click.Context, as_json: bool) -> None:
    """List the scopes of VOX_DB_URLS and their databases.

    Shows whether each database can be reached, the live nodes of the scope, and how many of its messages
    wait to be forwarded to other scopes. Ends with 0 even if a database can't be reached.

    \b
    Example:
      vox-mesh scopes --json
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"options of `{context.invoked_subcommand}` must follow it", context)
        return
    from vox_mesh.runtime.scopes import read_scopes

    settings = start_for_scopes("scopes")
    answers = asyncio.run(read_scopes(settings, lambda each: run_on_mesh(each, _look)))
    show_several([_record(settings, each) for each in answers], as_json=as_json)


class _Seen(NamedTuple):
    """The live nodes of a scope, and how many of its messages wait to be forwarded."""

    nodes: list[str]
    outbound: int


async def _look(mesh: Mesh) -> _Seen:
    nodes = [node.node_id for node in await mesh.nodes.live_nodes_from_db()]
    return _Seen(nodes, await count_outbound(mesh.store, None))


def _record(settings: Settings, answer: ScopeAnswer[_Seen]) -> dict[str, Any]:
    assert settings.directory is not None
    seen = answer.result
    return {
        "scope": answer.scope,
        "database": settings.directory.entry(answer.scope).url,
        "state": "reachable" if answer.error is None else answer.error.code,
        "nodes": None if seen is None else ", ".join(seen.nodes),
        "outbound": None if seen is None else seen.outbound,
        "error": None if answer.error is None else str(answer.error),
    }


@scopes.command()
@json_option
def trusted(as_json: bool) -> None:
    """List the scopes that may send messages to this one.

    \b
    Example:
      vox-mesh scopes trusted
    """
    found = run_command("scopes trusted", lambda mesh: mesh.roles.trusted_scopes())
    rows = [{"scope": scope, "owner_key": key} for scope, key in found.keys.items()]
    show_several(rows, as_json=as_json)


@scopes.command()
@click.argument("scope")
@click.option("--key", help="Its owner's public key, ed25519:<hex>.", show_default="as its database has it")
@json_option
def trust(scope: str, key: str | None, as_json: bool) -> None:
    """Let the agents of SCOPE send messages to this one.

    Only the owner of this scope, the one in VOX_MESH_SCOPE_ID, may do this. Compare the key with the one that
    the owner of SCOPE tells you: messages are refused if its mesh has another owner.

    \b
    Example:
      vox-mesh scopes trust west
    """
    settings = start_shared("scopes trust")
    if settings.directory is None or scope == settings.scope_id or scope not in settings.directory.names:
        raise BadValue(
            f"scope {scope!r} is not another one in VOX_DB_URLS", hint="see `vox-mesh scopes` for all"
        )
    owner_key = key or asyncio.run(run_on_mesh(start_for_scopes("scopes trust").in_scope(scope), _owner_key))
    if owner_key is None:
        raise BadValue(
            f"scope {scope!r} has no owner yet", hint="start a node there first, or pass --key KEY"
        )
    asyncio.run(run_on_mesh(settings, lambda mesh: mesh.roles.trust_scope(scope, owner_key)))
    show_one({"scope": scope, "owner_key": owner_key}, as_json=as_json)


async def _owner_key(mesh: Mesh) -> str | None:
    return await mesh.ownership.key()


@scopes.command()
@click.argument("scope")
@json_option
def untrust(scope: str, as_json: bool) -> None:
    """Refuse messages from SCOPE from now on.

    Only the owner of this scope may do this. Messages that were stored before are still delivered.

    \b
    Example:
      vox-mesh scopes untrust west
    """
    run_command("scopes untrust", lambda mesh: mesh.roles.trust_scope(scope, None))
    show_one({"scope": scope, "owner_key": None}, as_json=as_json)
