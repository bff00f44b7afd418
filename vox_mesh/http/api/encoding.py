"""Encoding: the JSON of an answer, in pieces that each take little time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import orjson

from vox_mesh.views.redaction import is_redacted_as_one

Redact = Callable[[Any], Iterator[bytes]]
"""Yields the JSON of a value without what its reader may not see."""

_FEW: Final = 16


def encoded_at_once(answer: Any) -> bytes | None:
    """Return the JSON of an answer that takes little time; `None` if it has many items."""
    lists = [answer] if isinstance(answer, list) else _lists_of(answer)
    return orjson.dumps(answer) if all(len(each) <= _FEW for each in lists) else None


def _lists_of(answer: Any) -> Iterator[Sequence[Any]]:
    values = (getattr(answer, name) for name in getattr(answer, "__dataclass_fields__", ()))
    return (each for each in values if isinstance(each, list | tuple))


def encoded(answer: Any, redact: Redact | None) -> Iterator[bytes]:
    """Yield the JSON of an answer; each item of a list is a piece, also of the lists in an object.

    `redact`: without it, nothing is hidden.
    """
    if isinstance(answer, list):
        yield from _array(answer, redact)
    elif is_dataclass(answer) and not is_redacted_as_one(each.name for each in fields(answer)):
        yield from _object(answer, redact)
    else:
        yield from _json(answer, redact)


def _object(answer: Any, redact: Redact | None) -> Iterator[bytes]:
    separator = b"{"
    members: dict[str, Any] = {}  # the ones since the last list, which are one piece
    for field in fields(answer):
        value = getattr(answer, field.name)
        if not value or not isinstance(value, list | tuple):
            members[field.name] = value
            continue
        if members:
            yield separator + b"".join(_json(members, redact))[1:-1]
            separator, members = b",", {}
        yield separator + orjson.dumps(field.name) + b":"
        yield from _array(value, redact)
        separator = b","
    if members:
        yield separator + b"".join(_json(members, redact))[1:-1]
    yield b"}"


def _array(items: Sequence[Any], redact: Redact | None) -> Iterator[bytes]:
    yield b"["
    for at, item in enumerate(items):
        if at:
            yield b","
        yield from _json(item, redact)
    yield b"]"


def _json(value: Any, redact: Redact | None) -> Iterator[bytes]:
    return iter((orjson.dumps(value),)) if redact is None else redact(value)
