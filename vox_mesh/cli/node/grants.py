"""`vox-mesh grant`: what agents may do, by whose word."""

from __future__ import annotations

from dataclasses import asdict

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command, start_quickly
from vox_mesh.mesh import Mesh
from vox_mesh.nodes.agent_keys import agent_key
from vox_mesh.views.grants.grants import GrantChangeView, GrantCheckView, GrantView, grants_of

_CAPABILITIES = click.argument("capabilities", nargs=-1, required=True)
_LASTS = click.option("--lasts", metavar="DURATION", help="Validity, such as 8h.", show_default="no end")
_BUDGET = click.option(
    "--budget", type=int, metavar="N", help="Beats that jobs by it may cost in all.", show_default="none"
)
_DELEGATIONS = click.option(
    "--delegations",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="Delegations that may follow, one of the other.",
)


@click.group(cls=CommandGroup, no_args_is_help=False)
def grant() -> None:
    """Show and change what agents may do.

    An agent gets grants after `vox-mesh agents admit`. A capability is an action and what it is done to, such
    as 'lock.acquire on file:src/**', 'message.send to role:qa', 'job.take kind build.*', 'job.schedule kind
    notes.* rate 30/1m', 'job.exec program git' or 'ask lock.break'; or a template: reader, worker, coder,
    operator, owner.

    Actions: mesh.read, lock.acquire, lock.break, message.send, message.receive, job.schedule, job.take,
    job.abort, job.answer, job.exec, cron.add, cron.remove, rule.add, rule.remove, kind.set, conflict.resolve,
    budget.set, retention.set, tempo.set, node.drain, op.append, roles.designate, roles.route, roles.rekey;
    with a prefix such as job.*, or * for all.
    """


@grant.command()
@click.argument("agent")
@_CAPABILITIES
@_LASTS
@_BUDGET
@_DELEGATIONS
@json_option
def issue(
    agent: str,
    capabilities: tuple[str, ...],
    lasts: str | None,
    budget: int | None,
    delegations: int,
    as_json: bool,
) -> None:
    """Grant capabilities to an admitted agent.

    Only the owner of the mesh may do this.

    \b
    Example:
      vox-mesh grant issue coder 'lock.acquire on file:src/**' --lasts 8h
    """

    async def run(mesh: Mesh) -> GrantView:
        found = await mesh.grants.issue(
            agent, capabilities, lasts=lasts, budget=budget, delegations=delegations
        )
        return GrantView.of(await mesh.grants.find(found.grant_id))

    _show(run_command("grant issue", run), as_json=as_json)


@grant.command()
@click.argument("grant_id", metavar="GRANT")
@click.argument("agent")
@_CAPABILITIES
@_LASTS
@_BUDGET
@_DELEGATIONS
@json_option
def delegate(
    grant_id: str,
    agent: str,
    capabilities: tuple[str, ...],
    lasts: str | None,
    budget: int | None,
    delegations: int,
    as_json: bool,
) -> None:
    """Pass a part of a grant on to another agent.

    The key of the agent that has the grant must be on this machine: `vox-mesh agents init` made it.

    \b
    Example:
      vox-mesh grant delegate 01J9ZD5V4T7K2M3N4P5Q6R7S8T tester 'message.send to role:qa'
    """
    home = start_quickly("grant delegate").home_dir

    async def run(mesh: Mesh) -> GrantView:
        holder = (await mesh.grants.find(grant_id)).grant.agent
        found = await mesh.grants.delegate(
            grant_id,
            agent,
            capabilities,
            key=agent_key(home, holder, create=False),
            lasts=lasts,
            budget=budget,
            delegations=delegations,
        )
        return GrantView.of(await mesh.grants.find(found.grant_id))

    _show(run_command("grant delegate", run), as_json=as_json)


@grant.command(name="list")
@click.option("--agent", metavar="NAME", help="Only the grants of this agent.")
@json_option
def list_(agent: str | None, as_json: bool) -> None:
    """List the grants in force.

    Unless the mesh is strict, the first one is the implicit grant of all agents that are not admitted.

    \b
    Example:
      vox-mesh grant list
    """
    found = run_command("grant list", lambda mesh: grants_of(mesh, agent))
    records = [asdict(each) if as_json else each.line for each in found]
    show_several(records, as_json=as_json)


@grant.command()
@click.argument("grant_id", metavar="GRANT")
@json_option
def show(grant_id: str, as_json: bool) -> None:
    """Show a grant, also one that has ended.

    \b
    Example:
      vox-mesh grant show 01J9ZD5V4T7K2M3N4P5Q6R7S8T
    """

    async def run(mesh: Mesh) -> GrantView:
        return GrantView.of(await mesh.grants.find(grant_id))

    _show(run_command("grant show", run), as_json=as_json)


@grant.command()
@click.argument("grant_id", metavar="GRANT")
@json_option
def revoke(grant_id: str, as_json: bool) -> None:
    """Revoke a grant, with all that was delegated from it.

    Only the owner of the mesh may do this. What was done by the grant before stays.

    \b
    Example:
      vox-mesh grant revoke 01J9ZD5V4T7K2M3N4P5Q6R7S8T
    """
    op = run_command("grant revoke", lambda mesh: mesh.grants.revoke(grant_id))
    show_one(vars(GrantChangeView(op.key, f"revoked {grant_id}")), as_json=as_json)


@grant.command()
@click.argument("agent")
@click.argument("act")
@json_option
def check(agent: str, act: str, as_json: bool) -> None:
    """Show whether an agent may do something, and why.

    Ends with 1 if it may not.

    \b
    Example:
      vox-mesh grant check coder 'lock.acquire on file:src/lib.rs'
    """
    decision = run_command("grant check", lambda mesh: mesh.grants.check(agent, act))
    show_one(vars(GrantCheckView(*decision)), as_json=as_json)
    if not decision.is_allowed:
        raise SystemExit(1)


@grant.command()
@click.argument("mode", type=click.Choice(["on", "off"]))
@json_option
def strict(mode: str, as_json: bool) -> None:
    """Allow nothing without a grant, or trust other agents.

    Only the owner of the mesh may do this. In a strict mesh, only the owner's node acts without a grant.

    \b
    Example:
      vox-mesh grant strict on
    """
    op = run_command("grant strict", lambda mesh: mesh.grants.set_strict(strict=mode == "on"))
    show_one(vars(GrantChangeView(op.key, f"strict mode {mode}")), as_json=as_json)


def _show(view: GrantView, *, as_json: bool) -> None:
    show_one(asdict(view) if as_json else {**asdict(view), **view.texts}, as_json=as_json)
