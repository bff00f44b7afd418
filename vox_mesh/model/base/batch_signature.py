"""One signature for several texts: that of the root of a tree of their hashes.

Each text carries the signature and its way to the root: `ed25519:<hex>+l<hex>r<hex>…`, where `l` and `r` say
on which side of it the hash beside it stands. Whoever has one of the texts can check it without the others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MOST: Final = 64
"""So many texts have one signature, at the most: the way of each has a hash for every doubling."""

_WAY: Final = re.compile(r"(?:[lr][0-9a-f]{64}){1,6}")
_STEP: Final = 65
MAX_LENGTH: Final = 137 + 6 * _STEP
"""Of a signature with its way."""

_LEAF: Final = b"\0"
_INNER: Final = b"\1"
"""What is hashed begins with one of these, so that no inner hash can be taken for that of a text."""


class Tree(NamedTuple):
    """The hash of all texts, and the way of each to it."""

    root: str
    ways: list[str]


def grown(texts: Sequence[bytes]) -> Tree:
    """The tree of these texts."""
    assert 1 < len(texts) <= MOST
    ways = [""] * len(texts)
    row = [(_hash(_LEAF + text), [index]) for index, text in enumerate(texts)]
    while len(row) > 1:
        above = []
        for (left, on_left), (right, on_right) in zip(row[::2], row[1::2], strict=False):
            for index in on_left:
                ways[index] += "r" + right.hex()
            for index in on_right:
                ways[index] += "l" + left.hex()
            above.append((_hash(_INNER + left + right), on_left + on_right))
        if len(row) % 2:
            above.append(row[-1])  # it goes up alone, and its way is shorter by one
        row = above
    return Tree(row[0][0].hex(), ways)


def joined(signature: str, way: str) -> str:
    """The signature that one of the texts carries."""
    return f"{signature}+{way}"


def parted(signature: str, text: bytes) -> tuple[str, str | None]:
    """The signature itself and, if it is of several texts, the root that this one leads to."""
    own, plus, way = signature.partition("+")
    if not plus or not _WAY.fullmatch(way):
        return signature, None
    found = _hash(_LEAF + text)
    for start in range(0, len(way), _STEP):
        beside = bytes.fromhex(way[start + 1 : start + _STEP])
        found = _hash(_INNER + (beside + found if way[start] == "l" else found + beside))
    return own, found.hex()


def _hash(data: bytes) -> bytes:
    return hashlib.sha3_256(data).digest()
