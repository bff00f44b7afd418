"""Segments: parts of the log that were exported to an archive, as the signed ops in the log state them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.oplog.chain import LogEntry

ARCHIVE: Final = "ArchiveSegment"
"""The op that records a segment. The log keeps it, and with it the digest of the segment's file."""

NO_SEGMENT: Final = "0" * 64
"""The digest before the first segment."""

MAX_ENTRIES: Final = 50_000
"""How many entries a segment has at most."""

FILE_PREFIX: Final = "segment-"
"""How the names of all files begin."""

_VOID: Final = "void"
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_COUNTS: Final = ("number", "after_id", "last_id", "entries", "bytes")


class Segment(NamedTuple):
    """All entries of a mesh after one commit and up to another, in one file."""

    number: int
    """1, 2, 3, … without a gap."""

    after_id: int
    """The last entry of the segment before; 0 before the first."""

    last_id: int
    entries: int
    bytes: int
    """The size of the file."""

    sha256: str
    """The digest of the file."""

    previous: str
    """That of the segment before."""

    heads: Mapping[str, tuple[int, str]]
    """The number and hash of the last entry of each chain in it: it is an anchor of them."""

    @property
    def file_name(self) -> str:
        """Return the name of the file in the archive."""
        return f"{FILE_PREFIX}{self.number:06d}-{self.sha256[:16]}.jsonl.gz"

    @property
    def end(self) -> tuple[int, int, str]:
        """Return what the next segment follows: the number, the last entry and the digest."""
        return self.number, self.last_id, self.sha256

    @property
    def payload(self) -> str:
        """Return the payload of the op."""
        heads = {chain: [*head] for chain, head in self.heads.items()}
        return canonical({**self._asdict(), "heads": heads})

    @classmethod
    def read(cls, entry: LogEntry) -> Segment:
        """Return the segment that an op records. Raises `BadValue` if it records none."""
        try:
            read: Any = parse(entry.payload)
            heads = {str(chain): (seq, str(digest)) for chain, (seq, digest) in read["heads"].items()}
            segment = cls(**{**read, "heads": heads})
            is_valid = segment.payload == entry.payload and segment.is_valid
        except (TypeError, ValueError, AttributeError, KeyError):
            is_valid = False
        if not is_valid:
            raise BadValue("no segment is recorded")
        return segment

    @property
    def is_valid(self) -> bool:
        """Return whether the values are possible ones."""
        counts = [getattr(self, name) for name in _COUNTS] + [seq for seq, _ in self.heads.values()]
        digests: list[object] = [self.sha256, self.previous, *(digest for _, digest in self.heads.values())]
        return (
            all(type(count) is int for count in counts)
            and all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests)
            and min(self.number, self.entries, self.bytes) >= 1
            and 0 <= self.after_id < self.last_id
        )

    def follows(self, before: Segment | None) -> bool:
        """Return whether this segment is the next one."""
        end = (0, 0, NO_SEGMENT) if before is None else before.end
        return (self.number - 1, self.after_id, self.previous) == end

    def is_next(self, entry: LogEntry, before: Segment | None) -> bool:
        """Return whether an op records this as the next segment, of entries that are older than the op."""
        return self.follows(before) and self.last_id < entry.id


def void_payload(op_id: str) -> str:
    """Return the payload of the owner's op which says that the op with this id records no segment."""
    return canonical({_VOID: op_id})


def voided_op(entry: LogEntry) -> str | None:
    """Return the op that this one declares void, if it is the owner's; `None` if it declares none."""
    try:
        read: Any = parse(entry.payload)
        op_id = read[_VOID]
    except (TypeError, ValueError, KeyError):
        return None
    return op_id if isinstance(op_id, str) and void_payload(op_id) == entry.payload else None
