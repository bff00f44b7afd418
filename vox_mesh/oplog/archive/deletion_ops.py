"""The ops about deletions: which archived entries the owner lets be deleted from the database."""

from __future__ import annotations

from typing import NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import DeletedEntries, Deletion
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.store import Store


class RecordedDeletion(NamedTuple):
    """A deletion, and the op that records it."""

    deletion: Deletion
    entry: LogEntry


class LastDeletion(NamedTuple):
    """How far entries may be deleted."""

    segment: int
    """The last segment of which the database may lack entries; 0 if there is none."""

    op_id: str | None
    """The last op about deletions, also if it lets nothing be deleted."""


class DeletionOps:
    """Read the ops about deletions. Only those count that an owner of the mesh has signed."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._ownership = ownership
        self._pages = Pages(store)

    async def read(self) -> list[RecordedDeletion]:
        """Return all deletions, in the order of their commits."""
        return await self._count([entry async for entry in self._pages.deletions()])

    async def last(self) -> LastDeletion:
        """Return how far entries may be deleted."""
        entries = [entry async for entry in self._pages.deletions()]
        segment = max((each.deletion.segment for each in await self._count(entries)), default=0)
        return LastDeletion(segment, entries[-1].op_id if entries else None)

    async def _count(self, entries: list[LogEntry]) -> list[RecordedDeletion]:
        if not entries:
            return []
        witness = await self._ownership.witness()  # after them: it knows the owners who signed them
        found: list[RecordedDeletion] = []
        for entry in entries:
            if witness.is_of_owner(entry):
                try:
                    found.append(RecordedDeletion(Deletion.read(entry), entry))
                except BadValue:
                    continue  # it lets nothing be deleted
        return found

    async def deleted(self) -> DeletedEntries:
        """Return all entries that may be missing."""
        return DeletedEntries(each.deletion for each in await self.read())
