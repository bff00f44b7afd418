"""The archived log: the entries of all segments from the archive, then the rest from the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice

from vox_mesh.errors import ArchiveFailed
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import NO_DELETIONS, DeletedEntries
from vox_mesh.oplog.archive.segment_file import SegmentReader
from vox_mesh.oplog.archive.segment_ops import RecordedSegment
from vox_mesh.oplog.pages import MAX_PAGE_ENTRIES, MAX_POSITION, Pages
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget


class ArchivedLog:
    """Read all entries in the order of their commits: of each segment from its file, if that is intact.

    What the database still has of a segment must be the same.
    """

    def __init__(
        self,
        store: Store,
        target: FileTarget,
        segments: Sequence[RecordedSegment],
        deleted: DeletedEntries = NO_DELETIONS,
    ) -> None:
        """`deleted`: the entries that the database may lack."""
        self._mesh_id = store.mesh_id
        self._target = target
        self._segments = segments
        self._pages = Pages(store)
        self._deleted = deleted
        self._faults: dict[int, str] = {}

    @property
    def faults(self) -> list[str]:
        """Return what was found wrong with the files, one line for each segment."""
        return [self._faults[number] for number in sorted(self._faults)]

    async def entries(
        self, node_id: str | None = None, up_to: int | None = None
    ) -> AsyncIterator[list[LogEntry]]:
        """Yield the entries of all chains, or of one, in pages."""
        end = MAX_POSITION if up_to is None else up_to
        after_id = 0
        for recorded in self._segments:
            if recorded.segment.last_id > end:
                break
            async for page in self._segment(recorded):
                yield _of_chain(page, node_id)
            after_id = recorded.segment.last_id
        async for page in self._rows(after_id, end):
            yield _of_chain(page, node_id)

    async def _segment(self, recorded: RecordedSegment) -> AsyncIterator[list[LogEntry]]:
        segment = recorded.segment
        after_id = segment.after_id
        try:
            async with self._target.get(segment.file_name, segment.bytes) as path:
                reader = SegmentReader(path, self._mesh_id, segment)
                await asyncio.to_thread(reader.check_file)
                entries = reader.entries(recorded.keys)
                while page := await asyncio.to_thread(_next_page, entries):
                    await self._compare(recorded, page, after_id)
                    yield page
                    after_id = page[-1].id
        except ArchiveFailed as error:
            self._faults.setdefault(segment.number, str(error))
            async for page in self._rows(after_id, segment.last_id):  # what is left of it
                yield page

    async def _compare(self, recorded: RecordedSegment, page: Sequence[LogEntry], after_id: int) -> None:
        """Note the first entry of a page that the database has otherwise, or has not."""
        rows = {each.id: each async for part in self._rows(after_id, page[-1].id) for each in part}
        archived = {each.id: each for each in page}
        differing = [
            entry_id
            for entry_id in archived.keys() | rows
            if archived.get(entry_id) != rows.get(entry_id)
            and not (entry_id not in rows and self._may_be_missing(archived[entry_id]))
        ]
        if differing:
            number, name = recorded.segment.number, recorded.segment.file_name
            fault = f"segment {number} of the log and the database differ: {name}: entry {min(differing)}"
            self._faults.setdefault(number, fault)

    def _may_be_missing(self, entry: LogEntry) -> bool:
        return self._deleted.has(entry.node_id, entry.seq)

    async def check(self) -> None:
        """Read the files of all segments, and compare the database with them. Raises `ArchiveFailed`."""
        for recorded in self._segments:
            async for _ in self._segment(recorded):
                pass
        if self.faults:
            raise ArchiveFailed(self.faults[0], hint="run `vox-mesh oplog verify --archive`")

    async def _rows(self, after_id: int, up_to: int) -> AsyncIterator[list[LogEntry]]:
        while page := await self._pages.after(after_id, up_to):
            yield page
            after_id = page[-1].id


def _next_page(entries: Iterator[LogEntry]) -> list[LogEntry]:
    return list(islice(entries, MAX_PAGE_ENTRIES))


def _of_chain(page: list[LogEntry], node_id: str | None) -> list[LogEntry]:
    return page if node_id is None else [entry for entry in page if entry.node_id == node_id]
