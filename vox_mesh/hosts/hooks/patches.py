"""Patches in the form of `apply_patch`: the paths that they change."""

from __future__ import annotations

import re
from typing import Final

_HEADER: Final = re.compile(
    r"^\s*\*\*\* (?:Add File|Update File|Delete File|Move to):\s?(.*?)\s*$", re.MULTILINE
)
BEGIN: Final = "*** Begin Patch"
"""The first line of a patch."""


def patched_paths(patch: str) -> list[str]:
    """Return the paths that a patch adds, changes, deletes or moves to, each once, in order."""
    return list(dict.fromkeys(path for path in _HEADER.findall(patch) if path))
