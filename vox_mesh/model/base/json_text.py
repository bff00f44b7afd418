"""JSON from outside: refused where another reader would see another value, or could not pass it on.

Duplicate names, integers that do not fit into 64 bits, numbers that are no doubles, half surrogate pairs and
deep nesting are refused, never changed silently.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

import orjson

from vox_mesh.errors import BadValue, NotJson

MAX_DEPTH: Final = 64
"""How many levels a value from outside may have: `[]` has one, `[[]]` two."""

MAX_STORED_DEPTH: Final = 128
"""How many levels a stored value may have to be passed on: earlier versions accepted deeper ones."""

MAX_INTEGER: Final = 2**63 - 1
"""The largest integer that the database and all readers keep."""

COUNTER_LIMIT: Final = 2**53
"""No counter of the mesh reaches this in centuries; above it, additions would become inexact."""

UNREADABLE: Final = "unreadable"
"""The name of the only field in place of a stored value that can't be read."""

_CONTAINERS: Final = (dict, list, tuple)
_SCALARS: Final = frozenset({str, int, bool, float, type(None), orjson.Fragment})
"""Types of most values that hold no others: asking for them is faster."""
_LONG_NUMBER: Final = re.compile(r"[0-9]{19}")


def read_json(text: str | bytes, max_depth: int = MAX_DEPTH) -> Any:
    """Return the value of a JSON text from outside.

    Raises `NotJson` if it is none, and `BadValue` if the mesh does not accept its value.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NotJson(f"this is not JSON: {error}") from None
    decoded = text if isinstance(text, str) else text.decode()
    check_depth(value, decoded, max_depth)
    if decoded.count(":") > 1 or _LONG_NUMBER.search(decoded):
        _STRICT.decode(decoded)
    return value


def check_depth(value: Any, text: str, limit: int = MAX_DEPTH) -> None:
    """Raise `BadValue` if a value has too many levels; `text` is its JSON, which shows that of most."""
    if text.count("[") + text.count("{") > limit and is_deeper(value, limit):
        raise BadValue(
            f"a JSON value must be nested at most {limit} levels deep",
            hint="make it flatter, or send it as text",
        )


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether a value has more than `limit` levels; in linear time, and without recursion."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            each
            for one in level
            for each in (one.values() if isinstance(one, dict) else one)
            if type(each) not in _SCALARS and isinstance(each, _CONTAINERS)
        ]
    return bool(level)


def read_stored(text: str) -> Any:
    """Return the value of a stored JSON text. Raises `BadValue` if it can't be read and passed on."""
    if not isinstance(text, str):  # a hostile row may hold anything
        raise NotJson(f"this is not JSON but {type(text).__name__}")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NotJson(f"this is not JSON: {error}") from None
    check_depth(value, text, MAX_STORED_DEPTH)
    return value


def shown(text: str) -> Any:
    """Return the value of a stored JSON text, or in its place an object that says why it can't be read."""
    try:
        return read_stored(text)
    except BadValue as error:
        return {UNREADABLE: str(error)}


# --- the second look: at names and integers ------------------------------------------------------


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise BadValue(
                f"the name {name[:64]!r} occurs twice in a JSON object", hint="give each name once"
            )
        names.add(name)


def _check_integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else MAX_INTEGER + 1
    if not -MAX_INTEGER - 1 <= number <= MAX_INTEGER:
        raise BadValue(
            f"the integer {digits[:24]} does not fit into 64 bits", hint="send it as text, in quotes"
        )
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(f"this is not JSON: {name} is no number")


_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_check_names, parse_int=_check_integer, parse_constant=_refuse_constant
)
