"""Events in wire format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from vox_mesh.views.redaction import redacted_json

Event = tuple[str, Any, int | None]
"""A name, its data, and the id of an entry of the log."""


def event_bytes(event: Event, *, is_redacted: bool) -> Iterator[bytes]:
    """Yield an event in wire format. JSON has no line breaks, so its data is one line.

    `is_redacted`: as a read-only credential sees it. Data that is encoded already is redacted already.
    """
    name, data, id_ = event
    head = f"event: {name}\n" if id_ is None else f"id: {id_}\nevent: {name}\n"
    yield f"{head}data: ".encode()
    if is_redacted and not isinstance(data, orjson.Fragment):
        yield from redacted_json(data)
    else:
        yield orjson.dumps(data)
    yield b"\n\n"


def json_of(data: Any, *, is_redacted: bool) -> orjson.Fragment:
    """Return data as JSON, for events of several listeners."""
    return orjson.Fragment(b"".join(redacted_json(data)) if is_redacted else orjson.dumps(data))
