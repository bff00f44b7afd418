"""One signature for several texts: that of the root of a Merkle tree of their hashes.

Each text carries the signature and its path to the root: `ed25519:<hex>+l<hex>r<hex>…`, where `l` and `r` say
on which side the sibling hash stands. Each text can be verified without the others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_TEXTS: Final = 64
"""The maximum number of texts with one signature: each path has a hash for every doubling."""

_PATH: Final = re.compile(r"(?:[lr][0-9a-f]{64}){1,6}")
_STEP_LENGTH: Final = 65
MAX_LENGTH: Final = 137 + 6 * _STEP_LENGTH
"""The maximum length of a signature with its path."""

_LEAF: Final = b"\0"
_INNER: Final = b"\1"
"""Prefixes of what is hashed, so that no inner hash can be taken for that of a text."""


class Tree(NamedTuple):
    """The hash of all texts, and the path of each to it."""

    root: str
    paths: list[str]


def merkle_tree(texts: Sequence[bytes]) -> Tree:
    """Return the Merkle tree of these texts."""
    assert 1 < len(texts) <= MAX_TEXTS
    paths = [""] * len(texts)
    row = [(_hash(_LEAF + text), [index]) for index, text in enumerate(texts)]
    while len(row) > 1:
        above = []
        for (left, on_left), (right, on_right) in zip(row[::2], row[1::2], strict=False):
            for index in on_left:
                paths[index] += "r" + right.hex()
            for index in on_right:
                paths[index] += "l" + left.hex()
            above.append((_hash(_INNER + left + right), on_left + on_right))
        if len(row) % 2:
            above.append(row[-1])  # it goes up alone, and its path is shorter by one
        row = above
    return Tree(row[0][0].hex(), paths)


def join_signature(signature: str, path: str) -> str:
    """Return the signature that one of the texts carries."""
    return f"{signature}+{path}"


def split_signature(signature: str, text: bytes) -> tuple[str, str | None]:
    """Return the signature itself and, if it is shared, the root that this text leads to."""
    own, plus, path = signature.partition("+")
    if not plus or not _PATH.fullmatch(path):
        return signature, None
    digest = _hash(_LEAF + text)
    for start in range(0, len(path), _STEP_LENGTH):
        sibling = bytes.fromhex(path[start + 1 : start + _STEP_LENGTH])
        digest = _hash(_INNER + (sibling + digest if path[start] == "l" else digest + sibling))
    return own, digest.hex()


def _hash(data: bytes) -> bytes:
    return hashlib.sha3_256(data).digest()
