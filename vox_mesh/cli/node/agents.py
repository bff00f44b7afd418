"""`vox-mesh agents`: which agents are alive, and what they hold, run and wait for."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Final

import click

from vox_mesh.cli.support.options import acting_agent
from vox_mesh.cli.support.output import CommandGroup, Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command, run_on_mesh, start_quickly
from vox_mesh.mesh import Mesh
from vox_mesh.model.messages.records import checked_agent
from vox_mesh.model.nodes.agent_state import AgentState
from vox_mesh.nodes.agent_keys import agent_key, agent_key_file
from vox_mesh.nodes.agents import MAX_AGENTS, Agent
from vox_mesh.oplog.grants.agent_tokens import DEFAULT_LASTS
from vox_mesh.views.agents.agents import AgentKeyView, AgentTokenView, ListedAgentView, some_of, with_grants
from vox_mesh.views.locks import HeartbeatView

_ORDER: Final = [state.value for state in AgentState]
_MAX_LIMIT: Final = 10_000


@click.group(cls=CommandGroup, invoke_without_command=True, no_args_is_help=False)
@click.option("--all", "wants_all", is_flag=True, help="Include agents not seen for an hour.")
@click.option(
    "--limit",
    type=click.IntRange(1, _MAX_LIMIT),
    metavar="N",
    default=MAX_AGENTS,
    show_default=True,
    help="Maximum number of agents, by name.",
)
@json_option
@click.pass_context
def agents(context: click.Context, wants_all: bool, limit: int, as_json: bool) -> None:
    """List the agents and what they do.

    Shows the state, admission, node, time since last seen, locks, awaited keys, work, unread messages and
    cost (in beat units, of 24 hours) of each. An agent is seen when it acquires a lock, takes jobs, sends or
    receives messages, claims a status, sends a heartbeat, or runs in a node.

    \b
    Example:
      vox-mesh agents --all
    """
    if context.invoked_subcommand is not None:
        if as_json or wants_all or limit != MAX_AGENTS:
            raise click.UsageError(f"options of `{context.invoked_subcommand}` must follow it", context)
        return
    found = run_command("agents", lambda mesh: _list(mesh, limit, with_gone=wants_all))
    views = sorted(found, key=lambda each: (_ORDER.index(each.state), each.agent_id))
    show_several([asdict(each) if as_json else _line(each) for each in views], as_json=as_json)


async def _list(mesh: Mesh, limit: int, *, with_gone: bool) -> list[ListedAgentView]:
    return await with_grants(mesh, await _read(mesh, limit, with_gone=with_gone))


async def _read(mesh: Mesh, limit: int, *, with_gone: bool) -> list[Agent]:
    found: list[Agent] = []
    while len(found) < limit:
        after = found[-1].agent_id if found else ""
        wanted = min(MAX_AGENTS, limit - len(found))
        page = await mesh.agents.listed(after=after, limit=wanted, with_gone=with_gone)
        found += page
        if len(page) < wanted:
            return found
    if await mesh.agents.listed(after=found[-1].agent_id, limit=1, with_gone=with_gone):
        click.echo(f"vox-mesh: only the first {limit} agents are listed; raise --limit to see more", err=True)
    return found


def _line(agent: ListedAgentView) -> Record:
    """Return an agent's row of the table."""
    return {
        "agent_id": agent.agent_id,
        "state": agent.state,
        "admitted": "yes" if agent.admitted else "no",
        "node": agent.node_id,
        "seen": None if agent.age_ms is None else f"{agent.age_ms / 1_000:.0f}s ago",
        "holds": some_of(agent.locks, agent.lock_count),
        "waits for": some_of(agent.waits_for, agent.waits_for_count),
        "works on": agent.works_on,
        "unread": agent.unread,
        "cost": f"{agent.bu:g}",
    }


@agents.command()
@click.argument("agent")
@json_option
def show(agent: str, as_json: bool) -> None:
    """Show one agent, what it holds, spends and has done.

    Shows its grants and the use of their limits, limits on tokens and money, tokens of today and of this
    month, locks, taken and scheduled jobs, messages that are not acknowledged, and the last entries of the
    log by it; at most 20 of each.

    \b
    Example:
      vox-mesh agents show coder
    """
    # imported late: only this command shows what an agent has spent
    from vox_mesh.views.agents.agent_page import page_of

    view = run_command("agents show", lambda mesh: page_of(mesh, agent))
    show_one(asdict(view) if as_json else {**asdict(view), **view.texts}, as_json=as_json)


