"""Chunks: parts of a backup that are named by their content, so that an unchanged one is stored once.

Where a chunk ends depends on the lines around its end alone. So a row that is added, changed or removed
changes the chunk that it is in, and not the ones after it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from vox_mesh.errors import BadValue

_PREFIX: Final = "vox-mesh-chunk-"
_LEVEL: Final = 3
_MEAN_BYTES: Final = 2**20
_LEAST_BYTES: Final = 2**18
_MOST_BYTES: Final = 2**22
"""A chunk is less than twice as large: a longer line is divided."""
_CHECKSUMS: Final = 2**32


class Chunk(NamedTuple):
    """Some lines of a backup."""

    digest: str
    """The BLAKE3 of the lines."""
    size: int
    """Their size, before they are compressed."""

    @property
    def file_name(self) -> str:
        """Return the name under which it is stored."""
        return f"{_PREFIX}{self.digest}.z"

    @property
    def most_stored_bytes(self) -> int:
        """Return how large it can be when it is stored."""
        return self.size + self.size // 1_000 + 64

    def unpack(self, stored: bytes) -> bytes:
        """Return the lines of a stored chunk. Raises `BadValue` if it is not this one."""
        inflated = zlib.decompressobj()
        try:
            lines = inflated.decompress(stored, self.size + 1)
        except zlib.error as error:
            raise BadValue(f"it can't be unpacked: {error}") from None
        is_whole = inflated.eof and not inflated.unused_data and len(lines) == self.size
        if not is_whole or blake3(lines).hexdigest() != self.digest:
            raise BadValue("its content does not have the digest in its name")
        return lines


class ChunkWriter:
    """Cuts lines into chunks, and keeps new ones in a folder, compressed."""

    def __init__(self, folder: Path, stored: Collection[Chunk]) -> None:
        self._folder = folder
        self._stored = frozenset(stored)
        self._lines: list[bytes] = []
        self._size = 0
        self.chunks: list[Chunk] = []
        """All chunks, in order; complete after `finish`."""
        self.new: dict[Chunk, Path] = {}
        """The chunks that are to be stored, with their files."""

    def write(self, line: bytes) -> None:
        """Add a line."""
        for start in range(0, len(line), _MOST_BYTES):
            self._add(line[start : start + _MOST_BYTES])

    def finish(self) -> None:
        """End the last chunk."""
        if self._lines:
            self._cut()

    def _add(self, part: bytes) -> None:
        self._lines.append(part)
        self._size += len(part)
        if self._size >= _LEAST_BYTES and (self._size >= _MOST_BYTES or _is_last(part)):
            self._cut()

    def _cut(self) -> None:
        lines = b"".join(self._lines)
        chunk = Chunk(blake3(lines).hexdigest(), len(lines))
        self._lines, self._size = [], 0
        self.chunks.append(chunk)
        if chunk not in self._stored and chunk not in self.new:
            path = self._folder / chunk.file_name
            path.write_bytes(zlib.compress(lines, _LEVEL))
            self.new[chunk] = path


def _is_last(line: bytes) -> bool:
    """Return whether a chunk ends here: by chance, but always the same for the same line."""
    return zlib.crc32(line) * _MEAN_BYTES < len(line) * _CHECKSUMS
