"""Parts of chains: of a log that is read once, the entries around the wanted ones, from seal to seal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.oplog.authorship import is_authentic
from vox_mesh.model.oplog.chain import SEAL, LogEntry, Sealing
from vox_mesh.model.oplog.key_changes import ChainEnd
from vox_mesh.model.oplog.verification import READ_ERRORS, Key

_MAX_UNSEALED: Final = 20_000
"""How many entries before a wanted one are remembered; of more, no seal confirms the verdicts."""


class ChainParts:
    """Keeps what is needed to verify the wanted entries, as the log is read in the order of commits."""

    def __init__(self, scope_id: str, ends: Mapping[str, Sequence[ChainEnd]]) -> None:
        """`ends`: by chain, the last entries that it had when its keys were replaced."""
        self._scope_id = scope_id
        self._readers: dict[str, _PartReader] = {}
        self._walks = {chain: _WalkToEnds(each) for chain, each in ends.items()}

    def add(self, entry: LogEntry, *, is_wanted: bool) -> None:
        """Take in the next entry of the log. One without a valid number is of no chain."""
        if type(entry.seq) is not int:
            return
        self._readers.setdefault(entry.node_id, _PartReader()).add(entry, is_wanted=is_wanted)
        if (walk := self._walks.get(entry.node_id)) is not None:
            walk.add(entry)

    def is_authentic(self, entry: LogEntry, keys: Sequence[Key]) -> bool:
        """Return whether the author, who has these keys, signed a wanted entry or one that follows it.

        It must not have been put in place of another since a key was replaced.
        """
        part = self._part_of(entry)
        is_signed = is_authentic(entry, part[part.index(entry) :], keys, self._scope_id) if part else False
        walk = self._walks.get(entry.node_id)
        return is_signed and (walk is None or walk.has(entry))

    def has_changed_verdict(self, entry: LogEntry, keys: Sequence[Key]) -> bool:
        """Return whether the seal after a wanted entry, which its author signed, has other verdicts."""
        part = self._part_of(entry)
        following = [] if part is None else part[part.index(entry) + 1 :]
        seal = next((each for each in following if each.kind == SEAL), None)
        if part is None or seal is None:
            return False
        from_seal = part[part.index(seal) :]
        if not is_authentic(seal, from_seal, keys, self._scope_id) or not self.is_authentic(entry, keys):
            return False
        try:
            stated = parse(seal.payload)
            covered = [each for each in part if stated["from"] <= each.seq < seal.seq]
            if not covered or covered[0].seq != stated["from"]:
                return False  # it began longer ago than is remembered
            sealing = Sealing()
            for each in covered:
                sealing.add(each.kind, each.verdict)
            return bool(sealing.claim(seal.seq) != stated)
        except READ_ERRORS:
            return True

    def _part_of(self, entry: LogEntry) -> list[LogEntry] | None:
        reader = self._readers.get(entry.node_id)
        return None if reader is None else next((each for each in reader.parts() if entry in each), None)


class _PartReader:
    """Divides one chain at its seals, and keeps the parts with wanted entries, each to a signed end."""

    def __init__(self) -> None:
        self._kept: list[list[LogEntry]] = []
        self._part: list[LogEntry] = []
        self._wanted_to = 0  # the number of the last wanted entry
        self._sealed_to = 0  # that of the last seal

    def add(self, entry: LogEntry, *, is_wanted: bool) -> None:
        if entry.kind == SEAL:
            self._sealed_to = entry.seq
            if not self._is_wanted:
                self._part.clear()
        elif len(self._part) >= _MAX_UNSEALED and not self._is_wanted:
            self._part.clear()
        self._part.append(entry)
        if is_wanted:
            self._wanted_to = entry.seq
        if self._is_wanted and self._wanted_to < self._sealed_to and entry.signature is not None:
            self._kept.append(self._part)
            self._part = [each for each in self._part if each.seq >= self._sealed_to]

    @property
    def _is_wanted(self) -> bool:
        return bool(self._part) and self._part[0].seq <= self._wanted_to

    def parts(self) -> Iterator[list[LogEntry]]:
        """Yield the parts that are kept, the last one as far as it was read."""
        yield from self._kept
        yield self._part


class _WalkToEnds:
    """Follows a chain to the ends that it had when its keys were replaced."""

    def __init__(self, ends: Sequence[ChainEnd]) -> None:
        self._ends = {end.seq: end.hash for end in ends}
        self._since: dict[int, int] = {}  # by the number of a reached end: the entry from which on all fit
        self._first = 0
        self._last: LogEntry | None = None

    def add(self, entry: LogEntry) -> None:
        if not _has_its_hash(entry):
            self._last = None
            return
        last = self._last
        if last is None or (entry.seq, entry.prev) != (last.seq + 1, last.hash):
            self._first = entry.seq
        self._last = entry
        if self._ends.get(entry.seq) == entry.hash:
            self._since[entry.seq] = self._first

    def has(self, entry: LogEntry) -> bool:
        """Return whether an entry leads to the end after it, if there is one."""
        end = min((seq for seq in self._ends if seq >= entry.seq), default=None)
        return end is None or self._since.get(end, entry.seq + 1) <= entry.seq


def _has_its_hash(entry: LogEntry) -> bool:
    try:
        return entry.true_hash == entry.hash
    except READ_ERRORS:
        return False
