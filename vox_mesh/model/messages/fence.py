"""Fences: text of other agents as a model reads it, marked as data, with its author and signature state."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from vox_mesh.errors import BadValue

_BOUNDARY: Final = re.compile(r"[0-9a-z]{8,64}")
_MAX_AUTHOR: Final = 128
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""What a person would not see: controls, changes of direction, tags and variants. Line ends and tabs stay."""

_NOT_IN_NAME: Final = re.compile(r"[\"<>&\s]")


def fence(text: str, *, author: str, signature_state: str, boundary: str) -> str:
    """Return the text between two marks that it can't contain, which say whose data it is.

    `boundary`: random, at least 8 lower-case letters and digits; another is derived from it if the text
    contains it. `signature_state`: whether the author has signed the text (`verified`, `absent`, `wrong`).
    """
    if not _BOUNDARY.fullmatch(boundary):
        raise BadValue(f"boundary must be 8 to 64 lower-case letters and digits, got {boundary[:80]!r}")
    seen = without_hidden(text.replace("\r\n", "\n"))
    mark = f"untrusted-{_absent_from(seen, boundary)}"
    return f'<{mark} from="{_name(author)}" signature="{_name(signature_state)}">\n{seen}\n</{mark}>'


def without_hidden(text: str) -> str:
    """Return a text with a mark for each character that a person would not see, and a model would read."""
    return _HIDDEN.sub(_REPLACEMENT, text)


def _absent_from(text: str, boundary: str) -> str:
    """Return the boundary, or one derived from it that does not occur in the text."""
    folded = text.casefold()
    while boundary in folded:
        boundary = hashlib.blake2b(f"{boundary}\n{text}".encode(errors="replace"), digest_size=16).hexdigest()
    return boundary


def _name(text: str) -> str:
    """Return a name as an attribute: bounded, on one line, and without quotes."""
    return _NOT_IN_NAME.sub("_", without_hidden(text))[:_MAX_AUTHOR]
