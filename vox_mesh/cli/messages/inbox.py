"""`vox-mesh inbox`: look into an inbox, take messages out of it, or have each wake a command."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import click

from vox_mesh.cli.messages.inbox_claims import AT_A_LOOK, Inbox, claimed, coming, said
from vox_mesh.cli.messages.inbox_exec import Exec
from vox_mesh.cli.messages.message_output import line, records, show_next_message
from vox_mesh.cli.node.signals import run_until_signalled
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import Record, json_option, show_several
from vox_mesh.cli.support.start import start_shared
from vox_mesh.mesh import Mesh
from vox_mesh.messages.claims import LEASE_S
from vox_mesh.model.messages.records import Message
from vox_mesh.settings import Settings

_WAYS: Final = ("--peek", "--ack", "--claim", "--exec")


@click.command()
@click.argument("agent")
@click.option("--role", "roles", metavar="NAME", multiple=True, help="A role that it has too; repeatable.")
@click.option("--follow", is_flag=True, help="Go on with new messages as they come, until Ctrl-C.")
@click.option("--peek", "peeks", is_flag=True, help="Look without claiming anything; the default.")
@click.option("--ack", "acks", is_flag=True, help="Claim, print, and then acknowledge them.")
@click.option("--claim", "claims", is_flag=True, help="Claim, print, and leave them claimed.")
@click.option(
    "--exec", "command", metavar="COMMAND", help="Claim one after another, and run COMMAND for each."
)
@click.option(
    "--after", type=click.IntRange(min=0), metavar="POSITION", help="Only what was stored after it."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"At most so many; by default {AT_A_LOOK}, or all with --exec or --follow.",
)
@click.option(
    "--lease",
    type=seconds,
    metavar="DURATION",
    default=f"{LEASE_S:.0f}s",
    show_default=True,
    help="How long they are claimed for.",
)
@json_option
def inbox(
    agent: str,
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
    """Show what waits for AGENT, or deal with it.

    What is claimed is nobody else's until its lease is over. With --claim, say what became of each with
    `vox-mesh messages ack` or `nack` and its claim_owner. One sender's messages come 64 at a time.

    With --exec, COMMAND is run by the shell for each message, one after another, until none is left: with
    the body on stdin (text as it is, everything else as JSON), its other fields in VOX_MSG_MESSAGE_UUID,
    VOX_MSG_SENDER_AGENT, VOX_MSG_MSG_TYPE and so on, and AGENT in VOX_AGENT_ID. The lease is renewed while
    it runs. If it ends with 0 the message is acknowledged, otherwise given back, to be tried again later; it
    ends with 1 then. Signals stop all that COMMAND has started, and give its message back.

    With --json and --follow each message is a document on a line of its own.

    \b
    Example:
      vox-mesh inbox reviewer --role reviewers --follow --exec './review.sh'
    """
    chosen = [name for name, is_on in zip(_WAYS, (peeks, acks, claims, command), strict=True) if is_on]
    if len(chosen) > 1:
        raise click.UsageError(f"choose one of {' and '.join(chosen)}", click.get_current_context())
    if after is not None and chosen not in ([], ["--peek"]):
        raise click.UsageError("--after is for looking only", click.get_current_context())
    if as_json and command is not None:
        raise click.UsageError(
            "with --exec, COMMAND alone prints: leave out --json", click.get_current_context()
        )
    settings = start_shared("inbox")
    box = Inbox(agent, roles, follow, limit, lease)
    if command is not None:
        return run_until_signalled(Exec(settings, box, command).run())
    if acks or claims:
        return run_until_signalled(_take_out(settings, box, acks=acks, as_json=as_json))
    return run_until_signalled(_peek(settings, box, after or 0, as_json=as_json))


async def _peek(settings: Settings, box: Inbox, after: int, *, as_json: bool) -> int:
    async with Mesh.open_command(settings) as mesh:
        if not box.follow:
            found = await mesh.messages.queries.peek(box.names, after=after, limit=box.limit or AT_A_LOOK)
            told = await records(mesh, found) if as_json else [line(each) for each in found]
            show_several(told, as_json=as_json)
            return ExitCode.DONE
        async with aclosing(box.limited(mesh.messages.queries.follow(box.names, after))) as messages:
            async for message in messages:
                await show_next_message(mesh, message, line(message), as_json=as_json)
    return ExitCode.DONE


async def _take_out(settings: Settings, box: Inbox, *, acks: bool, as_json: bool) -> int:
    """Print what is claimed; only then is it acknowledged, or left to whoever reads it here."""
    as_line = line if acks else _line_with_claim
    async with Mesh.open_command(settings) as mesh:
        if not box.follow:
            found = await claimed(mesh, box, box.limit or AT_A_LOOK)
            told = await records(mesh, found) if as_json else [as_line(each) for each in found]
            show_several(told, as_json=as_json)
            await _settle(mesh, box, found, acks=acks)
            return ExitCode.DONE
        async with aclosing(coming(mesh, box)) as messages:
            async for message in messages:
                await show_next_message(mesh, message, as_line(message), as_json=as_json)
                await _settle(mesh, box, [message], acks=acks)
    return ExitCode.DONE


def _line_with_claim(message: Message) -> Record:
    return line(message, claim_owner=message.claim_owner)


async def _settle(mesh: Mesh, box: Inbox, messages: list[Message], *, acks: bool) -> None:
    if acks:
        await said(lambda: mesh.messages.ack(*messages), box.lease_s)
    else:
        for message in messages:
            mesh.messages.hand_over(message)
