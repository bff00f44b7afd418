"""`vox-mesh send`: send a message to an agent, a role or everyone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from vox_mesh.cli.messages.message_output import line, records
from vox_mesh.cli.support.body import body_of
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import acting_agent, seconds
from vox_mesh.cli.support.output import (
    Record,
    details_option,
    json_option,
    show_done,
    show_lines,
    show_several,
)
from vox_mesh.cli.support.session import AgentMesh, run_as_agent, start_quickly
from vox_mesh.errors import BadValue, DatabaseUnavailable, NoAnswer, NotKnown, OutcomeUnknown
from vox_mesh.mesh import Mesh
from vox_mesh.messages.drafts import DEFAULT_PRIORITY
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.messages.records import (
    DEFAULT_TYPE,
    EVERYONE,
    MAX_ATTEMPTS,
    Message,
    MessageState,
    checked_trace,
)
from vox_mesh.nodes.agent_keys import agent_key
from vox_mesh.nodes.key_file import load_key
from vox_mesh.store.script import new_key

if TYPE_CHECKING:
    from vox_mesh.settings import Settings


@click.command(context_settings={"allow_extra_args": True})
@click.argument("to")
@click.argument("body", metavar="BODY|-")
@click.option("--type", "msg_type", default=DEFAULT_TYPE, show_default=True, help="Message type.")
@click.option(
    "--priority",
    type=click.IntRange(0, 3),
    metavar="N",
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="Priority, from 0 (low) to 3 (urgent).",
)
@click.option("--thread", help="Thread of the message.")
@click.option("--correlation", help="Correlation id, chosen by you.")
@click.option("--reply-to", metavar="ID", help="Message to reply to; sets the thread as well.")
@click.option("--ttl", type=seconds, metavar="DURATION", help="Time after which it expires.")
@click.option("--ack-within", type=seconds, metavar="DURATION", help="Time after which it counts as overdue.")
@click.option(
    "--wait-ack",
    type=seconds,
    metavar="DURATION",
    help="Time to wait for the acknowledgement; ends with 1 without.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1_000),
    metavar="N",
    default=MAX_ATTEMPTS,
    show_default=True,
    help="Maximum number of deliveries; then it is a dead letter.",
)
@click.option("--key", metavar="ULID", help="Idempotency key: the message's id.")
@click.option("--from", "--agent", "sender", metavar="AGENT", help="Sender.", show_default="VOX_AGENT_ID")
@click.option("--ordered", is_flag=True, help="To a role: one by one, in the order sent.")
@click.option("--text", "is_text", is_flag=True, help="Send BODY as text, even if it looks like JSON.")
@details_option
@json_option
def send(
    to: str,
    body: str,
    reply_to: str | None,
    wait_ack: float | None,
    ack_within: float | None,
    key: str | None,
    sender: str | None,
    is_text: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Send a message to an agent, a role or everyone.

    TO is an agent, `role:NAME`, or `*` for everyone. A BODY that is a JSON object or array is sent as JSON,
    everything else as text; `-` reads it from stdin. When this ends, the message is stored. The trace in
    TRACEPARENT is sent along.

    \b
    Example:
      vox-mesh send reviewer '{"pr": 42}' --from coder --wait-ack 10s
    """
    if more := click.get_current_context().args:
        raise _too_many_words(to, body, more)
    settings = start_quickly("send", through_node=True)
    if key is not None and to == EVERYONE:
        raise BadValue(
            "--key can't be combined with `*`: each recipient gets a message of its own", hint="omit --key"
        )
    name = acting_agent(sender, settings, "--from")
    options |= {
        "sender": name,
        "ack_within": wait_ack if ack_within is None else ack_within,
        "traceparent": _traceparent(),
    }
    if settings.node is None:  # else the client signs
        options["signed_by"] = _key_of(options["sender"], settings)
    value = body_of(body, is_text=is_text)
    sending = _Sending(to, value, options, reply_to, wait_ack, as_json=as_json)
    if to == EVERYONE:
        sent = asyncio.run(run_as_agent(settings, name, sending.to_everyone))
        if as_json or verbose or not sent:
            show_several(sent, as_json=as_json)
        else:
            show_lines([_summary(each, wait_ack) for each in sent])
        if not sent:
            raise NotKnown("no other agent known", hint="pass an agent's name: its inbox keeps the message")
    else:
        sent = asyncio.run(run_as_agent(settings, name, partial(sending.to_one, key=key or new_key())))
        show_done(sent[0], _summary(sent[0], wait_ack), as_json=as_json, verbose=verbose)
    is_done = wait_ack is None or all(each["state"] == MessageState.ACKED for each in sent)
    return ExitCode.DONE if is_done else ExitCode.NO


