"""Rows as JSON: every value that a column can hold survives the round trip unchanged.

Values that JSON lacks are objects with one name: `{"$base64": ...}` for bytes, `{"$int": ...}` for integers
that are too large to be exact, `{"$real": ...}` for floats with integral values.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical

_EXACT_LIMIT: Final = 2**53
_BYTES: Final = "$base64"
_INT: Final = "$int"
_REAL: Final = "$real"


def encode_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose canonical JSON loses nothing."""
    return {name: _encode(value) for name, value in row.items()}


def _encode(value: Any) -> Any:
    if isinstance(value, int) and not -_EXACT_LIMIT < value < _EXACT_LIMIT:
        return {_INT: str(value)}
    if isinstance(value, float) and value.is_integer():
        return {_REAL: repr(value)}
    return _show(value)


def show_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON for readers that distinguish 1 from 1.0: only bytes are encoded."""
    return {name: _show(value) for name, value in row.items()}


def _show(value: Any) -> Any:
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def row_text(row: Mapping[str, Any]) -> str:
    """Return the canonical JSON of a row."""
    return canonical(encode_row(row))


def row_of(text: str) -> dict[str, Any]:
    """Return the row that a text of `row_text` describes."""
    return decode_row(orjson.loads(text))


def decode_row(document: Any) -> dict[str, Any]:
    """Return the row that a JSON document describes, with each value in either form."""
    if not isinstance(document, Mapping):
        raise BadValue("a row is a JSON object", hint='for example {"content": "new text"}')
    return {name: _decode(name, value) for name, value in document.items()}


def _decode_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_FORMS: Final[dict[str, Callable[[str], Any]]] = {_BYTES: _decode_bytes, _INT: int, _REAL: float}


def _decode(name: str, value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) == 1:
        ((form, text),) = value.items()
        if form in _FORMS and isinstance(text, str):
            try:
                return _FORMS[form](text)
            except (ValueError, binascii.Error):
                raise BadValue(f"{name!r}: {text!r} is no {form} value") from None
    if isinstance(value, Mapping | list):
        raise BadValue(
            f"{name!r}: a column holds text, a number, bytes or nothing",
            hint=f'write JSON as text, and bytes as {{"{_BYTES}": "..."}}',
        )
    return value
