"""JSON from outside: refused where another reader would see another value, or could not pass it on.

Duplicate names, integers that do not fit into 64 bits, numbers that are no doubles, half surrogate pairs and deep
nesting are refused, never changed silently.
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
"""How many levels a stored value may have to be passed on. Earlier versions stored deeper ones than are accepted."""

MAX_INTEGER: Final = 2**63 - 1
"""The largest integer that the database and all readers keep."""

_CONTAINERS: Final = (dict, list, tuple)
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
            f"a JSON value must be nested at most {limit} levels deep", hint="make it flatter, or send it as text"
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
            if isinstance(each, _CONTAINERS)
        ]
    return bool(level)


def is_passable(text: object) -> bool:
    """Return whether a stored text is JSON that can be read here and passed on."""
    if not isinstance(text, str):
        return False
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return False
    return text.count("[") + text.count("{") <= MAX_STORED_DEPTH or not is_deeper(value, MAX_STORED_DEPTH)


# --- the second look: at names and integers ------------------------------------------------------


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise BadValue(f"the name {name[:64]!r} occurs twice in a JSON object", hint="give each name once")
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
