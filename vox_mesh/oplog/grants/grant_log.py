"""The grants in the log: their history, kept up to date, and an audit of what was done without one."""

from __future__ import annotations

from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.audit import GrantAudit
from vox_mesh.model.grants.history import GrantHistory
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.succession import Succession
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.pages import Pace, Pages, ReadEntries
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
            signer = _signed_by_none if owners is None else owners.signer
            self._history = GrantHistory(signer, self._scope_id, node)
        history = self._history
        async for entry in self._pages.about_grants(history.last_id):
            history.hear(entry)
        return history

    async def findings(
        self, read: ReadEntries, node_id: str | None, last_id: int | None
    ) -> list[ChainFinding]:
        """Return the entries of one chain, or of all, that were done without a grant."""
        history = await self.history()
        if not history.is_in_use:
            return []
        pace = Pace()
        audit = GrantAudit(history, await self._approvals(history, pace))
        async for page in read(node_id, last_id):
            for entry in page:
                audit.check(entry)
                await pace.keep(entry.payload)
        if audit.has_doubts:
            async for page in read(None, last_id):
                for entry in page:
                    audit.hear_schedule(entry)
                    await pace.keep(entry.payload)
        return audit.findings

    async def _approvals(self, history: GrantHistory, pace: Pace) -> ApprovalHistory:
        owners = self._owners
        approvals = ApprovalHistory(history, _signed_by_none if owners is None else owners.signer)
        async for entry in self._pages.about_approvals():
            approvals.hear(entry)
            await pace.keep(entry.payload)
        return approvals


def _signed_by_none(_: LogEntry) -> None:
    return None