def _too_many_words(to: str, body: str, more: Sequence[str]) -> click.UsageError:
    """Return the error about a body that is not one argument, with the command that was meant."""
    from shlex import join  # imported late: only a mistake needs it

    to, *words = (body, *more) if to == "to" else (to, body, *more)
    meant = join(["vox-mesh", "send", to, " ".join(words)])
    return click.UsageError(f"send takes TO and one BODY: did you mean `{meant}`?")


def _summary(sent: Record, wait_ack: float | None) -> str:
    """Return the line about a sent message."""
    name = f"(message {sent['message_uuid']})"
    to = sent.get("to")
    if sent["state"] == MessageState.ACKED:
        return f"acknowledged by {to} {name}"
    return f"sent to {to}{'' if wait_ack is None else ', not acknowledged yet'} {name}"


def _key_of(sender: str, settings: Settings) -> SigningKey | None:
    """Return the key of the sender: that of VOX_AGENT_KEY, or the one made in this home, if there is one."""
    if settings.agent_key is not None and sender == settings.agent_id:
        return load_key(settings.agent_key)
    with suppress(NotKnown):
        return agent_key(settings.home_dir, sender, create=False)
    return None


def _traceparent() -> str | None:
    try:
        return checked_trace(os.environ.get("TRACEPARENT", ""))
    except BadValue:
        return None


# --- sending -------------------------------------------------------------------------------------


class _Sending:
    """A message to send, and its options."""

    def __init__(
        self,
        to: str,
        body: Any,
        options: dict[str, Any],
        reply_to: str | None,
        wait_ack: float | None,
        *,
        as_json: bool,
    ) -> None:
        self._to = to
        self._body = body
        self._options = {name: value for name, value in options.items() if value is not None}
        self._reply_to = reply_to
        self._wait_ack = wait_ack
        self._as_json = as_json

    async def to_one(self, mesh: AgentMesh, key: str) -> list[Record]:
        """Send one message under this id; wait for its acknowledgement, if requested."""
        await self._set_reply(mesh)
        try:
            sent = await mesh.messages.send(self._to, self._body, key=key, **self._options)
        except (NoAnswer, OutcomeUnknown) as unknown:
            unknown.hint = f"run it again with --key {key}: the message is sent only once"
            raise
        return await self._records(mesh, [await self._final_state(mesh, sent)])

    async def to_everyone(self, mesh: AgentMesh) -> list[Record]:
        """Send a message to everyone; wait for all acknowledgements, if requested."""
        await self._set_reply(mesh)
        sent = await mesh.messages.broadcast(self._body, **self._options)
        return await self._records(
            mesh, await asyncio.gather(*(self._final_state(mesh, each) for each in sent))
        )

    async def _set_reply(self, mesh: AgentMesh) -> None:
        """Set the thread and correlation of the message that this one replies to."""
        if self._reply_to is None:
            return
        message = await _find(mesh, self._reply_to)
        if message is None:
            if not is_ulid(self._reply_to):  # else it may have been pruned
                raise NotKnown(f"message {self._reply_to} not found", hint="run `vox-mesh messages list`")
            self._options["reply_to"] = self._reply_to
            return
        self._options["reply_to"] = message.message_uuid
        self._options.setdefault("thread", message.thread)
        if message.correlation_id is not None:
            self._options.setdefault("correlation", message.correlation_id)

    async def _records(self, mesh: AgentMesh, sent: Sequence[Message]) -> list[Record]:
        return await records(mesh, sent) if self._as_json else [line(each) for each in sent]

    async def _final_state(self, mesh: AgentMesh, sent: Message) -> Message:
        """Return the stored message, once it is acknowledged or the wait is over."""
        with suppress(DatabaseUnavailable):  # the message is already stored
            if self._wait_ack is not None and await mesh.messages.wait_for_ack(sent, self._wait_ack):
                sent = sent._replace(state=MessageState.ACKED)
            if self._wait_ack is None and not isinstance(mesh, Mesh):
                return sent  # a node answers with what is stored
            return await _find(mesh, sent.message_uuid) or sent
        return sent


async def _find(mesh: AgentMesh, beginning: str) -> Message | None:
    messages = mesh.messages.queries if isinstance(mesh, Mesh) else mesh.messages
    return await messages.find(beginning)
