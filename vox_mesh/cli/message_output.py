"""Messages as commands print them: by column, on a line, or in full."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from vox_mesh.cli.output import Record, fields, printable, show_lines, show_next, show_one, table
from vox_mesh.model.messages import Message
from vox_mesh.views.messages import MessageView

_SHORT: Final = 60
_TIMES: Final = ("expires_ms", "ack_by_ms", "claim_until_ms", "not_before_ms")


def record(message: Message) -> Record:
    """A message by column; its payload is the value itself."""
    return vars(MessageView.of(message))


def text_of(message: Message) -> str:
    """A message's body: text as it is, everything else as JSON."""
    body = message.body
    return body if isinstance(body, str) else message.payload


def line(message: Message, **more: str | None) -> Record:
    """A message as people want to see it among others, with all of its body, and what else is told."""
    return {
        "position": message.position,
        "message_uuid": message.message_uuid,
        "from": message.sender_agent,
        "to": message.receiver_agent,
        "type": message.msg_type,
        "priority": message.priority,
        "state": message.state,
        "attempts": message.delivery_attempts,
        "created_at": message.created_at,
        **more,
        "payload": text_of(message),
    }


def short_line(message: Message, **more: str | None) -> Record:
    """The same with the beginning of its body."""
    text = " ".join(text_of(message)[: 4 * _SHORT].split())
    return {**line(message, **more), "payload": text if len(text) <= _SHORT else f"{text[:_SHORT]}…"}


def show_next_message(message: Message, how: Record, *, as_json: bool) -> None:
    """Print one of many messages that come one by one; `how` is its line."""
    if as_json:
        show_next(record(message))
    else:
        show_lines(table([how])[1:])


def show_message(message: Message, *, as_json: bool) -> None:
    """Print all of a message: what its sender wrote, who has it, and what became of it."""
    if as_json:
        show_one(record(message), as_json=True)
        return
    about = {
        name.removesuffix("_ms"): _time(value) if name in _TIMES else value
        for name, value in record(message).items()
        if name != "payload"
    }
    body = message.body
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, indent=2)
    show_lines([*fields(about), "", *map(printable, text.expandtabs().splitlines())])


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return (
        datetime.fromtimestamp(milliseconds / 1_000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
