"""`vox-mesh messages`: what was sent, what became of it, and the dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from vox_mesh.cli.messages.message_output import records, short_line, show_message
from vox_mesh.cli.support.options import Function, seconds
from vox_mesh.cli.support.output import Record, json_option, show_several
from vox_mesh.cli.support.session import Result, Work, run_beside
from vox_mesh.mesh import Mesh
from vox_mesh.model.messages.records import Message, MessageState
from vox_mesh.views.messages import ThreadView, find_claimed_message, find_message

_LIMIT: Final = 100
_STATES: Final = [state.value for state in MessageState if state is not MessageState.SPOOLED]
_ID: Final = click.argument("message_uuid", metavar="ID")
_IDS: Final = click.argument("ids", metavar="ID...", nargs=-1, required=True)
_CLAIM: Final = click.option(
    "--claim",
    "claim_owner",
    metavar="OWNER",
    required=True,
    help="The claim_owner that it was claimed under.",
)
_limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=_LIMIT,
    show_default=True,
    help="At most so many.",
)


def _page_options(function: Function) -> Function:
    before = click.option(
        "--before", type=click.IntRange(min=1), metavar="POSITION", help="Only those stored before it."
    )
    return _limit_option(before(function))


@click.group(no_args_is_help=False)
def messages() -> None:
    """List and show messages, send dead letters again, and say what became of claimed ones.

    ID is a message's id, or enough of its beginning.
    """


def _run(command: str, work: Work[Result]) -> Result:
    return run_beside(f"messages {command}", work)


def _show(
    command: str,
    work: Work[Sequence[Message]],
    *,
    as_json: bool,
    line: Callable[[Message], Record] = short_line,
) -> None:
    async def told(mesh: Mesh) -> list[Record]:
        found = await work(mesh)
        return await records(mesh, found) if as_json else [line(each) for each in found]

    show_several(_run(command, told), as_json=as_json)


def _show_one(command: str, work: Work[Message], *, as_json: bool) -> None:
    async def told(mesh: Mesh) -> Record:
        return (await records(mesh, [await work(mesh)]))[0]

    show_message(_run(command, told), as_json=as_json)


# --- looking -------------------------------------------------------------------------------------


@messages.command(name="list")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@click.option("--from", "sender", metavar="AGENT", help="Only those of this sender.")
@click.option("--to", "receiver", metavar="AGENT", help="Only those to this agent, or role:NAME.")
@click.option("--thread", help="Only those of this thread.")
@_page_options
@json_option
def list_(as_json: bool, **wanted: Any) -> None:
    """List messages, the newest first.

    \b
    Example:
      vox-mesh messages list --state stored --to reviewer
    """
    _show("list", lambda mesh: mesh.messages.queries.listed(**wanted), as_json=as_json)


@messages.command()
@_ID
@json_option
def show(message_uuid: str, as_json: bool) -> None:
    """Show all of a message: what its sender wrote, who has it until when, and why it died.

    \b
    Example:
      vox-mesh messages show 01K9
    """
    _show_one("show", lambda mesh: find_message(mesh, message_uuid), as_json=as_json)


@messages.command()
@_limit_option
@json_option
def overdue(limit: int, as_json: bool) -> None:
    """List messages that should have been acknowledged by now, the longest overdue first.

    \b
    Example:
      vox-mesh messages overdue
    """
    _show("overdue", lambda mesh: mesh.messages.queries.overdue(limit=limit), as_json=as_json)


@messages.command()
@_limit_option
@json_option
def threads(limit: int, as_json: bool) -> None:
    """List threads, the latest first: how many messages each has, and how many are not dealt with yet.

    \b
    Example:
      vox-mesh messages threads
    """
    threads = _run("threads", lambda mesh: mesh.messages.queries.threads(limit))
    show_several([vars(ThreadView.of(each)) for each in threads], as_json=as_json)


# --- dead letters --------------------------------------------------------------------------------


@messages.command()
@_page_options
@json_option
def dead(limit: int, before: int | None, as_json: bool) -> None:
    """List the dead letters, the newest first, and why each of them died.

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
    """Send dead letters again: they are delivered as if they had never been tried.

    \b
    Example:
      vox-mesh messages retry 01K9
    """
    _show("retry", lambda mesh: _retry(mesh, ids), as_json=as_json)


async def _retry(mesh: Mesh, ids: Sequence[str]) -> list[Message]:
    dead = [await find_message(mesh, each) for each in ids]
    for message in dead:
        await mesh.messages.queries.retry(message.message_uuid)
    return [await find_message(mesh, message.message_uuid) for message in dead]


# --- what was claimed ----------------------------------------------------------------------------


@messages.command()
@_IDS
@_CLAIM
@json_option
def ack(ids: tuple[str, ...], claim_owner: str, as_json: bool) -> None:
    """Acknowledge messages that `vox-mesh inbox --claim` has claimed: they are done with.

    It ends with 1 if one of them is not held under this claim any more.

    \b
    Example:
      vox-mesh messages ack 01K9 --claim "$claim_owner"
    """
    _show("ack", lambda mesh: _ack(mesh, ids, claim_owner), as_json=as_json)


async def _ack(mesh: Mesh, ids: Sequence[str], claim_owner: str) -> list[Message]:
    claimed = [await find_claimed_message(mesh, each, claim_owner) for each in ids]
    await mesh.messages.ack(*claimed)
    return [await find_message(mesh, message.message_uuid) for message in claimed]


@messages.command()
@_ID
@_CLAIM
@click.option(
    "--retry-in", type=seconds, metavar="DURATION", help="When it comes again; by default later each time."
)
@click.option("--reason", help="Why, should it become a dead letter.")
@json_option
def nack(
    message_uuid: str, claim_owner: str, retry_in: float | None, reason: str | None, as_json: bool
) -> None:
    """Give back a message that `vox-mesh inbox --claim` has claimed: it is tried again.

    \b
    Example:
      vox-mesh messages nack 01K9 --claim "$claim_owner" --retry-in 5m --reason "the build is red"
    """

    async def give_back(mesh: Mesh) -> Message:
        claimed = await find_claimed_message(mesh, message_uuid, claim_owner)
        await mesh.messages.nack(claimed, retry_in=retry_in, reason=reason)
        return await find_message(mesh, claimed.message_uuid)

    _show_one("nack", give_back, as_json=as_json)
