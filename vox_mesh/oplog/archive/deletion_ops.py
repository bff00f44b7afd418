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


class DeletionOps:
    """Read the ops about deletions. Only those count that an owner of the mesh has signed."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._ownership = ownership
        self._pages = Pages(store)

    async def read(self) -> list[RecordedDeletion]:
        """Return all deletions, in the order of their commits."""
        entries = [entry async for entry in self._pages.deletions()]
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
