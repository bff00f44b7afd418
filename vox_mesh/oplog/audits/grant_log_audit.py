"""The audit of grants in the log: find what was done without a grant or an approval that it needed."""

from __future__ import annotations

from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.history import GrantHistory
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.pages import Pace, Pages, ReadEntries
from vox_mesh.store.store import Store


class GrantLogAudit:
    """Compare what agents did with the grants and approvals that they had."""

    def __init__(self, store: Store, log: GrantLog) -> None:
        self._log = log
        self._pages = Pages(store)

    async def findings(
        self, read: ReadEntries, node_id: str | None, last_id: int | None
    ) -> list[ChainFinding]:
        """Return the entries of one chain, or of all, that were done without a grant."""
        history = await self._log.history()
        if not history.is_in_use:
            return []
        from vox_mesh.model.grants.audit import GrantAudit  # imported late: it takes long, and few need it

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
        if audit.has_budgets:
            async for page in read(None, last_id):
                for entry in page:
                    audit.hear_job(entry)
                    await pace.keep(entry.payload)
        return audit.findings

    async def _approvals(self, history: GrantHistory, pace: Pace) -> ApprovalHistory:
        approvals = ApprovalHistory(history, self._log.signer)
        async for entry in self._pages.about_approvals():
            approvals.hear(entry)
            await pace.keep(entry.payload)
        return approvals
