"""False segments: recorded by a node that lies, and in no archive. The owner declares them void.

Any node may record the next segment, so one can record what it never archived. Nothing is lost by declaring
a segment void whose entries are all in the database: they are archived again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from vox_mesh.errors import ArchiveFailed, BadValue, NotKnown
from vox_mesh.model.oplog.segment import Segment
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.archive.segment_file import SegmentReader
from vox_mesh.oplog.archive.segment_ops import RecordedSegment, SegmentOps
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget

_log = logging.getLogger(__name__)

_MAX_LOOKS: Final = 500
"""How many segments that are not in the archive are passed over to find one that is."""


class FalseSegments:
    """Compare the newest recorded segments with the archive, and declare false ones void."""

    def __init__(
        self, store: Store, identity: Identity, trusted_keys: TrustedKeys, target: FileTarget
    ) -> None:
        self._store = store
        self._identity = identity
        self._trusted_keys = trusted_keys
        self._target = target
        self._ops = SegmentOps(store, trusted_keys)

    async def check_newest(self) -> None:
        """Raise `ArchiveFailed` unless the archive has the newest segment: it may be an earlier copy.

        The owner's process declares void what others recorded after the last segment that the archive has.
        """
        recorded = (await self._ops.read()).recorded
        if not recorded or await self._is_stored(recorded[-1].segment):
            return
        false = recorded[-1]
        error = ArchiveFailed(
            f"the archive does not have segment {false.segment.number} as the log records it: "
            f"{false.segment.file_name}, op {false.entry.op_id} of {false.entry.node_id}",
            hint="restore the file from a copy; if a node has lied, the owner runs "
            "`vox-mesh oplog archive --void NUMBER`",
        )
        if not await self._is_owner():
            raise error
        for each in recorded[: -_MAX_LOOKS - 1 : -1]:
            if await self._is_stored(each.segment):
                await self._void(false)  # and with it all that follow it
                return
            if not await self._may_be_void(each) or await self._trusted_keys.is_of_owner(each.entry):
                break
            false = each
        raise error

    async def void(self, number: int) -> Segment:
        """Declare a segment void, and with it all that follow it; only the owner may. Return the segment.

        Raises:
            BadValue: This process does not act for the owner, or entries of the segment may be deleted.
            NotKnown: The log records no such segment.
        """
        if not await self._is_owner():
            raise BadValue(
                "nothing declared void: only the owner may", hint="`vox-mesh roles show` names the owner"
            )
        found = [each for each in (await self._ops.read()).recorded if each.segment.number == number]
        if not found:
            hint = "run `vox-mesh oplog archive --list` to see the segments"
            raise NotKnown(f"segment {number} not found", hint=hint)
        if not await self._may_be_void(found[0]):
            raise BadValue(
                f"segment {number} can't be void: its entries may be deleted from the database",
                hint="restore its file from a copy",
            )
        await self._void(found[0])
        return found[0].segment

    async def _void(self, false: RecordedSegment) -> None:
        await self._store.write(self._ops.void_script(false))
        number, entry = false.segment.number, false.entry
        _log.warning(
            "segment declared void, the archive does not have it: number=%d op_id=%s node_id=%s",
            *(number, entry.op_id, entry.node_id),
        )

    async def _is_owner(self) -> bool:
        return await self._trusted_keys.may_own(self._identity.chain, self._identity.key.public)

    async def _may_be_void(self, recorded: RecordedSegment) -> bool:
        """Return whether the database has all entries of a segment and of the following ones."""
        return await self._trusted_keys.last_deleted_segment() < recorded.segment.number

    async def _is_stored(self, segment: Segment) -> bool:
        """Return whether the archive has the file of a segment. Raises `ArchiveFailed` if it can't say."""
        name = segment.file_name
        if (await self._target.sizes([name])).get(name) != segment.bytes:
            return False
        async with self._target.get(name, segment.bytes) as path:
            reader = SegmentReader(path, self._store.mesh_id, segment)
            try:
                await asyncio.to_thread(reader.check_file)
            except ArchiveFailed:
                return False
        return True
