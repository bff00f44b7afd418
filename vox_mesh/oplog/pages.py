"""Pages of the log: as many entries at a time as the server can answer with, processed without blocking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import TooLarge
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import TRUST_SCOPE
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.slices import rest
from vox_mesh.store.store import Store

MAX_PAGE_ENTRIES: Final = 1_000
"""The maximum number of entries in a page."""

_SQL: Final = named("oplog")
_GRANTS: Final = named("grants")
MAX_POSITION: Final = 2**63 - 1
FIRST_POSITION: Final = -(2**63)
"""Before the first entry of a chain, including ones with invalid numbers."""


_NEXT_ENTRIES: Final = 32
"""How many entries are read at a time when a signature follows soon."""

_ENTRIES_PER_PIECE: Final = 32
"""How many entries are processed before yielding; checking a signature takes about 0.1 ms."""

_BYTES_PER_ENTRY: Final = 4_096
"""How many payload bytes count as one entry."""

ReadEntries = Callable[[str | None, int | None], AsyncIterator[list[LogEntry]]]
"""Reads all entries of one chain or of all, up to an id, chain by chain and in order."""


class EntryFilter(NamedTuple):
    """Which entries to read: of one chain, kind and agent, and about one job, or of all."""

    node_id: str | None = None
    kind: str | None = None
    agent: str | None = None
    job_id: str | None = None


ALL_ENTRIES: Final = EntryFilter()


class ChainRun(NamedTuple):
    """Entries of a chain, and the mark of the ops by which keys were accepted when they were read."""

    entries: list[LogEntry]
    mark: str | None


class Pages:
    """Read entries in pages. Payloads may be large, so a page shrinks if the server can't answer with it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._page_limit = MAX_PAGE_ENTRIES

    async def read(
        self, name: str, *values: Value, limit: int = MAX_PAGE_ENTRIES, fresh: bool = False
    ) -> list[LogEntry]:
        """Read a page by one of the statements that end with a limit."""
        return [LogEntry._make(row) for row in await self._rows(name, *values, limit=limit, fresh=fresh)]

    async def _rows(self, name: str, *values: Value, limit: int, fresh: bool = False) -> Rows:
        mesh = self._store.mesh_id
        while True:
            page_limit = min(limit, self._page_limit)
            try:
                return await self._store.read(_SQL[name], (*mesh, *values, page_limit), fresh=fresh)
            except TooLarge:
                if page_limit == 1:
                    raise
                self._page_limit = page_limit // 2

    async def entries(
        self, node_id: str | None = None, up_to: int | None = None, *, after_seq: int = FIRST_POSITION
    ) -> AsyncGenerator[list[LogEntry], None]:
        """Yield all entries in pages, chain by chain and in order; each is read while the last one is used.

        `up_to`: only those committed up to this id; without it, one that is committed meanwhile may be left
        out. `after_seq`: of one chain, only those after this number.
        """
        page = await self._page(node_id, node_id or "", after_seq, up_to, None)
        while page:
            last = page[-1]
            reading = asyncio.ensure_future(
                self._page(node_id, node_id or last.node_id, last.seq, up_to, last.id)
            )
            reading.add_done_callback(_note_end)
            yield page
            page = await reading

    async def _page(
        self, node_id: str | None, chain: str, seq: int, up_to: int | None, last_id: int | None
    ) -> list[LogEntry]:
        name = "chain_page" if node_id is None else "page_of_chain"
        return await self.read(name, chain, seq, up_to, last_id)

    async def chains(self, up_to: int) -> AsyncIterator[str]:
        """Yield the names of all chains with entries committed up to this id, by one look at each."""
        chain, seq = "", FIRST_POSITION
        while page := await self.read("chain_page", chain, seq, up_to, None, limit=1):
            chain, seq = page[0].node_id, MAX_POSITION
            yield chain

    async def from_entry(
        self, chain: str, seq: int, *, through: int = 0, limit: int = MAX_PAGE_ENTRIES
    ) -> ChainRun:
        """Return a chain from an entry on, in pages up to one with a signed entry, at `through` or later."""
        found: list[LogEntry] = []
        mark: str | None = None
        while rows := await self._rows("page_and_mark", chain, seq - 1, limit=limit):
            page = [LogEntry._make(row[:-1]) for row in rows]
            mark = rows[-1]["mark"]
            found += page
            if any(each.signature is not None and each.seq >= through for each in reversed(page)):
                break
            seq, limit = page[-1].seq + 1, _NEXT_ENTRIES
        return ChainRun(found, mark)

    async def of_kind(self, kind: str, *, fresh: bool = False) -> AsyncIterator[LogEntry]:
        """Yield all accepted entries of an indexed kind, by time."""
        query = ("about_scopes",) if kind == TRUST_SCOPE else ("of_kind", kind)
        async for entry in self._by_time(*query, fresh=fresh):
            yield entry

    async def segments(self) -> AsyncIterator[LogEntry]:
        """Yield all accepted ops about archived segments, in the order of their commits."""
        after_id = 0
        while page := await self.read("segments", after_id, fresh=True):
            for entry in page:
                yield entry
            after_id = page[-1].id

    async def deletions(self) -> AsyncIterator[LogEntry]:
        """Yield all accepted ops by which archived entries may be deleted, in the order of their commits."""
        after_id = 0
        while page := await self.read("deletions", after_id, fresh=True):
            for entry in page:
                yield entry
            after_id = page[-1].id

    async def transfers(self) -> AsyncIterator[LogEntry]:
        """Yield all entries by which the ownership may have passed on, by time."""
        async for entry in self._by_time("transfers", fresh=True):
            yield entry

    async def about_keys(self) -> AsyncIterator[LogEntry]:
        """Yield all ops that decide which keys of nodes count, by time, whatever their verdicts."""
        async for entry in self._by_time("about_keys", fresh=True):
            yield entry

    def about_grants(self, after_id: int = 0) -> AsyncIterator[LogEntry]:
        """Return all ops about grants after an entry, in the order of their commits."""
        return self._by_commit(_GRANTS["ops"], after_id)

    def about_approvals(self) -> AsyncIterator[LogEntry]:
        """Return all ops about approvals, in the order of their commits."""
        return self._by_commit(named("approvals")["ops"], 0)

    async def _by_commit(self, statement: str, after_id: int) -> AsyncIterator[LogEntry]:
        mesh = self._store.mesh_id
        while rows := await self._store.read(statement, (*mesh, after_id, MAX_PAGE_ENTRIES), fresh=True):
            for entry in map(LogEntry._make, rows):
                yield entry
                after_id = entry.id

    async def _by_time(self, name: str, *values: Value, fresh: bool) -> AsyncIterator[LogEntry]:
        last_id, time = None, ""
        while page := await self.read(name, *values, last_id, time, fresh=fresh):
            for entry in page:
                yield entry
            last_id, time = page[-1].id, page[-1].hlc

    async def after(
        self,
        after_id: int,
        up_to: int = MAX_POSITION,
        wanted: EntryFilter = ALL_ENTRIES,
        limit: int = MAX_PAGE_ENTRIES,
    ) -> list[LogEntry]:
        """Return a page of the wanted entries committed after one and up to another, oldest first."""
        return await self.read("after", *wanted, after_id, up_to, limit=limit)

    async def before(
        self, before_id: int, down_to: int, wanted: EntryFilter, limit: int = MAX_PAGE_ENTRIES
    ) -> list[LogEntry]:
        """Return a page of the wanted entries committed before one and down to another, newest first."""
        return await self.read("before", *wanted, before_id, down_to, limit=limit)

    async def accepted_of_kinds(
        self, kinds: Sequence[str], after_id: int, up_to: int, limit: int = MAX_PAGE_ENTRIES
    ) -> list[LogEntry]:
        """Return a page of the accepted entries of these kinds after one and up to another, oldest first."""
        names = orjson.dumps(kinds).decode()
        return await self.read("accepted_of_kinds", names, after_id, up_to, limit=limit)

    async def newest(self, limit: int, wanted: EntryFilter) -> list[LogEntry]:
        """Return the last entries that are wanted, newest first."""
        is_of_chain = wanted.node_id is not None
        found: list[LogEntry] = []
        before = MAX_POSITION
        while len(found) < limit:
            statement = "chain_tail" if is_of_chain else "tail"
            page = await self.read(statement, *wanted, before, limit=limit - len(found))
            if not page:
                break
            found += page
            before = page[-1].seq if is_of_chain else page[-1].id
        return found


def _note_end(reading: asyncio.Future[list[LogEntry]]) -> None:
    """Take in how a read has ended: no one waits for it if its caller needs no more pages."""
    if not reading.cancelled():
        reading.exception()


class Pace:
    """Process entries in small pieces: count the work, and yield to the event loop in between."""

    def __init__(self) -> None:
        self._done = 0

    async def keep(self, payload: object) -> None:
        """Count an entry with this payload, of any type, and yield to the event loop if it is time to."""
        self._done += 1 + (len(payload) // _BYTES_PER_ENTRY if isinstance(payload, str | bytes) else 0)
        if self._done >= _ENTRIES_PER_PIECE:
            self._done = 0
            await rest()
