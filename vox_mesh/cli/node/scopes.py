"""`vox-mesh scopes`: the scopes of the directory, their databases and whether these can be reached."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_several
from vox_mesh.cli.support.session import run_on_mesh, start_for_scopes

if TYPE_CHECKING:
    from vox_mesh.mesh import Mesh
    from vox_mesh.runtime.scopes import ScopeAnswer
    from vox_mesh.settings import Settings


@click.group(cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@json_option
@click.pass_context
def scopes(context: click.Context, as_json: bool) -> None:
    """List the scopes of VOX_DB_URLS and their databases.

    Shows whether each database can be reached, and the live nodes of the scope. Ends with 0 even if a
    database can't be reached.

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
    answers = asyncio.run(read_scopes(settings, lambda each: run_on_mesh(each, _live_nodes)))
    show_several([_record(settings, each) for each in answers], as_json=as_json)


async def _live_nodes(mesh: Mesh) -> list[str]:
    return [node.node_id for node in await mesh.nodes.live_nodes_from_db()]


def _record(settings: Settings, answer: ScopeAnswer[list[str]]) -> dict[str, Any]:
    assert settings.directory is not None
    return {
        "scope": answer.scope,
        "database": settings.directory.entry(answer.scope).url,
        "state": "reachable" if answer.error is None else answer.error.code,
        "nodes": None if answer.result is None else ", ".join(answer.result),
        "error": None if answer.error is None else str(answer.error),
    }
