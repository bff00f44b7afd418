"""`vox-mesh messages`: list, show and settle messages, and retry dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from vox_mesh.cli.messages.message_output import records, short_line, show_message
from vox_mesh.cli.support.options import Function, seconds
from vox_mesh.cli.support.output import CommandGroup, Record, json_option, show_several
from vox_mesh.cli.support.session import AgentMesh, Result, Work, run_agent_command, run_command
from vox_mesh.mesh import Mesh
from vox_mesh.model.messages.records import Message, MessageState

_LIMIT: Final = 100
_STATES: Final = [state.value for state in MessageState if state is not MessageState.SPOOLED]
_ID: Final = click.argument("message_uuid", metavar="ID")
_IDS: Final = click.argument("ids", metavar="ID...", nargs=-1, required=True)
_CLAIM: Final = click.option(
    "--claim",
    "claim_owner",
    metavar="OWNER",
    required=True,
    help="claim_owner of the claim.",
)
_limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=_LIMIT,
    show_default=True,
    help="Maximum number of rows.",
)


def _page_options(function: Function) -> Function:
    before = click.option(
        "--before",
        type=click.IntRange(min=1),
        metavar="POSITION",
        help="Position before which messages are listed.",
    )
    return _limit_option(before(function))


@click.group(cls=CommandGroup, no_args_is_help=False)
def messages() -> None:
    """List, show, acknowledge, reject and retry messages.

    ID is a message's id or a unique prefix.
    """


def _run(command: str, work: Work[Result]) -> Result:
    return run_command(f"messages {command}", work)


def _show(
    command: str,
    work: Work[Sequence[Message]],
    *,
    as_json: bool,
    line: Callable[[Message], Record] = short_line,
) -> None:
    async def read(mesh: Mesh) -> list[Record]:
        found = await work(mesh)
        return await records(mesh, found) if as_json else [line(each) for each in found]

    show_several(_run(command, read), as_json=as_json)


def _show_one(command: str, work: Work[Message], *, as_json: bool) -> None:
    async def read(mesh: Mesh) -> Record:
        return (await records(mesh, [await work(mesh)]))[0]

    show_message(_run(command, read), as_json=as_json)


# --- reading -------------------------------------------------------------------------------------


@messages.command(name="list")
@click.option("--state", type=click.Choice(_STATES), help="State of the messages.")
@click.option("--from", "sender", metavar="AGENT", help="Sender of the messages.")
@click.option("--to", "receiver", metavar="AGENT", help="Recipient of the messages: an agent, or role:NAME.")
@click.option("--thread", help="Thread of the messages.")
@_page_options
@json_option
def list_(as_json: bool, **wanted: Any) -> None:
    """List messages, newest first.

    \b
    Example:
      vox-mesh messages list --state stored --to reviewer
    """
    _show("list", lambda mesh: mesh.messages.queries.listed(**wanted), as_json=as_json)


@messages.command()
@_ID
@json_option
def show(message_uuid: str, as_json: bool) -> None:
    """Show a message in full.

    Shows its fields, its body, its claim, and the reason if it is a dead letter.

    \b
    Example:
      vox-mesh messages show 01K9
    """
    _show_one("show", lambda mesh: mesh.messages.queries.get(message_uuid), as_json=as_json)


@messages.command()
@_limit_option
@json_option
def overdue(limit: int, as_json: bool) -> None:
    """List overdue messages, longest overdue first.

    \b
    Example:
      vox-mesh messages overdue
    """
    _show("overdue", lambda mesh: mesh.messages.queries.overdue(limit=limit), as_json=as_json)


@messages.command()
@_limit_option
@json_option
def threads(limit: int, as_json: bool) -> None:
    """List threads, latest first.

    Shows how many messages each has, and how many are open.

    \b
    Example:
      vox-mesh messages threads
    """
    threads = _run("threads", lambda mesh: mesh.messages.queries.threads(limit))
    show_several([vars(each) for each in threads], as_json=as_json)


# --- dead letters --------------------------------------------------------------------------------


@messages.command()
@_page_options
@json_option
def dead(limit: int, before: int | None, as_json: bool) -> None:
    """List dead letters and their reasons, newest first.

    \b
    Example:
      vox-mesh messages dead
    """
    _show(
        "dead",
        lambda mesh: mesh.messages.queries.listed(state=MessageState.DEAD, limit=limit, before=before),
        as_json=as_json,
        line=lambda letter: short_line(letter, reason=letter.ended_reason),
    )


@messages.command()
@_IDS
@json_option
def retry(ids: tuple[str, ...], as_json: bool) -> None:
    """Redeliver dead letters with a new count of attempts.

    \b
    Example:
      vox-mesh messages retry 01K9
    """
    _show("retry", lambda mesh: _retry(mesh, ids), as_json=as_json)


async def _retry(mesh: Mesh, ids: Sequence[str]) -> list[Message]:
    dead = [await mesh.messages.queries.get(each) for each in ids]
    for message in dead:
        await mesh.messages.queries.retry(message.message_uuid)
    return [await mesh.messages.queries.get(message.message_uuid) for message in dead]


# --- claimed messages ----------------------------------------------------------------------------


@messages.command()
@_IDS
@_CLAIM
@json_option
def ack(ids: tuple[str, ...], claim_owner: str, as_json: bool) -> None:
    """Acknowledge claimed messages.

    `vox-mesh inbox --claim` claims messages. Ends with 1 if a message is no longer held under this claim.

    \b
    Example:
      vox-mesh messages ack 01K9 --claim "$claim_owner"
    """

    async def read(mesh: AgentMesh) -> list[Record]:
        found = await _ack(mesh, ids, claim_owner)
        return await records(mesh, found) if as_json else [short_line(each) for each in found]

    show_several(run_agent_command("messages ack", read), as_json=as_json)


async def _ack(mesh: AgentMesh, ids: Sequence[str], claim_owner: str) -> list[Message]:
    if not isinstance(mesh, Mesh):
        return [await mesh.messages.ack_by_claim(each, claim_owner) for each in ids]
    claimed = [await mesh.messages.get_claimed(each, claim_owner) for each in ids]
    await mesh.messages.ack(*claimed)
    return [await mesh.messages.queries.get(message.message_uuid) for message in claimed]


@messages.command()
@_ID
@_CLAIM
@click.option(
    "--retry-in",
    type=seconds,
    metavar="DURATION",
    help="Time until redelivery.",
    show_default="grows with each attempt",
)
@click.option("--reason", help="Reason, kept if it becomes a dead letter.")
@json_option
def nack(
    message_uuid: str, claim_owner: str, retry_in: float | None, reason: str | None, as_json: bool
) -> None:
    """Reject a claimed message; it is redelivered.

    \b
    Example:
      vox-mesh messages nack 01K9 --claim "$claim_owner" --retry-in 5m --reason "the build is red"
    """

    async def reject(mesh: AgentMesh) -> Message:
        if not isinstance(mesh, Mesh):
            return await mesh.messages.nack_by_claim(
                message_uuid, claim_owner, retry_in=retry_in, reason=reason
            )
        claimed = await mesh.messages.get_claimed(message_uuid, claim_owner)
        await mesh.messages.nack(claimed, retry_in=retry_in, reason=reason)
        return await mesh.messages.queries.get(claimed.message_uuid)

    async def read(mesh: AgentMesh) -> Record:
        return (await records(mesh, [await reject(mesh)]))[0]

    show_message(run_agent_command("messages nack", read), as_json=as_json)
