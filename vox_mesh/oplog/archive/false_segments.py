"""False segments: recorded by a node that lies, and in no archive. The owner declares them void.

Any node may record the next segment, so one can record what it never archived. Nothing is lost by declaring
a segment void whose entries are all in the database: they are archived again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from vox_mesh.errors import ArchiveFailed, BadValue, LockHeld, NotKnown, Refused
from vox_mesh.model.oplog.segment import FILE_PREFIX, Segment
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.archive.archived_log import ArchivedLog
from vox_mesh.oplog.archive.deletion_ops import LastDeletion
from vox_mesh.oplog.archive.segment_file import SegmentReader
from vox_mesh.oplog.archive.segment_ops import DELETED, RecordedSegment, RecordedSegments, SegmentOps
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget, FolderTarget

_log = logging.getLogger(__name__)

_MAX_LOOKS: Final = 3
"""How many files that have the recorded size, and another content, are read to find one that is right."""

_MAX_TRIES: Final = 10
"""How often false segments are declared void again that were recorded meanwhile."""

Guard = Callable[[], Awaitable[Statement]]
"""Returns the guard of a write: it fails unless this process still leads."""


class FalseSegments:
    """Compare the recorded segments with the archive, and declare false ones void."""

    def __init__(
        self, store: Store, identity: Identity, trusted_keys: TrustedKeys, target: FileTarget
    ) -> None:
        self._store = store
        self._identity = identity
        self._trusted_keys = trusted_keys
        self._target = target
        self._ops = SegmentOps(store, trusted_keys)
        self._stored: Segment | None = None

    def note_stored(self, segment: Segment) -> None:
        """Note that the archive has the file of a segment: this process has just read it."""
        self._stored = segment

    async def checked(self) -> RecordedSegments:
        """Return the recorded segments, of which the archive has the newest: the next one may follow it.

        Raises:
            ArchiveFailed: The archive does not have the newest segment, and it can't be declared void.
        """
        found = await self._ops.read()
        for _ in range(_MAX_TRIES):
            if found.last is None or await self._has(found.last):
                return found
            newest, missing = found.last, await self.first_missing()
            found = await self._ops.read()
            if missing is not None and found.last == newest:
                raise missing_error(missing)
        raise ArchiveFailed("false segments are recorded again and again", hint="run it again later")

    async def first_missing(self) -> RecordedSegment | None:
        """Return the first recorded segment that the archive does not have, by one listing of it.

        Before, the owner's process declares void what others recorded after the last segment that the archive
        has: it may also be an earlier copy of the archive.
        """
        recorded = (await self._ops.read()).recorded
        sizes = await self._target.list_sizes(FILE_PREFIX)
        end = await self._last_stored(recorded, sizes)
        stored, rest = recorded[:end], recorded[end:]
        if stored and rest and await self._void_false(rest):
            rest = ()
        lost = (each for each in stored or rest if not _is_listed(each.segment, sizes))
        return next(lost, rest[0 if stored else -1] if rest else None)

    async def _has(self, segment: Segment) -> bool:
        if segment == self._stored:
            return True
        return await self._is_stored(segment, await self._target.sizes([segment.file_name]))

    async def _last_stored(self, recorded: Sequence[RecordedSegment], sizes: Mapping[str, int]) -> int:
        """Return how many segments there are up to the last one that the archive has; 0: it is not known."""
        looks = 0
        for place in range(len(recorded), 0, -1):
            if await self._is_stored(recorded[place - 1].segment, sizes):
                return place
            looks += _is_listed(recorded[place - 1].segment, sizes)
            if looks == _MAX_LOOKS:
                break
        return 0

    async def _void_false(self, rest: Sequence[RecordedSegment]) -> bool:
        """Declare void what follows the last segment of the archive, if this process may; return whether."""
        last = await self._trusted_keys.last_deletion()
        if rest[0].segment.number <= last.segment or not await self._is_owner():
            return False
        if await self._trusted_keys.is_any_of_owner(each.entry for each in rest):
            return False
        return await self._void(rest[0], last)  # and with it all that follow it

    async def void(self, number: int, guard: Guard) -> RecordedSegment:
        """Declare a segment void, and with it all that follow it; only the owner may. Return the segment.

        Raises:
            BadValue: This process does not act for the owner, the archive has the segment, or its entries may
                be deleted.
            NotKnown: The log records no such segment.
        """
        if not await self._is_owner():
            raise BadValue(
                "nothing declared void: only the owner may", hint="`vox-mesh roles show` names the owner"
            )
        for _ in range(_MAX_TRIES):
            found = [each for each in (await self._ops.read()).recorded if each.segment.number == number]
            if not found:
                hint = "run `vox-mesh oplog archive --list` to see the segments"
                raise NotKnown(f"segment {number} not found", hint=hint)
            last = await self._trusted_keys.last_deletion()
            if number <= last.segment:
                raise BadValue(
                    f"segment {number} can't be void: its entries may be deleted from the database",
                    hint="restore its file from a copy",
                )
            if await self._is_valid(found[0]):
                raise BadValue(
                    f"segment {number} can't be void: the archive has it as the log records it",
                    hint="run `vox-mesh oplog verify --archive` to see which segment is false",
                )
            if await self._void(found[0], last, await guard()):
                return found[0]
        raise LockHeld("nothing declared void: entries are being deleted", hint="try again later")

    async def _void(self, false: RecordedSegment, last: LastDeletion, *guards: Statement) -> bool:
        """Declare a segment void; return whether no deletion was recorded since the last one."""
        try:
            await self._store.write(self._ops.void_script(false, last.op_id, guards))
        except Refused as refused:
            if refused.reason != DELETED:
                raise
            return False
        number, entry = false.segment.number, false.entry
        _log.warning(
            "segment declared void, the archive does not have it: number=%d op_id=%s node_id=%s",
            *(number, entry.op_id, entry.node_id),
        )
        return True

    async def _is_owner(self) -> bool:
        return await self._trusted_keys.may_own(self._identity.chain, self._identity.key.public)

    async def _is_valid(self, recorded: RecordedSegment) -> bool:
        """Return whether the archive has a segment, signed by its archiver and as the database has it."""
        segment = recorded.segment
        if not _is_listed(segment, await self._target.sizes([segment.file_name])):
            return False
        async with self._target.get(segment.file_name, segment.bytes) as path:
            try:
                await ArchivedLog(self._store, FolderTarget(path.parent), [recorded]).check()
            except ArchiveFailed:
                return False
        return True

    async def _is_stored(self, segment: Segment, sizes: Mapping[str, int]) -> bool:
        """Return whether the archive has the file of a segment. Raises `ArchiveFailed` if it can't say."""
        if not _is_listed(segment, sizes):
            return False
        async with self._target.get(segment.file_name, segment.bytes) as path:
            reader = SegmentReader(path, self._store.mesh_id, segment)
            try:
                await asyncio.to_thread(reader.check_file)
            except ArchiveFailed:
                return False
        self.note_stored(segment)
        return True


def missing_error(missing: RecordedSegment) -> ArchiveFailed:
    """Return the error about a segment that the archive does not have."""
    segment, entry = missing.segment, missing.entry
    return ArchiveFailed(
        f"the archive does not have segment {segment.number} as the log records it: "
        f"{segment.file_name}, op {entry.op_id} of {entry.node_id}",
        hint="restore the file from a copy; if a node has lied, the owner runs "
        f"`vox-mesh oplog archive --void {segment.number}`",
    )


def _is_listed(segment: Segment, sizes: Mapping[str, int]) -> bool:
    return sizes.get(segment.file_name) == segment.bytes
