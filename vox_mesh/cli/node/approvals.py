"""`vox-mesh approvals`: what agents ask for, and the decisions on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import CommandGroup, fields, json_option, show_lines, show_one, show_several
from vox_mesh.cli.support.session import (
    AgentMesh,
    run_agent_command,
)
from vox_mesh.model.grants.approval import Approval, ApprovalState
from vox_mesh.views.grants.approvals import ApprovalView

_ID = click.argument("approval_id", metavar="ID")
_AGENT = click.option("--agent", help="Agent that decides.", show_default="VOX_AGENT_ID, or the node")
_REASON = click.option("--reason", default="", help="Reason for the op log and the agent.")

_DONE: Final = (ApprovalState.APPLIED, ApprovalState.APPROVED)


@click.group(cls=CommandGroup, no_args_is_help=False)
def approvals() -> None:
    """Show and decide what agents ask for.

    A command of an agent whose grant says `ask` prints the id of an approval. The owner decides on it, or an
    agent that may do it itself.
    """


@approvals.command(name="list")
@click.option("--all", "every", is_flag=True, help="Include decided and expired ones.")
@json_option
def list_(every: bool, as_json: bool) -> None:
    """List the approvals that wait for a decision.

    \b
    Example:
      vox-mesh approvals list
    """

    listed = run_agent_command("approvals list", lambda mesh: mesh.approvals.listed(every=every))
    found = [ApprovalView.of(each) for each in listed]
    show_several([asdict(each) if as_json else each.line for each in found], as_json=as_json)


@approvals.command()
@_ID
@json_option
def show(approval_id: str, as_json: bool) -> None:
    """Show exactly what was asked, and what became of it.

    \b
    Example:
      vox-mesh approvals show 01J9ZD5V4T7K2M3N4P5Q6R7S8T
    """
    found = run_agent_command("approvals show", lambda mesh: mesh.approvals.find(approval_id))
    _show(found, as_json=as_json)


@approvals.command()
@_ID
@_REASON
@_AGENT
@json_option
def approve(approval_id: str, reason: str, agent: str | None, as_json: bool) -> None:
    """Approve what was asked, which is applied at once.

    It is done exactly as it was asked, once, in the name of the agent that asked. Ends with 1 if it was
    refused, such as when the grant of that agent was revoked.

    \b
    Example:
      vox-mesh approvals approve 01J9ZD5V4T7K2M3N4P5Q6R7S8T --reason "the lock is stale"
    """
    found = run_agent_command(
        "approvals approve", lambda mesh: mesh.approvals.approve(approval_id, reason), agent
    )
    _show(found, as_json=as_json)
    if found.state not in _DONE:
        raise SystemExit(ExitCode.NO)


@approvals.command()
@_ID
@_REASON
@_AGENT
@json_option
def deny(approval_id: str, reason: str, agent: str | None, as_json: bool) -> None:
    """Deny what was asked; the agent that asked may withdraw it.

    \b
    Example:
      vox-mesh approvals deny 01J9ZD5V4T7K2M3N4P5Q6R7S8T --reason "ask the holder first"
    """
    found = run_agent_command("approvals deny", lambda mesh: mesh.approvals.deny(approval_id, reason), agent)
    _show(found, as_json=as_json)


@approvals.command()
@_ID
@click.option("--timeout", type=seconds, metavar="DURATION", help="Time to wait.", show_default="no limit")
@json_option
def wait(approval_id: str, timeout: float | None, as_json: bool) -> None:
    """Wait for a decision, and for what became of it.

    Ends with 0 if it is applied, with 1 if it was denied, refused or has expired, and with 5 if the time is
    over and it is still open.

    \b
    Example:
      vox-mesh approvals wait 01J9ZD5V4T7K2M3N4P5Q6R7S8T --timeout 10m
    """

    async def run(mesh: AgentMesh) -> Approval:
        try:
            return await mesh.approvals.wait(approval_id, timeout=timeout)
        except TimeoutError:
            return await mesh.approvals.find(approval_id)

    found = run_agent_command("approvals wait", run)
    _show(found, as_json=as_json)
    if found.is_open:
        raise SystemExit(ExitCode.APPROVAL_PENDING)
    if found.state is not ApprovalState.APPLIED:
        raise SystemExit(ExitCode.NO)


def _show(approval: Approval, *, as_json: bool) -> None:
    view = ApprovalView.of(approval)
    if as_json:
        show_one(asdict(view), as_json=True)
    else:
        show_lines([*fields(view.texts), *view.argument_lines])
