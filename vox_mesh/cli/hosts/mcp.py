"""`vox-mesh mcp`: the tools of an agent over stdin and stdout."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.session import run_until_signalled, start_quickly
from vox_mesh.hosts.mcp.profiles import Profile

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

_AGENT: Final = "Vox-Agent"


@click.command()
@click.option(
    "--profile",
    type=click.Choice([each.value for each in Profile]),
    default=Profile.WORK.value,
    show_default=True,
    help="Which tools are listed.",
)
def mcp(profile: str) -> int:
    """Serve the tools of an agent to its host by MCP.

    Hosts such as Claude Code or Codex start it and talk to it over stdin and stdout. It passes messages on to
    the node that runs here, or at VOX_MESH_NODE; where none runs, it runs one itself until stdin ends.

    The agent is the one of VOX_AGENT_TOKEN (or the file in VOX_AGENT_TOKEN_FILE). Without a token it is
    VOX_AGENT_ID, which acts with the rights of the user who runs this.

    \b
    Example:
      VOX_AGENT_ID=coder vox-mesh mcp --profile mail
    """
    from vox_mesh.hosts.mcp.stdio.lines import take_stdout  # imported late, as all of the pipe

    output = take_stdout()
    settings = start_quickly("mcp", through_node=True)
    return run_until_signalled(_serve(settings, Profile(profile), output))


async def _serve(settings: Settings, profile: Profile, output: int) -> int:
    from vox_mesh.cli.hosts.running_node import RunningNode
    from vox_mesh.hosts.mcp.stdio.lines import LineReader, LineWriter
    from vox_mesh.hosts.mcp.stdio.pipe import StdioPipe

    node, writer = RunningNode(settings), LineWriter(output)
    source = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    try:
        headers = await _headers_of(settings)
        await StdioPipe(profile.path, headers, node.connect, LineReader(source), writer).run()
    finally:
        writer.close()
        await node.stop()
    return ExitCode.DONE


async def _headers_of(settings: Settings) -> dict[str, str]:
    """Return what says which agent calls: its token and its name, or its name alone."""
    from vox_mesh.nodes.agent_token_file import find_agent_token

    agent, token = settings.agent_id, None
    if settings.agent_token is not None:
        token = settings.agent_token.get_secret_value()
    elif agent is not None:
        token = find_agent_token(settings.home_dir, agent)
    # A header can't carry every name; a token says who the agent is all the same.
    headers = {_AGENT: agent} if agent is not None and agent.isascii() else {}
    return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}
