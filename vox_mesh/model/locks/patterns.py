"""Keys of locks, and path patterns among them: their normal form, and whether they overlap or cover others.

A key is any short text, such as `task:42`, and stands for itself. Only a key that begins with `file:` can be
a pattern. The rest of it is a path, split at `/` into segments:

- `?` is exactly one character of a segment;
- `*` is any run of characters within a segment, also an empty one;
- a segment that is `**` and nothing else is any number of whole segments, also none: `src/**` is `src`
  itself and everything below it, and `a/**/b` is also `a/b`;
- a path that ends with `/` is a folder: `src/` is short for `src/**`;
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
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.model.locks.pattern_automaton import path_covers, paths_overlap

FILE: Final = "file:"
"""The prefix of keys of paths and of path patterns."""

MAX_BYTES: Final = 1_024
"""The maximum size of a key in UTF-8 and normal form."""

_ANY_CHARACTERS: Final = "*"
_ONE_CHARACTER: Final = "?"
_ANY_SEGMENTS: Final = "**"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_pattern(key: str) -> bool:
    """Return whether the key is a pattern."""
    return (_ANY_CHARACTERS in key or _ONE_CHARACTER in key) and key.startswith(FILE)


def normalise(key: str) -> str:
    """Return the key in its normal form; raise `BadValue` if it is invalid."""
    refuse_control_characters(key)
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


def refuse_control_characters(key: str) -> None:
    """Raise `BadValue` if the key holds control characters."""
    if _CONTROL.search(key):
        raise BadValue(f"key must be printable text, got {key!r}", hint="remove the control characters")


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
    if path.endswith("/") and segments[-1] != _ANY_SEGMENTS:
        segments.append(_ANY_SEGMENTS)  # a folder stands for itself and everything in it
    return "/".join(segments)


def overlap(a: str, b: str) -> bool:
    """Return whether two keys in normal form overlap: for patterns, whether some path matches both.

    The result is exact and symmetric. It takes a few steps for each of their characters.
    """
    if a == b:
        return True
    if not (is_pattern(a) or is_pattern(b)) or not (a.startswith(FILE) and b.startswith(FILE)):
        return False
    if is_pattern(b):
        a, b = b, a  # the automaton of a pattern is kept for the next path
    return paths_overlap(a[len(FILE) :], b[len(FILE) :])


def key_covers(wide: str, narrow: str) -> bool:
    """Return whether a key or pattern in normal form covers another: each key that `narrow` stands for.

    Here a key other than a path may end with `*`, for all keys that begin like it.
    """
    if wide.startswith(FILE) and narrow.startswith(FILE):
        return wide == narrow or path_covers(wide[len(FILE) :], narrow[len(FILE) :])
    return prefix_covers(wide, narrow)


def prefix_covers(wide: str, narrow: str) -> bool:
    """Return whether a text, or a prefix such as `notes.*`, covers another one."""
    return wide == narrow or (wide.endswith(_ANY_CHARACTERS) and narrow.startswith(wide[:-1]))
