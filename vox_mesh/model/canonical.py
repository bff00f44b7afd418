"""Canonical JSON (RFC 8785): the one text of a value, so that its hash means the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
import rfc8785
from blake3 import blake3

from vox_mesh.errors import BadValue

JsonObject = Mapping[str, Any]

_EXACT_LIMIT: Final = 2**53
_PLAIN_TYPES: Final = frozenset({str, bool, type(None), orjson.Fragment})

embedded: Final = orjson.Fragment
"""A value by its canonical text, to be part of another: whoever has the text need not make it again."""


def canonical(value: Any) -> str:
    """The canonical text of a JSON value."""
    try:
        fast = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if _is_plain(value):
            return fast.decode()
        # No deeper than the fast one goes: what is written can be read.
        return rfc8785.dumps(_unfolded(value)).decode()
    except (rfc8785.CanonicalizationError, orjson.JSONEncodeError, RecursionError) as error:
        raise BadValue(
            f"the value has no canonical JSON: {error}",
            hint="use text, finite numbers (integers up to 2^53 - 1), true, false, null, lists and objects",
        ) from None


def content_id(value: Any) -> str:
    """The lowercase hex BLAKE3 of the canonical text of a JSON value."""
    return text_id(canonical(value))


def text_id(text: str) -> str:
    """The content id of a value by its canonical text."""
    return blake3(text.encode()).hexdigest()


def parse(text: str | bytes) -> Any:
    """The value of a JSON text, where all numbers are doubles: integers too large to be exact are floats."""
    try:
        return _as_doubles(orjson.loads(text))
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise BadValue(f"this is not JSON, or nested too deeply: {error}") from None


def is_canonical(text: str) -> bool:
    """Whether `text` is the canonical text of what it says."""
    try:
        value = orjson.loads(text)
        if _is_plain(value):  # the usual case, without looking at it twice
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() == text
        return canonical(_as_doubles(value)) == text
    except (BadValue, orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        return False


def _is_plain(value: Any) -> bool:
    """Whether the fast encoder's text is the canonical one.

    It is not for floats and large integers, and it sorts keys by code point where the standard sorts them
    by UTF-16 unit: the same for ASCII.
    """
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return True
    if kind is int:
        return bool(-_EXACT_LIMIT < value < _EXACT_LIMIT)
    # Plain loops, and no call for what needs none: this is part of every hash.
    if kind is dict:
        for key, each in value.items():
            if type(key) is not str or not key.isascii():
                return False
            kind = type(each)
            if kind is int:
                if not -_EXACT_LIMIT < each < _EXACT_LIMIT:
                    return False
            elif kind not in _PLAIN_TYPES and not _is_plain(each):
                return False
        return True
    if kind is list:
        for each in value:  # noqa: SIM110
            if type(each) not in _PLAIN_TYPES and not _is_plain(each):
                return False
        return True
    return False


def _unfolded(value: Any) -> Any:
    if isinstance(value, orjson.Fragment):
        return parse(orjson.dumps(value))
    if isinstance(value, dict):
        return {key: _unfolded(each) for key, each in value.items()}
    return [_unfolded(each) for each in value] if isinstance(value, list | tuple) else value


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
