"""The archive of the log: export its old entries as segments, which the log records by signed ops."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from vox_mesh.errors import ArchiveFailed, Refused
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.segment import MAX_ENTRIES, NO_SEGMENT, Segment
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.archive.false_segments import FalseSegments
from vox_mesh.oplog.archive.segment_file import SegmentHeader, SegmentReader, SegmentWriter
from vox_mesh.oplog.archive.segment_ops import TAKEN, RecordedSegments, SegmentOps
from vox_mesh.oplog.pages import MAX_PAGE_ENTRIES, Pages
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget

_log = logging.getLogger(__name__)

_DRAFT: Final = "segment.jsonl.gz"

_MAX_TRIES: Final = 10
"""How often a segment is recorded again after another op about segments was written."""

Verify = Callable[[], Awaitable[Sequence[ChainReport]]]
"""Verifies the log: what is broken is not archived."""


class LogArchive:
    """Archive the log of one mesh. Any process may do it: of several, one records each segment."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        clock: MeshClock,
        trusted_keys: TrustedKeys,
        verify: Verify,
        target: FileTarget,
    ) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._verify = verify
        self.target = target
        self._pages = Pages(store)
        self._ops = SegmentOps(store, trusted_keys)
        self.false_segments = FalseSegments(store, identity, trusted_keys, target)

    async def segments(self) -> RecordedSegments:
        """Return the segments that the log records."""
        return await self._ops.read()

    async def run_once(self, older_than_ms: int, *, max_entries: int = MAX_ENTRIES) -> list[Segment]:
        """Archive all entries of at least this age, in segments. Return the new ones.

        It can be stopped at any point, and goes on with the first entry that is in no recorded segment.

        Raises:
            ArchiveFailed: The archive can't be written, or the log is broken.
        """
        self._clock.refuse_if_off()
        until_ms = self._clock.now_ms - older_than_ms
        done: list[Segment] = []
        while await self._has_due(until_ms):
            if not done:
                await self._refuse_if_broken()
            segment = await self._archive_next(until_ms, max_entries)
            if segment is None:
                break
            done.append(segment)
        return done

    async def _has_due(self, until_ms: int) -> bool:
        last = (await self._ops.read()).last
        first = await self._pages.after(0 if last is None else last.last_id, limit=1)
        return bool(first) and first[0].time_ms <= until_ms

    async def _refuse_if_broken(self) -> None:
        for report in await self._verify():
            if report.problem is not None:
                raise ArchiveFailed(
                    f"the log is broken, and is not archived: {report.node_id} {report.problem}",
                    hint="run `vox-mesh oplog verify`",
                )

    async def _archive_next(self, until_ms: int, max_entries: int) -> Segment | None:
        """Archive the next segment; `None` if another process has done so, or if none is due.

        It follows one that the archive has: what was recorded since the last look may be false.
        """
        before = await self.false_segments.checked()
        with tempfile.TemporaryDirectory(prefix="vox-mesh-archive-") as folder:
            path = Path(folder) / _DRAFT
            segment, last = await self._write(path, before.last, until_ms, max_entries)
            if last is None:
                return None
            await self.target.put(segment.file_name, path)
        await self._read_back(segment)
        if not await self._record(segment, last.op_id, before):
            _log.info("segment archived by another process: number=%d", segment.number)
            return None
        self.false_segments.note_stored(segment)
        _log.info("segment archived: number=%d entries=%d", segment.number, segment.entries)
        return segment

    async def _record(self, segment: Segment, last_op: str, before: RecordedSegments) -> bool:
        """Record a stored segment; return whether it is the next one, whatever false ops are written."""
        found = before
        for _ in range(_MAX_TRIES):
            try:
                await self._store.write(self._ops.script(segment, last_op, found.last_op))
            except Refused as refused:
                if refused.reason != TAKEN:
                    raise
            else:
                return True
            found = await self.false_segments.checked()
            if found.last != before.last:
                break
        return False

    async def _write(
        self, path: Path, before: Segment | None, until_ms: int, max_entries: int
    ) -> tuple[Segment, LogEntry | None]:
        """Write the entries that are due to a file. Return the segment, and its last entry if it has any."""
        number, after_id, previous = (0, 0, NO_SEGMENT) if before is None else before.end
        header = SegmentHeader(*self._store.mesh_id, number + 1, after_id, previous)
        writer = await asyncio.to_thread(SegmentWriter, path, header, self._identity)
        last: LogEntry | None = None
        try:
            while writer.entries < max_entries:
                limit = min(MAX_PAGE_ENTRIES, max_entries - writer.entries)
                page = await self._pages.after(after_id, limit=limit)
                due = [*_due(page, until_ms)]
                if due:
                    await asyncio.to_thread(writer.add, due)
                    last, after_id = due[-1], due[-1].id
                if len(due) < len(page) or not page:
                    break
            return await asyncio.to_thread(writer.finish), last
        finally:
            writer.close()

    async def _read_back(self, segment: Segment) -> None:
        """Read the stored file from its first line to its last."""
        async with self.target.get(segment.file_name, segment.bytes) as path:
            reader = SegmentReader(path, self._store.mesh_id, segment)
            await asyncio.to_thread(reader.check_file)
            keys = (self._identity.key.public,)
            await asyncio.to_thread(lambda: sum(1 for _ in reader.entries(keys)))


def _due(page: Sequence[LogEntry], until_ms: int) -> Iterator[LogEntry]:
    """Yield the entries of a page up to the first one that is younger."""
    for entry in page:
        if entry.time_ms > until_ms:
            return
        yield entry
