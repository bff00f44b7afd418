"""Segment files: entries in the order of their commits, compressed, and signed by who archived them.

The lines are a header, one line for each entry as an export has it, and an end with the digest and signature
of all lines before it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from vox_mesh.errors import ArchiveFailed, BadValue
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.segment import Segment
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.archive.entry_lines import json_line, read_entry, record_of
from vox_mesh.store.targets.content import file_digest

_FORMAT: Final = "vox-mesh oplog segment"
_VERSION: Final = 1
_SIGNATURE_PREFIX: Final = b"vox-mesh segment\n"
_LEVEL: Final = 6
_MAX_LINE_BYTES: Final = 64 * 2**20


class SegmentHeader(NamedTuple):
    """The place of a segment: its mesh, its number, and what comes before it."""

    scope_id: str
    repository_id: str
    number: int
    after_id: int
    previous: str

    @property
    def line(self) -> bytes:
        """Return the first line of the file."""
        return json_line({"format": _FORMAT, "version": _VERSION, **self._asdict()})


class SegmentWriter:
    """Writes one segment to a new file. The same entries and author lead to the same bytes."""

    def __init__(self, path: Path, header: SegmentHeader, author: Identity) -> None:
        self._path = path
        self._header = header
        self._author = author
        self._raw: BinaryIO = path.open("xb")
        self._file = gzip.GzipFile("", "wb", _LEVEL, self._raw, mtime=0)
        self._lines = hashlib.sha256()
        self._heads: dict[str, tuple[int, str]] = {}
        self.entries = 0
        self._last_id = 0
        self._write(header.line)

    def _write(self, line: bytes) -> None:
        self._lines.update(line)
        self._file.write(line)

    def add(self, entries: Sequence[LogEntry]) -> None:
        """Write the next entries, in the order of their commits."""
        for entry in entries:
            self._write(json_line(record_of(entry)))
            self._heads[entry.node_id] = (entry.seq, entry.hash)
            self._last_id = entry.id
        self.entries += len(entries)

    def finish(self) -> Segment:
        """Write the end, flush the file to disk and close it. Return the segment."""
        digest = self._lines.hexdigest()
        end = {
            "entries": self.entries,
            "chain": self._author.chain,
            "digest": digest,
            "signature": self._author.key.sign(_signed_text(self._header.scope_id, digest)),
        }
        self._file.write(json_line(end))
        self._file.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        return Segment(
            self._header.number,
            self._header.after_id,
            self._last_id,
            self.entries,
            self._path.stat().st_size,
            file_digest(self._path),
            self._header.previous,
            self._heads,
        )

    def close(self) -> None:
        """Close the file, also one that was not finished."""
        self._raw.close()


def _signed_text(scope_id: str, digest: str) -> bytes:
    return b"%b%b\n%b" % (_SIGNATURE_PREFIX, scope_id.encode(), digest.encode())


class SegmentReader:
    """Reads one segment from a file, and checks that it is the recorded one before anything is unpacked."""

    def __init__(self, path: Path, mesh_id: tuple[str, str], segment: Segment) -> None:
        self._path = path
        self._segment = segment
        self._header = SegmentHeader(*mesh_id, segment.number, segment.after_id, segment.previous)
        self._heads: dict[str, tuple[int, str]] = {}
        self._last_id = segment.after_id

    def check_file(self) -> None:
        """Raise `ArchiveFailed` unless the file has the recorded size and digest."""
        try:
            size, digest = self._path.stat().st_size, file_digest(self._path)
        except OSError as error:
            raise self._error(f"it can't be read: {error.strerror}") from None
        if size != self._segment.bytes:
            raise self._error(f"it has {size} bytes, and the log records {self._segment.bytes}")
        if digest != self._segment.sha256:
            raise self._error(f"it has the digest {digest}, and the log records {self._segment.sha256}")

    def entries(self, keys: Sequence[str] = ()) -> Iterator[LogEntry]:
        """Yield the entries. At its end, raise `ArchiveFailed` unless all of the file is as it was written.

        `keys`: those of the node that archived it, one of which must have signed it; without any, all are.
        """
        lines, count = hashlib.sha256(), 0
        try:
            with gzip.open(self._path, "rb") as file:
                header = file.readline(_MAX_LINE_BYTES)
                if header != self._header.line:
                    raise self._error("its first line is that of another segment, or of another mesh")
                lines.update(header)
                while line := file.readline(_MAX_LINE_BYTES):
                    if line.startswith(b'{"entries":'):
                        self._check_end(line, count, lines.hexdigest(), keys)
                        if file.read(1):
                            raise self._error("something follows its last line")
                        return
                    lines.update(line)
                    count += 1
                    yield self._next(line)
        except (OSError, EOFError, zlib.error, ValueError, AttributeError, BadValue) as error:
            raise self._error(str(error)) from None
        raise self._error("it ends without its last line")

    def _next(self, line: bytes) -> LogEntry:
        entry = read_entry(line)
        if entry.repository_id != self._header.repository_id:
            raise self._error(f"entry {entry.id} belongs to another repository")
        if not self._last_id < entry.id <= self._segment.last_id:
            raise self._error(f"entry {entry.id} is not in its place")
        self._last_id = entry.id
        self._heads[entry.node_id] = (entry.seq, entry.hash)
        return entry

    def _check_end(self, line: bytes, count: int, digest: str, keys: Sequence[str]) -> None:
        end: Any = orjson.loads(line)
        is_whole = (end.get("entries"), self._last_id) == (count, self._segment.last_id)
        if not is_whole or count != self._segment.entries or end.get("digest") != digest:
            raise self._error("its entries are not the ones that its last line states")
        if self._heads != dict(self._segment.heads):
            raise self._error("its chains do not end where the log records it")
        text = _signed_text(self._header.scope_id, digest)
        if keys and not any(is_signed(text, str(end.get("signature")), key) for key in keys):
            raise self._error("the node that archived it has not signed it")

    def _error(self, what: str) -> ArchiveFailed:
        number, name = self._segment.number, self._segment.file_name
        return ArchiveFailed(f"segment {number} of the log is not what was archived: {name}: {what}")
