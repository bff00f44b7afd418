"""Shared tokens of the HTTP service: how strong they must be, and how nodes recognise that they share one."""

from __future__ import annotations

import hashlib
import hmac
import math
import string
from typing import Final

MIN_BITS: Final = 128
"""The least strength of a token: an eavesdropper may try offline which token has made a key of the relay."""

_MIN_DISTINCT: Final = 8
_ID_DIGITS: Final = 16
_HEX: Final = frozenset(string.digits + "abcdef")
_CLASSES: Final = tuple(
    map(frozenset, (string.digits, string.ascii_lowercase, string.ascii_uppercase, string.punctuation))
)


def strength_bits(token: str) -> int:
    """Return the bits that a random token of this length and these kinds of characters has.

    Too few distinct characters count as none: the token was not drawn at random.
    """
    if len(set(token)) < _MIN_DISTINCT:
        return 0
    if _HEX.issuperset(token):
        size = len(_HEX)
    else:
        size = sum(len(each) for each in _CLASSES if not each.isdisjoint(token))
    return int(len(token) * math.log2(size))


def token_id(token: str, scope_id: str, repository_id: str) -> str:
    """Return a public name of a token: nodes of one mesh with the same name have the same token."""
    text = f"vox-mesh token\0{scope_id}\0{repository_id}".encode()
    return hmac.digest(token.encode(), text, hashlib.sha256).hex()[:_ID_DIGITS]