@agents.command()
@click.argument("agent", required=False)
@json_option
def heartbeat(agent: str | None, as_json: bool) -> None:
    """Report an agent alive, and renew its session locks.

    It renews the locks that the agent acquired on this node with `lock acquire --heartbeats`, and shows those
    that it still holds. Send one at least every third of their lease: every 20s unless they have a --ttl.
    AGENT is VOX_AGENT_ID by default.

    \b
    Example:
      vox-mesh agents heartbeat coder
    """
    settings = start_quickly("agents heartbeat")
    name = acting_agent(agent, settings, "the agent's")
    held = asyncio.run(run_on_mesh(settings, lambda mesh: mesh.locks.heartbeat(agent=name)))
    document = asdict(HeartbeatView.of(name, held))
    if not as_json:
        document["locks"] = [
            {**each, "lock_keys": ", ".join(each["lock_keys"])} for each in document["locks"]
        ]
    show_one(document, as_json=as_json)


@agents.command()
@click.argument("agent")
@json_option
def init(agent: str, as_json: bool) -> None:
    """Make the key of an agent, and show its public key.

    The key is kept in the home (VOX_MESH_HOME), for this user only. A key that exists is not replaced. The
    owner admits the agent with the public key: `vox-mesh agents admit AGENT --key KEY`.

    \b
    Example:
      vox-mesh agents init coder
    """
    home = start_quickly("agents init", through_node=True).home_dir
    key = agent_key(home, checked_agent(agent), create=True)
    show_one(vars(AgentKeyView(agent, key.public)), as_json=as_json)


@agents.command()
@click.argument("agent")
@click.option(
    "--key",
    metavar="KEY",
    help="Public key of the agent, as `agents init` shows it.",
    show_default="the key of `agents init` in this home, if there is one",
)
@json_option
def admit(agent: str, key: str | None, as_json: bool) -> None:
    """Admit an agent, which then acts by its grants only.

    Only the owner of the mesh may do this. With its key, the agent can sign requests to a node and delegate
    its grants; without one it can do neither.

    \b
    Example:
      vox-mesh agents admit coder
    """
    settings = start_quickly("agents admit")
    if key is None and agent_key_file(settings.home_dir, agent).exists():
        key = agent_key(settings.home_dir, agent, create=False).public
    asyncio.run(run_on_mesh(settings, lambda mesh: mesh.grants.admit(agent, key)))
    show_one(vars(AgentKeyView(agent, key)), as_json=as_json)


@agents.group(cls=CommandGroup, no_args_is_help=False)
def token() -> None:
    """Issue, list and revoke tokens of agents.

    A token is for a host that can only be given a fixed text. It is accepted under /mcp and /v1/hooks only.
    """


@token.command("issue")
@click.argument("agent")
@click.option(
    "--lasts",
    metavar="DURATION",
    default=DEFAULT_LASTS,
    show_default=True,
    help="Validity, at most a year.",
)
@json_option
def issue_token(agent: str, lasts: str, as_json: bool) -> None:
    """Issue a token to an admitted agent, shown once.

    Only the owner of the mesh may do this. The mesh keeps a hash of the token only.

    \b
    Example:
      vox-mesh agents token issue coder --lasts 30d
    """
    issued = run_command("agents token", lambda mesh: mesh.principals.tokens.issue(agent, lasts=lasts))
    show_one({**asdict(AgentTokenView.of(issued.token)), "token": issued.text}, as_json=as_json)


@token.command("list")
@click.argument("agent", required=False)
@json_option
def list_tokens(agent: str | None, as_json: bool) -> None:
    """List the tokens of agents that are in force.

    \b
    Example:
      vox-mesh agents token list coder
    """
    found = run_command("agents token", lambda mesh: mesh.principals.tokens.in_force(agent))
    show_several([asdict(AgentTokenView.of(each)) for each in found], as_json=as_json)


@token.command("revoke")
@click.argument("token_id")
@json_option
def revoke_token(token_id: str, as_json: bool) -> None:
    """Revoke a token of an agent by its id.

    Only the owner of the mesh may do this. Nodes refuse the token within a second.

    \b
    Example:
      vox-mesh agents token revoke 01J9ZQ6V3K8WM2T4N5P7R9S1XA
    """
    revoked = run_command("agents token", lambda mesh: mesh.principals.tokens.revoke(token_id))
    show_one(asdict(AgentTokenView.of(revoked)), as_json=as_json)
