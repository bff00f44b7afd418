"""Keys of locks, and path patterns among them: their normal form, and whether two of them overlap.

A key is any short text, such as `task:42`, and stands for itself. Only a key that begins with `file:` can be
a pattern. The rest of it is a path, split at `/` into segments:

- `?` is exactly one character of a segment;
- `*` is any run of characters within a segment, also an empty one;
- a segment that is `**` and nothing else is any number of whole segments, also none: `src/**` is `src`
  itself and everything below it, and `a/**/b` is also `a/b`;
- `**` within a longer segment is two `*`, which is no more than one;
- every other character is itself. There are no classes and no escapes: a file whose name holds `*` or `?`
  is locked by a pattern that also takes in its look-alikes.

A path is one or more segments that are not empty. A dot at the beginning of a name is like any other
character. Texts are compared by code point, as they are given: case counts, and so does the way an accent is
written. Where the file system sees that differently (macOS by default), two spellings of one file are two
keys; paths from git are safe, as it reports each file by one name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from vox_mesh.errors import BadValue

FILE: Final = "file:"
"""The prefix of keys of paths and of path patterns."""

MAX_BYTES: Final = 1_024
"""The maximum size of a key in UTF-8 and normal form."""

_ANY_SEGMENTS: Final = "**"
_ANY_CHARACTERS: Final = "*"
_ONE_CHARACTER: Final = "?"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CACHE_SIZE: Final = 4_096


def is_pattern(key: str) -> bool:
    """Return whether the key is a pattern."""
    return (_ANY_CHARACTERS in key or _ONE_CHARACTER in key) and key.startswith(FILE)


def normalise(key: str) -> str:
    """Return the key in its normal form; raise `BadValue` if it is invalid."""
    if _CONTROL.search(key):
        raise BadValue(f"key must be printable text, got {key!r}", hint="remove the control characters")
    if key.startswith(FILE):
        key = FILE + _normal_path(key)
    if not key:
        raise BadValue(
            "key must not be empty", hint="name what is locked, such as file:src/lib.rs or task:42"
        )
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise BadValue(f"key must be valid Unicode, got {key!r}", hint="write it in UTF-8") from None
    if size > MAX_BYTES:
        raise BadValue(
            f"key must be at most {MAX_BYTES} bytes, got {size}",
            hint="use a shorter one, or a pattern of a folder above, such as file:src/**",
        )
    return key


def _normal_path(key: str) -> str:
    path = key[len(FILE) :]
    if path.startswith("/"):
        raise BadValue(
            f"path of a key must be relative, got {key!r}", hint="write it from the root of the repository"
        )
    segments = [segment for segment in path.split("/") if segment not in ("", ".")]
    if ".." in segments:
        raise BadValue(
            f"path of a key must not contain `..`, got {key!r}", hint="write it from the root downwards"
        )
    if not segments:
        raise BadValue(
            f"key must name a path, got {key!r}", hint="write file:src/lib.rs, or file:** for everything"
        )
    return "/".join(segments)


def overlap(a: str, b: str) -> bool:
    """Return whether two keys in normal form overlap: for patterns, whether some path matches both.

    The result is exact and symmetric. It takes at most as many steps as the product of the two lengths.
    """
    if a == b:
        return True
    if not (is_pattern(a) or is_pattern(b)) or not (a.startswith(FILE) and b.startswith(FILE)):
        return False
    return _overlap_parts(_split_at_any_segments(a), _split_at_any_segments(b), _segments_fit)


@lru_cache(maxsize=_CACHE_SIZE)
def _split_at_any_segments(key: str) -> Sequence[Sequence[str]]:
    parts: list[list[str]] = [[]]
    for segment in key[len(FILE) :].split("/"):
        if segment == _ANY_SEGMENTS:
            parts.append([])
        else:
            parts[-1].append(segment)
    return parts


def _overlap_parts(
    a: Sequence[Sequence[str]],
    b: Sequence[Sequence[str]],
    fit: Callable[[Sequence[str], Sequence[str]], bool],
) -> bool:
    """Return whether something matches both `a` and `b`: sequences of parts, with anything between two parts.

    The parts are of segments or of characters; `fit` returns whether two parts of equal length agree element
    by element.
    """
    if len(a) == 1 and len(b) == 1:
        return len(a[0]) == len(b[0]) and fit(a[0], b[0])
    if len(a) > 1 and len(b) > 1:
        # The inner parts never matter: put those of one before those of the other, and each finds the
        # other's where anything may be.
        head = min(len(a[0]), len(b[0]))
        tail = min(len(a[-1]), len(b[-1]))
        return fit(a[0][:head], b[0][:head]) and fit(_tail(tail, a[-1]), _tail(tail, b[-1]))
    whole, parts = (a[0], b) if len(a) == 1 else (b[0], a)
    start, end = len(parts[0]), len(whole) - len(parts[-1])
    if start > end or not fit(whole[:start], parts[0]) or not fit(whole[end:], parts[-1]):
        return False
    for part in parts[1:-1]:
        # The first position where a part fits is the best: it leaves the most room for later parts.
        size = len(part)
        while start + size <= end and not fit(whole[start : start + size], part):
            start += 1
        start += size
    return start <= end


def _tail(count: int, part: Sequence[str]) -> Sequence[str]:
    return part[len(part) - count :]


def _segments_fit(a: Sequence[str], b: Sequence[str]) -> bool:
    return a == b or all(map(_segments_overlap, a, b))


def _segments_overlap(a: str, b: str) -> bool:
    return a == b or _overlap_parts(a.split(_ANY_CHARACTERS), b.split(_ANY_CHARACTERS), _characters_fit)


def _characters_fit(a: Sequence[str], b: Sequence[str]) -> bool:
    if a == b:
        return True
    if _ONE_CHARACTER not in a and _ONE_CHARACTER not in b:
        return False
    return all(x == y or _ONE_CHARACTER in (x, y) for x, y in zip(a, b, strict=True))
