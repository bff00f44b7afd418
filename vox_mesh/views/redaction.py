"""Redaction: what a read-only credential or another agent does not see, though the keys stay in the JSON.

Fencing tokens and claims prove that their holder may act, bodies of messages are for their receivers, and the
variables of jobs may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

_PROOFS: Final = frozenset({"fence_token", "claim_token", "last_token", "claim_owner"})
_ENV: Final = "env"
_MESSAGE: Final = ("message_uuid", "payload")
_RESULT: Final = "result"
_WORDS: Final = [f'"{name}"'.encode() for name in (*_PROOFS, _ENV, _RESULT, _MESSAGE[0], "bind")]
"""Without one of these, there is nothing to hide."""


def redacted_json(document: Any, reader: str | None = None) -> Iterator[bytes]:
    """Yield the JSON of a document as a read-only credential sees it: hidden values are null.

    The agent that reads it, `reader`, sees the messages that it sent or receives. While a large document is
    redacted, it yields empty pieces.
    """
    text = orjson.dumps(document)
    if any(name in text for name in _WORDS):
        seen = orjson.loads(text)
        for _ in _redact(seen, reader):
            yield b""
        text = orjson.dumps(seen)
    yield text


def is_redacted_as_one(names: Iterable[str]) -> bool:
    """Return whether an object with these members can't be redacted member by member."""
    return {*names}.issuperset(_MESSAGE)


def without_env(document: Any) -> Any:
    """Return a JSON value without the variables of jobs, for a model: their names stay."""
    if isinstance(document, list):
        return [without_env(each) for each in document]
    if not isinstance(document, dict):
        return document
    seen = {name: without_env(value) for name, value in document.items()}
    if _ENV in seen:
        env = seen[_ENV]
        seen[_ENV] = dict.fromkeys(env) if isinstance(env, dict) else None
    return seen


def _redact(document: Any, reader: str | None) -> Iterator[None]:
    """Hide values in a document, container by container."""
    found = [document]
    while found:
        value = found.pop()
        if isinstance(value, dict):
            shown = _own_values(value, reader)
            _redact_members(value)
            found += value.values()
            value |= shown
        elif isinstance(value, list):
            found += value
        yield


def _own_values(members: dict[str, Any], reader: str | None) -> dict[str, Any]:
    """Return what the reader may see of a message: its body as sender or receiver, its claim as receiver."""
    if reader is None or not members.keys() >= {*_MESSAGE, "sender_agent", "receiver_agent"}:
        return {}
    if members["receiver_agent"] == reader:
        return {name: members[name] for name in ("payload", "claim_owner") if name in members}
    return {"payload": members["payload"]} if members["sender_agent"] == reader else {}


def _redact_members(members: dict[str, Any]) -> None:
    for name in _PROOFS & members.keys():
        members[name] = None
    if _ENV in members:
        env = members[_ENV]
        members[_ENV] = dict.fromkeys(env) if isinstance(env, dict) else None
    path = members.get("bind")
    if "parts" in members and isinstance(path, list) and path[:1] == [_ENV]:
        members["parts"] = None  # the text of a variable that a workflow binds
    if isinstance(text := members.get(_RESULT), str):
        members[_RESULT] = _redact_text(text)
    if all(name in members for name in _MESSAGE):
        members["payload"] = None


def _redact_text(text: str) -> str:
    """Return a text with the JSON in it redacted: the result of an entry is such a text."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return b"".join(redacted_json(document)).decode() if isinstance(document, dict | list) else text


def with_hidden_values(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of answers with the values that may be hidden as nullable."""
    return {name: _nullable(schema) for name, schema in schemas.items()}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    fields = schema.get("properties", {})
    changed = {
        name: {"anyOf": [field, {"type": "null"}], "description": "Null for read-only tokens."}
        for name, field in fields.items()
        if name in _PROOFS and field.get("type") is not None
    }
    return {**schema, "properties": {**fields, **changed}} if changed else schema
