"""Redaction: what a read-only credential does not see, though the keys stay in the JSON.

Fencing tokens and claims prove that their holder may act, bodies of messages are for their receivers, and the
variables of jobs may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

_PROOFS: Final = frozenset({"fence_token", "claim_token", "last_token", "claim_owner"})
_ENV: Final = "env"
_MESSAGE: Final = ("message_uuid", "payload")
_RESULT: Final = "result"


def redacted(document: Any) -> Any:
    """Return a JSON document as a read-only credential sees it: hidden values are null."""
    return _redact(orjson.loads(orjson.dumps(document)))


def is_redacted_as_one(names: Iterable[str]) -> bool:
    """Return whether an object with these members can't be redacted member by member."""
    return {*names}.issuperset(_MESSAGE)


def _redact(value: Any) -> Any:
    if isinstance(value, list):
        return [_redact(each) for each in value]
    if not isinstance(value, dict):
        return value
    shown = {name: _redact_field(name, each) for name, each in value.items()}
    if all(name in shown for name in _MESSAGE):
        shown["payload"] = None
    return shown


def _redact_field(name: str, value: Any) -> Any:
    if name in _PROOFS:
        return None
    if name == _ENV:
        return dict.fromkeys(value) if isinstance(value, dict) else None
    if name == _RESULT and isinstance(value, str):
        return _redact_text(value)
    return _redact(value)


def _redact_text(text: str) -> str:
    """Return a text with the JSON in it redacted: the result of an entry is such a text."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return orjson.dumps(_redact(document)).decode() if isinstance(document, dict | list) else text


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
