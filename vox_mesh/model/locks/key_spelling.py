"""The spelling of keys as people and agents type them: known prefixes, and bare paths.

A key that protects nothing because of a typo is worse than an error. So a prefix that is not known, in the
wrong case or next to a stray space is refused, with the right spelling.
"""

from __future__ import annotations

import re
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.model.locks.patterns import FILE, refuse_control_characters

TASK: Final = "task:"
"""The prefix of keys of everything that is no path."""

_MESH: Final = "mesh:"
_KNOWN: Final = (FILE, TASK, _MESH)
_ALSO_FILE: Final = frozenset({"dir", "directory", "f", "files", "folder", "path", "paths", "pattern"})
_ALSO_TASK: Final = frozenset({"job", "jobs", "tasks", "todo"})
_PREFIX: Final = re.compile(r"([^\s:/.*?]+\s*):")
_PATH_SIGNS: Final = re.compile(r"[/.*?]")


def prefix_of(text: str) -> str:
    """Return the known prefix of a typed key; empty for a bare path.

    Raises `BadValue` with the right spelling if the prefix is unknown or the key is misspelt.
    """
    refuse_control_characters(text)
    found = _PREFIX.match(text.strip())
    if found is None:
        _refuse_unless_equal(text, text.strip())
        return ""
    prefix, rest = f"{found[1].strip().lower()}:", text.strip()[found.end() :].strip()
    if prefix not in _KNOWN:
        raise _unknown_prefix(text, found[1].strip(), rest)
    _refuse_unless_equal(text, prefix + rest)
    return prefix


def is_path_like(text: str) -> bool:
    """Return whether a bare text can only be meant as a path."""
    return _PATH_SIGNS.search(text) is not None


def _refuse_unless_equal(text: str, right: str) -> None:
    if text == right:
        return
    what = "stray spaces" if text.lower() != right.lower() else "a prefix in the wrong case"
    raise BadValue(f"key must not have {what}, got {text!r}", hint=f"write {right!r}")


def _unknown_prefix(text: str, prefix: str, rest: str) -> BadValue:
    name = prefix.lower()
    if name in _ALSO_FILE:
        right = repr(FILE + rest)
    elif name in _ALSO_TASK:
        right = repr(TASK + rest)
    else:
        right = _near(name, rest) or f"{TASK + text.strip()!r}, or {FILE + text.strip()!r} for a path"
    return BadValue(
        f"key must begin with {FILE} or {TASK}, got {text!r}",
        hint=f"write {right}; --literal takes any other key",
    )


def _near(name: str, rest: str) -> str:
    from difflib import get_close_matches  # imported late: only a refusal needs it

    near = get_close_matches(name, ("file", "task"), n=1, cutoff=0.7)
    return repr(f"{near[0]}:{rest}") if near else ""
