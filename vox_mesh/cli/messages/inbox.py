"""`vox-mesh inbox`: show, claim or acknowledge messages, or run a command for each."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import Final

import click

from vox_mesh.cli.messages.inbox_exec import DEFAULT_LIMIT, Exec, Inbox, claim, messages_of, retry_while_away
from vox_mesh.cli.messages.message_output import line, records, show_next_message
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import acting_agent, seconds
from vox_mesh.cli.support.output import Record, json_option, show_several
from vox_mesh.cli.support.session import (
    AgentMesh,
    refuse_node,
    run_as_agent,
    run_until_signalled,
    start_quickly,
)
from vox_mesh.mesh import Mesh
from vox_mesh.messages.claims import LEASE_S
from vox_mesh.model.messages.records import Message

_WAYS: Final = ("--peek", "--ack", "--claim", "--exec")


@click.command()
@click.argument("agent", required=False)
@click.option(
    "--role",
    "roles",
    metavar="NAME",
    multiple=True,
    help="Role of the agent, whose messages are included; repeatable.",
)
@click.option("--follow", is_flag=True, help="Follow new messages until Ctrl-C.")
@click.option("--peek", "peeks", is_flag=True, help="Show messages without claiming them; the default.")
@click.option("--ack", "acks", is_flag=True, help="Claim, print, then acknowledge messages.")
@click.option("--claim", "claims", is_flag=True, help="Claim and print messages, and keep the claims.")
@click.option("--exec", "command", metavar="COMMAND", help="Command to run for each message, one at a time.")
@click.option(
    "--after", type=click.IntRange(min=0), metavar="POSITION", help="Position after which messages are shown."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of messages.",
    show_default=f"{DEFAULT_LIMIT}, all with --exec or --follow",
)
@click.option(
    "--lease",
    type=seconds,
    metavar="DURATION",
    default=f"{LEASE_S:.0f}s",
    show_default=True,
    help="Lease of a claim.",
)
@json_option
def inbox(
    agent: str | None,
    roles: tuple[str, ...],
    follow: bool,
    peeks: bool,
    acks: bool,
    claims: bool,
    command: str | None,
    after: int | None,
    limit: int | None,
    lease: float,
    as_json: bool,
) -> int:
    """Show, claim or acknowledge the messages of an agent.

    AGENT is VOX_AGENT_ID by default.

    A claimed message is not delivered to others until its lease expires. With --claim, settle each message
    with `vox-mesh messages ack` or `nack` and its claim_owner. At most 64 messages of one sender are claimed
    at a time.

    With --exec, the shell runs COMMAND for each message, one at a time, until the inbox is empty. COMMAND
    gets the body on stdin (text unchanged, everything else as JSON), the other fields in
    VOX_MSG_MESSAGE_UUID, VOX_MSG_SENDER_AGENT, VOX_MSG_MSG_TYPE and so on, and AGENT in VOX_AGENT_ID. The
    lease is renewed while it runs. If it exits with 0 the message is acknowledged, otherwise rejected and
    redelivered later; then this ends with 1. A signal stops all processes of COMMAND and rejects its message.

    With --json and --follow each message is a document on its own line.

    \b
    Example:
      vox-mesh inbox reviewer --role reviewers --follow --exec './review.sh'
    """
    chosen = [name for name, is_on in zip(_WAYS, (peeks, acks, claims, command), strict=True) if is_on]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} can't be combined", click.get_current_context())
    if after is not None and chosen not in ([], ["--peek"]):
        raise click.UsageError("--after can be combined with --peek only", click.get_current_context())
    if as_json and command is not None:
        raise click.UsageError(
            "--json and --exec can't be combined: COMMAND alone prints", click.get_current_context()
        )
    settings = start_quickly("inbox", through_node=True)
    if command is not None:
        refuse_node(settings, "inbox --exec")
    name = acting_agent(agent, settings, "the agent's")
    box = Inbox(name, roles, follow, limit, lease)
    if command is not None:
        return run_until_signalled(Exec(settings, box, command).run())
    if acks or claims:
        work = partial(_claim_and_print, box=box, acks=acks, as_json=as_json)
    else:
        work = partial(_peek, box=box, after=after or 0, as_json=as_json)
    return run_until_signalled(run_as_agent(settings, name, work))


async def _peek(mesh: AgentMesh, box: Inbox, after: int, *, as_json: bool) -> int:
    if not box.follow:
        found = await box.peek(mesh, after, box.limit or DEFAULT_LIMIT)
        rows = await records(mesh, found) if as_json else [line(each) for each in found]
        show_several(rows, as_json=as_json)
        return ExitCode.DONE
    async with aclosing(box.limited(box.followed(mesh, after))) as messages:
        async for message in messages:
            await show_next_message(mesh, message, line(message), as_json=as_json)
    return ExitCode.DONE


async def _claim_and_print(mesh: AgentMesh, box: Inbox, *, acks: bool, as_json: bool) -> int:
    """Print claimed messages; only then acknowledge them, or hand their claims to the reader."""
    as_line = line if acks else _line_with_claim
    if not box.follow:
        found = await claim(mesh, box, box.limit or DEFAULT_LIMIT)
        rows = await records(mesh, found) if as_json else [as_line(each) for each in found]
        show_several(rows, as_json=as_json)
        await _settle(mesh, box, found, acks=acks)
        return ExitCode.DONE
    async with aclosing(messages_of(mesh, box)) as messages:
        async for message in messages:
            await show_next_message(mesh, message, as_line(message), as_json=as_json)
            await _settle(mesh, box, [message], acks=acks)
    return ExitCode.DONE


def _line_with_claim(message: Message) -> Record:
    return line(message, claim_owner=message.claim_owner)


async def _settle(mesh: AgentMesh, box: Inbox, messages: list[Message], *, acks: bool) -> None:
    if acks:
        await retry_while_away(lambda: mesh.messages.ack(*messages), box.lease_s)
    elif isinstance(mesh, Mesh):  # a node has handed them over already
        for message in messages:
            mesh.messages.hand_over(message)
