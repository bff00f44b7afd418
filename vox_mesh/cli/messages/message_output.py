"""Messages as commands print them: as records, in a table, or in full."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from vox_mesh.cli.support.output import Record, fields, printable, show_lines, show_next, show_one, table
from vox_mesh.cli.support.session import AgentMesh
from vox_mesh.errors import MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.messages.records import Message

_SHORT: Final = 60
_TIMES: Final = ("expires_ms", "ack_by_ms", "claim_until_ms", "not_before_ms")


async def records(mesh: AgentMesh, messages: Iterable[Message]) -> list[Record]:
    """Return messages as records, with decoded payloads."""
    from vox_mesh.views.messages import MessageView  # slow to import

    if not isinstance(mesh, Mesh):
        stamps = mesh.messages.stamp_of
        return [vars(MessageView.stamped(each, *stamps(each))) for each in messages]
    with suppress(MeshError):  # then the known tempos stamp them
        await mesh.rhythm.refresh()
    return [vars(MessageView.of(mesh, each)) for each in messages]


def text_of(message: Message) -> str:
    """Return the body of a message: text unchanged, everything else as JSON."""
    body = message.body
    return body if isinstance(body, str) else message.payload


def line(message: Message, **more: str | None) -> Record:
    """Return a message's row of the table, with the whole body; `more` adds columns."""
    return {
        "position": message.position,
        "message_uuid": message.message_uuid,
        "from": message.sender_agent,
        "to": message.receiver_agent,
        "type": message.msg_type,
        "priority": message.priority,
        "state": message.state,
        "signed": message.signed_by_agent,
        "attempts": message.delivery_attempts,
        "created_at": message.created_at,
        **more,
        "payload": text_of(message),
    }


def short_line(message: Message, **more: str | None) -> Record:
    """Return a message's row of the table, with the start of the body."""
    text = " ".join(text_of(message)[: 4 * _SHORT].split())
    return {**line(message, **more), "payload": text if len(text) <= _SHORT else f"{text[:_SHORT]}…"}


async def show_next_message(mesh: AgentMesh, message: Message, row: Record, *, as_json: bool) -> None:
    """Print one message of a stream; `row` is its row of the table."""
    if as_json:
        show_next(*await records(mesh, [message]))
    else:
        show_lines(table([row])[1:])


def show_message(record: Record, *, as_json: bool) -> None:
    """Print a message in full."""
    if as_json:
        show_one(record, as_json=True)
        return
    about = {
        name.removesuffix("_ms"): _time(value) if name in _TIMES else value
        for name, value in record.items()
        if name != "payload"
    }
    body = record["payload"]
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, indent=2)
    show_lines([*fields(about), "", *map(printable, text.expandtabs().splitlines())])


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(milliseconds / 1_000, UTC)
    except (ValueError, OverflowError):  # only a hostile row holds such a time
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
