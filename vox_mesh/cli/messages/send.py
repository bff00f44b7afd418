"""`vox-mesh send`: a message to an agent, to whoever has a role, or to everyone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import click
import orjson

from vox_mesh.cli.messages.message_output import line, records
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import acting_agent, seconds
from vox_mesh.cli.support.output import Record, json_option, show_one, show_several
from vox_mesh.cli.support.start import start_shared
from vox_mesh.errors import BadValue, DatabaseUnavailable, NotKnown, OutcomeUnknown
from vox_mesh.mesh import Mesh
from vox_mesh.messages.messages import DEFAULT_PRIORITY, DEFAULT_TYPE
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.messages.records import (
    EVERYONE,
    MAX_ATTEMPTS,
    MAX_PAYLOAD_BYTES,
    Message,
    MessageState,
    checked_trace,
)
from vox_mesh.settings import Settings
from vox_mesh.store.script import new_key

_STDIN: Final = "-"
_MAX_READ: Final = 4 * MAX_PAYLOAD_BYTES  # JSON may take less room once its spaces and escapes are gone


@click.command()
@click.argument("to")
@click.argument("body", metavar="BODY|-")
@click.option("--type", "msg_type", default=DEFAULT_TYPE, show_default=True, help="What kind it is.")
@click.option(
    "--priority",
    type=click.IntRange(0, 3),
    metavar="N",
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="0 can wait, 3 is urgent.",
)
@click.option("--thread", help="The thread that it belongs to.")
@click.option("--correlation", help="What it has to do with, in words of your own.")
@click.option("--reply-to", metavar="ID", help="The message it answers; it is in its thread then.")
@click.option("--ttl", type=seconds, metavar="DURATION", help="How long it is of any use.")
@click.option(
    "--ack-within", type=seconds, metavar="DURATION", help="Be told if nobody has dealt with it by then."
)
@click.option(
    "--wait-ack", type=seconds, metavar="DURATION", help="The same, and wait for it: 1 if it does not come."
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1_000),
    metavar="N",
    default=MAX_ATTEMPTS,
    show_default=True,
    help="How often it is tried before it is a dead letter.",
)
@click.option("--key", metavar="ULID", help="The message's id: sent again under it, it is one message.")
@click.option("--from", "sender", metavar="AGENT", help="Who sends it; by default VOX_AGENT_ID.")
@click.option("--text", "is_text", is_flag=True, help="BODY is text, even if it looks like JSON.")
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
    as_json: bool,
    **options: Any,
) -> int:
    """Send a message to TO: an agent, `role:NAME` for whoever has that role, or `*` for everyone.

    A BODY that is a JSON object or array is sent as such, everything else as text; `-` reads it from stdin.
    It is stored when this ends. What TRACEPARENT says goes with it.

    \b
    Example:
      vox-mesh send reviewer '{"pr": 42}' --from coder --wait-ack 10s
    """
    settings = start_shared("send")
    if key is not None and to == EVERYONE:
        raise BadValue(
            "--key is the id of one message, and everyone gets one of their own", hint="leave it out"
        )
    options |= {
        "sender": acting_agent(sender, settings, "send it", "--from"),
        "ack_within": wait_ack if ack_within is None else ack_within,
        "traceparent": _traceparent(),
    }
    value = _value(_read() if body == _STDIN else body, is_text=is_text)
    sending = _Sending(to, value, options, reply_to, wait_ack, as_json=as_json)
    if to == EVERYONE:
        told = asyncio.run(sending.to_everyone(settings))
        show_several(told, as_json=as_json)
        if not told:
            raise NotKnown("there is nobody else", hint="name an agent: its messages wait until it comes")
    else:
        told = asyncio.run(sending.to_one(settings, key or new_key()))
        show_one(told[0], as_json=as_json)
    is_done = wait_ack is None or all(each["state"] == MessageState.ACKED for each in told)
    return ExitCode.DONE if is_done else ExitCode.NO


# --- what is sent --------------------------------------------------------------------------------


def _read() -> str:
    """The body from stdin."""
    try:
        with open(0, "rb", closefd=False) as stdin:
            data = stdin.read(_MAX_READ + 1)
    except OSError as error:
        raise BadValue(f"stdin can't be read: {error.strerror}", hint="give it something to read") from None
    if len(data) > _MAX_READ:
        raise BadValue(
            f"stdin holds more than {_MAX_READ} bytes", hint="put the data elsewhere, and send where it is"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"stdin is not UTF-8: {error}", hint="encode it, for example as base64") from None


def _value(text: str, *, is_text: bool) -> Any:
    """The body that a text stands for."""
    if not is_text and text.lstrip()[:1] in ("{", "["):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass
    return text


def _traceparent() -> str | None:
    try:
        return checked_trace(os.environ.get("TRACEPARENT", ""))
    except BadValue:
        return None


# --- sending -------------------------------------------------------------------------------------


class _Sending:
    """What is to be sent, and how."""

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

    async def to_one(self, settings: Settings, key: str) -> list[Record]:
        """Send one message under this id, and wait for its acknowledgement if that is wanted."""
        async with Mesh.open_command(settings) as mesh:
            await self._answer(mesh)
            try:
                sent = await mesh.messages.send(self._to, self._body, key=key, **self._options)
            except OutcomeUnknown as unknown:
                unknown.hint = f"run it again with --key {key}: it is sent once then"
                raise
            return await self._told(mesh, [await self._became(mesh, sent)])

    async def to_everyone(self, settings: Settings) -> list[Record]:
        """Send everyone a message, and wait for all acknowledgements if that is wanted."""
        async with Mesh.open_command(settings) as mesh:
            await self._answer(mesh)
            sent = await mesh.messages.broadcast(self._body, **self._options)
            return await self._told(mesh, await asyncio.gather(*(self._became(mesh, each) for each in sent)))

    async def _answer(self, mesh: Mesh) -> None:
        """Have it belong to what the message belongs to that it answers."""
        if self._reply_to is None:
            return
        message = await mesh.messages.queries.find(self._reply_to)
        if message is None:
            if not is_ulid(self._reply_to):  # else it may have been forgotten by now
                raise NotKnown(f"there is no message {self._reply_to}", hint="see `vox-mesh messages list`")
            self._options["reply_to"] = self._reply_to
            return
        self._options["reply_to"] = message.message_uuid
        self._options.setdefault("thread", message.thread)
        if message.correlation_id is not None:
            self._options.setdefault("correlation", message.correlation_id)

    async def _told(self, mesh: Mesh, sent: Sequence[Message]) -> list[Record]:
        return await records(mesh, sent) if self._as_json else [line(each) for each in sent]

    async def _became(self, mesh: Mesh, sent: Message) -> Message:
        """The message as it is in the database, once it is acknowledged or the time for that is over."""
        with suppress(DatabaseUnavailable):  # it is stored all the same
            if self._wait_ack is not None and await mesh.messages.wait_for_ack(sent, self._wait_ack):
                sent = sent._replace(state=MessageState.ACKED)
            return await mesh.messages.queries.find(sent.message_uuid) or sent
        return sent
