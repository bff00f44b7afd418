"""Closed chains: the entries that a chain had when its key was replaced, or when the mesh became strict.

The op names the last one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from vox_mesh.model.base.recent import Recent
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import NO_DELETIONS, DeletedEntries
from vox_mesh.model.oplog.key_changes import ChainEnd, KeyChange
from vox_mesh.model.oplog.verification import READ_ERRORS
from vox_mesh.oplog.archive.deletion_ops import DeletionOps
from vox_mesh.oplog.pages import Pace, Pages
from vox_mesh.store.store import Store

_MAX_CONFIRMED: Final = 65_536
_STRIDE: Final = 64
"""The distance between the entries of a walk that are remembered."""


class ClosedChains:
    """Find entries that were put in place of others with a replaced key, which fits them as well.

    An entry counts if the chain leads from it to the end that the owner signed. Each part is walked once.
    """

    def __init__(self, store: Store, deletions: DeletionOps) -> None:
        self._pages = Pages(store)
        self._deletions = deletions
        self._ends: dict[str, list[ChainEnd]] = {}
        self._confirmed = Recent[tuple[str, int], str](_MAX_CONFIRMED)

    def learn(self, changes: Mapping[str, Sequence[KeyChange]], closed: Mapping[str, ChainEnd]) -> None:
        """Take in all key changes, by node, and the ends of other chains."""
        ends: dict[str, set[ChainEnd]] = {}
        for change in (change for each in changes.values() for change in each):
            for chain, digest in change.ends.items():
                ends.setdefault(chain, set()).add(ChainEnd(change.since[chain] - 1, digest))
        for chain, end in closed.items():
            ends.setdefault(chain, set()).add(end)
        self._ends = {chain: sorted(each) for chain, each in ends.items()}
        self._confirmed = Recent(_MAX_CONFIRMED)

    @property
    def ends(self) -> Mapping[str, Sequence[ChainEnd]]:
        """Return the last entries of all closed chains, in order."""
        return self._ends

    async def has(self, entry: LogEntry) -> bool:
        """Return whether the entry, whose hash was checked, was in its chain when that was closed.

        Entries of a key that is in force were not looked at by the owner, and are not refused here.
        """
        end = next((end for end in self._ends.get(entry.node_id, ()) if end.seq >= entry.seq), None)
        return end is None or await self._leads_to(end, entry)

    async def _leads_to(self, end: ChainEnd, first: LogEntry) -> bool:
        chain, seq, digest = first.node_id, first.seq, first.hash
        walked: dict[tuple[str, int], str] = {(chain, seq): digest}
        pace, deleted = Pace(), NO_DELETIONS
        while seq < end.seq and self._confirmed.get((chain, seq)) != digest:
            page = await self._pages.read("page_of_chain", chain, seq, None, None)
            if not page:
                return False
            for entry in page:
                if entry.seq != seq + 1 and not deleted:
                    deleted = await self._deletions.deleted()
                if not _follows(entry, seq, digest, deleted):
                    return False
                seq, digest = entry.seq, entry.hash
                if seq % _STRIDE == 0:
                    walked[chain, seq] = digest
                if seq == end.seq or self._confirmed.get((chain, seq)) == digest:
                    break
                await pace.keep(entry.payload)
        if seq == end.seq and digest != end.hash:
            return False
        for place, known in walked.items():
            self._confirmed[place] = known
        return True


def _follows(entry: LogEntry, seq: int, digest: str, deleted: DeletedEntries) -> bool:
    try:
        if entry.true_hash != entry.hash:
            return False
        if entry.seq == seq + 1:
            return entry.prev == digest
        return deleted.bridges(entry.node_id, (seq, digest), (entry.seq - 1, entry.prev))
    except READ_ERRORS:
        return False
