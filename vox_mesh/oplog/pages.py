"""Pages of the log: so many entries at a time as the server is ready to answer with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from vox_mesh.errors import TooLarge
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

MOST: Final = 1_000
"""Entries in a page, at the most."""

_SQL: Final = named("oplog")
_LAST: Final = 2**63 - 1


class Pages:
    """Reads entries. Payloads may be large, and no server answers with any number of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._most = MOST

    async def read(self, name: str, *values: Value, limit: int = MOST) -> list[LogEntry]:
        """A page by one of the statements that end with a limit."""
        mesh = self._store.tenant[:2]
        while True:
            most = min(limit, self._most)
            try:
                rows = await self._store.read(_SQL[name], (*mesh, *values, most))
            except TooLarge:
                if most == 1:
                    raise
                self._most = most // 2
            else:
                return [LogEntry._make(row) for row in rows]

    async def of_kind(self, kind: str) -> AsyncIterator[LogEntry]:
        """All that were accepted of a kind that is looked for often, by their times."""
        time = ""
        while page := await self.read("of_kind", kind, time):
            for entry in page:
                yield entry
            time = page[-1].hlc

    async def newest(self, limit: int, node_id: str | None, kind: str | None) -> list[LogEntry]:
        """The last entries, of one chain and kind or of all, newest first."""
        found: list[LogEntry] = []
        before = _LAST
        while len(found) < limit:
            left = limit - len(found)
            if node_id is None:
                page = await self.read("tail", kind, before, limit=left)
            else:
                page = await self.read("chain_tail", node_id, kind, before, limit=left)
            if not page:
                break
            found += page
            before = page[-1].id if node_id is None else page[-1].seq
        return found
