"""The grants in the log: their history, as the owner and the agents have signed it, kept up to date."""

from __future__ import annotations

from vox_mesh.model.grants.history import GrantHistory, Signer
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.succession import Succession
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.store import Store


class GrantLog:
    """Read what the owner and the agents have signed about grants."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._scope_id = store.writer_id.scope_id
        self._ownership = ownership
        self._pages = Pages(store)
        self._owners: Succession | None = None
        self._history: GrantHistory | None = None

    async def history(self) -> GrantHistory:
        """Return the history of grants up to now."""
        owners = await self._ownership.succession()
        if self._history is None or owners is not self._owners:
            self._owners = owners
            node = None if owners is None else owners.owner.node_id
            self._history = GrantHistory(self.signer, self._scope_id, node)
        history = self._history
        async for entry in self._pages.about_grants(history.last_id):
            history.hear(entry)
        return history

    @property
    def signer(self) -> Signer:
        """Return what finds the owner's signatures, as of the last reading of the history."""
        return _signed_by_none if self._owners is None else self._owners.signer


def _signed_by_none(_: LogEntry) -> None:
    return None
