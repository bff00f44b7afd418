"""Keep a record in a file, which its owner writes in one piece while other processes read it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

SIZE: Final = 2_048
"""The size of every such file."""

_READ_ATTEMPTS: Final = 3

R = TypeVar("R")


def encode(record: Any) -> bytes:
    """Return a dataclass as text of that size, with its checksum."""
    text = orjson.dumps(record)
    return f"{zlib.crc32(text):08x} ".encode() + text.ljust(SIZE - 10) + b"\n"


def decode(data: bytes, kind: type[R]) -> R | None:
    """Return the record of that class; `None` if it is damaged or of another version."""
    check, _, text = data.rstrip().partition(b" ")
    if f"{zlib.crc32(text):08x}".encode() != check:
        return None
    try:
        return kind(**orjson.loads(text))
    except (orjson.JSONDecodeError, TypeError):
        return None


def read_file(path: Path, kind: type[R]) -> R | None:
    """Return the record in a file; `None` if that is missing or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        for _ in range(_READ_ATTEMPTS):  # its owner may be writing it
            if (record := decode(os.pread(descriptor, SIZE, 0), kind)) is not None:
                return record
    finally:
        os.close(descriptor)
    return None
