"""The content of files: in pieces, and as a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 2**20


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def blocks_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
