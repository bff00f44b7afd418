"""Deletions: which archived entries the database may lack, as the owner's signed ops state them.

A chain is verified across a gap only where such an op has its ends: the hash before the gap and the last
hash in it, which the next entry names. So nothing else can be missing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.segment import Segment

DELETE: Final = "DeleteArchived"
"""The op by which the owner lets archived entries be deleted from the database."""

_MAX_SEQ: Final = 2**63

_DIGEST: Final = re.compile("[0-9a-f]{64}")


class DeletedRange(NamedTuple):
    """Entries of a chain that may be missing, all of them archived."""

    first: int
    last: int
    prev: str
    """The hash of the entry before the first one."""

    hash: str
    """The hash of the last one."""

    @property
    def is_valid(self) -> bool:
        """Return whether the values are possible ones. The first entry of a chain is never deleted."""
        digests: list[object] = [self.prev, self.hash]
        return (
            type(self.first) is type(self.last) is int
            and 1 < self.first <= self.last
            and all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests)
        )


class Deletion(NamedTuple):
    """What one op lets be deleted: entries of segments up to one."""

    segment: int
    sha256: str
    """The digest of that segment's file."""

    last_id: int
    """The last entry of that segment."""

    ranges: Mapping[str, Sequence[DeletedRange]]
    """By chain."""

    jobs: Sequence[str]
    """The pruned jobs of which some entries remain: what is left of them says nothing."""

    @property
    def payload(self) -> str:
        """Return the payload of the op."""
        ranges = {chain: [[*each] for each in found] for chain, found in self.ranges.items()}
        return canonical({**self._asdict(), "ranges": ranges, "jobs": list(self.jobs)})

    @classmethod
    def read(cls, entry: LogEntry) -> Deletion:
        """Return what an op lets be deleted. Raises `BadValue` if it is none."""
        try:
            read: Any = parse(entry.payload)
            ranges = {
                str(chain): [DeletedRange(*each) for each in found] for chain, found in read["ranges"].items()
            }
            deletion = cls(**{**read, "ranges": ranges, "jobs": [str(each) for each in read["jobs"]]})
            is_valid = deletion.payload == entry.payload and deletion._is_valid
        except (TypeError, ValueError, AttributeError, KeyError):
            is_valid = False
        if not is_valid:
            raise BadValue(f"op {entry.op_id} deletes no entries")
        return deletion

    @property
    def _is_valid(self) -> bool:
        return type(self.segment) is type(self.last_id) is int and all(
            each.is_valid for found in self.ranges.values() for each in found
        )

    def is_archived_in(self, segments: Sequence[Segment]) -> bool:
        """Return whether these segments have all entries that it lets be deleted."""
        named = (self.segment, self.sha256, self.last_id)
        if not any((each.number, each.sha256, each.last_id) == named for each in segments):
            return False
        ends = archived_ends(segments, self.segment)
        return all(each.last <= ends.get(chain, 0) for chain, found in self.ranges.items() for each in found)


def archived_ends(segments: Iterable[Segment], up_to: int) -> dict[str, int]:
    """Return the number of the last entry of each chain in the segments up to one."""
    ends: dict[str, int] = {}
    for segment in segments:
        if segment.number <= up_to:
            for chain, (seq, _) in segment.heads.items():
                ends[chain] = max(seq, ends.get(chain, 0))
    return ends


class DeletedEntries:
    """All entries that may be missing in the database."""

    def __init__(self, deletions: Iterable[Deletion] = (), ends: Mapping[str, int] | None = None) -> None:
        """`ends`: the last archived entry of each chain; without them, none is known."""
        self._ranges: dict[str, dict[int, list[DeletedRange]]] = {}
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self._ends = ends
        self._deletions = list(deletions)
        self.last_id = 0
        """No entry after this one is missing."""

        self.jobs: dict[str, int] = {}
        """The pruned jobs of which entries remain, each with the id up to which they say nothing."""

        for deletion in self._deletions:
            self._add(deletion)

    def _add(self, deletion: Deletion) -> None:
        self.last_id = max(self.last_id, deletion.last_id)
        for job_id in deletion.jobs:
            self.jobs[job_id] = max(deletion.last_id, self.jobs.get(job_id, 0))
        for chain, found in deletion.ranges.items():
            known = self._ranges.setdefault(chain, {})
            for each in found:
                known.setdefault(each.first, []).append(each)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeletedEntries) and other._deletions == self._deletions

    __hash__ = None  # type: ignore[assignment]

    def spans(self, chain: str) -> list[tuple[int, int]]:
        """Return the first and last numbers of what may be missing of a chain, in order and disjoint."""
        if chain not in self._ranges:
            return []
        if chain not in self._spans:
            found: list[tuple[int, int]] = []
            pairs = sorted((each.first, each.last) for some in self._ranges[chain].values() for each in some)
            for first, last in pairs:
                if found and first <= found[-1][1] + 1:
                    found[-1] = (found[-1][0], max(found[-1][1], last))
                else:
                    found.append((first, last))
            self._spans[chain] = found
        return self._spans[chain]

    def has(self, chain: str, seq: int) -> bool:
        """Return whether this entry may be missing."""
        spans = self.spans(chain)
        place = bisect_right(spans, (seq, _MAX_SEQ)) - 1
        return place >= 0 and seq <= spans[place][1]

    def may_lack(self, entry: LogEntry) -> bool:
        """Return whether an entry that is there may be missing: it says nothing any more."""
        return type(entry.seq) is int and self.has(entry.node_id, entry.seq)

    def bridges(self, chain: str, last: tuple[int, str], end: tuple[int, str]) -> bool:
        """Return whether all entries after one and up to another were deleted.

        Each is a number and a hash. The hash of the last deleted one is the one that the next entry names.
        """
        known, seen, left = self._ranges.get(chain, {}), set[tuple[int, str]](), [last]
        while left:  # several ops may state ranges that begin at the same entry
            place = left.pop()
            if place == end:
                return True
            if place not in seen:
                seen.add(place)
                left += [
                    (each.last, each.hash) for each in known.get(place[0] + 1, ()) if each.prev == place[1]
                ]
        return False

    def is_backdated(self, entry: LogEntry) -> bool:
        """Return whether an entry lies among archived ones, and no segment has it."""
        ends = self._ends
        return ends is not None and entry.id <= self.last_id and entry.seq > ends.get(entry.node_id, 0)


NO_DELETIONS: Final = DeletedEntries()
