"""Encoding: the JSON of an answer, in pieces that each take little time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import orjson

from vox_mesh.http.redaction import is_redacted_as_one, redacted_json


def encoded(answer: Any, *, is_redacted: bool) -> Iterator[bytes]:
    """Yield the JSON of an answer. Each item of a list is a piece, also of the lists in an object."""
    if isinstance(answer, list):
        yield from _array(answer, is_redacted=is_redacted)
    elif is_dataclass(answer) and not is_redacted_as_one(each.name for each in fields(answer)):
        yield from _object(answer, is_redacted=is_redacted)
    else:
        yield from _json(answer, is_redacted=is_redacted)


def _object(answer: Any, *, is_redacted: bool) -> Iterator[bytes]:
    separator = b"{"
    members: dict[str, Any] = {}  # the ones since the last list, which are one piece
    for field in fields(answer):
        value = getattr(answer, field.name)
        if not value or not isinstance(value, list | tuple):
            members[field.name] = value
            continue
        if members:
            yield separator + b"".join(_json(members, is_redacted=is_redacted))[1:-1]
            separator, members = b",", {}
        yield separator + orjson.dumps(field.name) + b":"
        yield from _array(value, is_redacted=is_redacted)
        separator = b","
    if members:
        yield separator + b"".join(_json(members, is_redacted=is_redacted))[1:-1]
    yield b"}"


def _array(items: Sequence[Any], *, is_redacted: bool) -> Iterator[bytes]:
    yield b"["
    for at, item in enumerate(items):
        if at:
            yield b","
        yield from _json(item, is_redacted=is_redacted)
    yield b"]"


def _json(value: Any, *, is_redacted: bool) -> Iterator[bytes]:
    if is_redacted:
        return redacted_json(value)
    return iter((orjson.dumps(value),))
