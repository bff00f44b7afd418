"""Route audit: replay the routes, and find the claims and completions of jobs that they did not allow."""

from __future__ import annotations

from typing import Any

from vox_mesh.model.jobs.records import CLAIM, most_specific
from vox_mesh.model.jobs.routes import RouteCheck, RouteHistory, is_claim_of
from vox_mesh.model.oplog.chain import LogEntry, node_of
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.verification import ROUTE
from vox_mesh.oplog.pages import EntryFilter, Pace, Pages, ReadEntries
from vox_mesh.oplog.roles import Roles
from vox_mesh.store.store import Store


class RouteAudit:
    """Compare the claims in the log with the routes that the owner had set."""

    def __init__(self, store: Store, roles: Roles) -> None:
        self._pages = Pages(store)
        self._roles = roles

    async def findings(
        self, read: ReadEntries, node_id: str | None, last_id: int | None
    ) -> list[ChainFinding]:
        """Return the completions that were not allowed, and the claims without one, of one chain or all."""
        check = RouteCheck(await self.history())
        if check.is_needed:
            pace = Pace()
            for step, chain in ((check.learn, None), (check.check, node_id)):
                async for page in read(chain, last_id):
                    for entry in page:
                        step(entry)
                        await pace.keep(entry.payload)
        return check.findings()

    async def barred_from(self, kind: str, completion: LogEntry, job_id: str, claim_token: Any) -> str | None:
        """Return the node that a kind of job was routed to when the author of a completion claimed the job.

        `None` if the author was allowed to claim it, or if its claim is not in the log.
        """
        routes = await self.history()
        if most_specific(routes.patterns, kind) is None:
            return None
        chain, before = completion.node_id, completion.seq
        while page := await self._pages.read("chain_tail", *EntryFilter(chain, CLAIM), before):
            for entry in page:
                if is_claim_of(entry, job_id, claim_token):
                    return routes.barred_from(kind, node_of(chain), entry.id)
            before = page[-1].seq
        return None

    async def history(self) -> RouteHistory:
        """Return the routes that the owner has set, and when."""
        routes = RouteHistory(await self._roles.witness())
        async for entry in self._pages.of_kind(ROUTE):
            routes.hear(entry)
        return routes
