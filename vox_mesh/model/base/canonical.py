"""Canonical JSON (RFC 8785), the unique text of a value, so that its hash identifies it; rows as JSON."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
import rfc8785
from blake3 import blake3

from vox_mesh.errors import BadValue
from vox_mesh.model.base.json_text import MAX_DEPTH, MAX_INTEGER, check_depth

JsonObject = Mapping[str, Any]

_EXACT_LIMIT: Final = 2**53
_PLAIN_TYPES: Final = frozenset({str, int, bool, type(None), orjson.Fragment})
_LEAST_PLAIN: Final = 1e-4
_MOST_PLAIN: Final = 1e15
_SORTED: Final = orjson.OPT_SORT_KEYS
_EXACT: Final = _SORTED | orjson.OPT_STRICT_INTEGER

embedded: Final = orjson.Fragment
"""Embeds a value by its canonical text in another one, so that it is not encoded again."""


def canonical(value: Any, *, max_depth: int | None = MAX_DEPTH) -> str:
    """Return the canonical text of a JSON value; raise `BadValue` if it has none or is nested too deeply.

    Embedded texts do not count for the depth. Pass `None` for a document around values that were checked
    before, and for what is stored already.
    """
    text = _encoded(value)
    if max_depth is not None:
        check_depth(value, text, max_depth)
    return text


def _encoded(value: Any) -> str:
    try:
        # No deeper than the fast encoder goes: what is written can be read.
        return _fast(value) or rfc8785.dumps(_unfold(value)).decode()
    except (rfc8785.CanonicalizationError, orjson.JSONEncodeError, RecursionError) as error:
        raise BadValue(
            f"the value has no canonical JSON: {error}",
            hint="use text, finite numbers (integers up to 2^53 - 1), true, false, null, lists and objects",
        ) from None


def content_id(value: Any) -> str:
    """Return the lowercase hex BLAKE3 of the canonical text of a JSON value."""
    return text_id(canonical(value, max_depth=None))


def text_id(text: str) -> str:
    """Return the content id of a value, given its canonical text."""
    return blake3(text.encode()).hexdigest()


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text with all numbers as doubles: large integers become floats."""
    try:
        return _as_doubles(orjson.loads(text))
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise BadValue(f"this is not JSON, or nested too deeply: {error}") from None


def is_canonical(text: str) -> bool:
    """Return whether `text` is canonical JSON."""
    try:
        value = orjson.loads(text)
        return (_fast(value) or _encoded(_as_doubles(value))) == text
    except (BadValue, orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        return False


def _fast(value: Any) -> str | None:
    """Return the fast encoder's text if it is canonical, or `None` if the slow encoder must decide.

    It is not canonical for most floats and large integers, and it sorts keys by code point where the standard
    sorts them by UTF-16 unit, which is the same for ASCII.
    """
    try:
        text = orjson.dumps(value, option=_EXACT)
    except orjson.JSONEncodeError:
        orjson.dumps(value, option=_SORTED)  # raises if anything but an integer is wrong
        return None
    if not _is_plain(value) or not (text.isascii() or _has_ascii_keys(value)):
        return None
    return text.decode()


def _is_plain(value: Any) -> bool:
    """Return whether both encoders write the value in the same way."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return True
    if kind is dict:
        value = value.values()
    elif kind is float:  # both write the shortest digits, and no exponent within these bounds
        return _LEAST_PLAIN <= abs(value) < _MOST_PLAIN and not value.is_integer()
    elif kind is not list:
        return False
    # A plain loop without needless calls: this is part of every hash.
    for each in value:  # noqa: SIM110
        if type(each) not in _PLAIN_TYPES and not _is_plain(each):
            return False
    return True


def _has_ascii_keys(value: Any) -> bool:
    if type(value) is dict:
        return all(key.isascii() and _has_ascii_keys(each) for key, each in value.items())
    return type(value) is not list or all(map(_has_ascii_keys, value))


def _unfold(value: Any) -> Any:
    if isinstance(value, orjson.Fragment):
        return parse(orjson.dumps(value))
    if isinstance(value, dict):
        return {key: _unfold(each) for key, each in value.items()}
    return [_unfold(each) for each in value] if isinstance(value, list | tuple) else value


def _as_doubles(value: Any) -> Any:
    if type(value) is dict:
        for key, each in value.items():
            if type(each) is not str:
                value[key] = _as_doubles(each)
    elif type(value) is list:
        for index, each in enumerate(value):
            if type(each) is not str:
                value[index] = _as_doubles(each)
    elif type(value) is int and not -_EXACT_LIMIT < value < _EXACT_LIMIT:
        return float(value)
    return value


# --- rows ----------------------------------------------------------------------------------------


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


def _decode_integer(text: str) -> int:
    number = int(text)
    if not -MAX_INTEGER - 1 <= number <= MAX_INTEGER:
        raise ValueError(text)
    return number


def _decode_real(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # a column would hold nothing instead
        raise ValueError(text)
    return number


_FORMS: Final[dict[str, Callable[[str], Any]]] = {
    _BYTES: _decode_bytes,
    _INT: _decode_integer,
    _REAL: _decode_real,
}


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
