"""The ops about segments: what the log records of its archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.segment import ARCHIVE, Segment, void_payload, voided_op
from vox_mesh.oplog.pages import Pages
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.store import Store

TAKEN: Final = "segment_taken"
"""The refusal of a segment that another process has archived meanwhile."""

LOST: Final = "entries_lost"
"""The refusal of a segment whose entries are not in the database any more."""

DELETED: Final = "entries_deleted"
"""The refusal of a void segment, if a deletion was recorded meanwhile."""

_SQL: Final = named("oplog")


class RecordedSegment(NamedTuple):
    """A segment, the op that records it, and the keys of the chain of that op."""

    segment: Segment
    entry: LogEntry
    keys: tuple[str, ...]


class RecordedSegments(NamedTuple):
    """The segments in their order, and the ops that record none."""

    recorded: Sequence[RecordedSegment]
    skipped: Sequence[str]
    """Why ops are skipped, one line for each."""

    last_op: str | None
    """The last op about segments, skipped or not."""

    @property
    def last(self) -> Segment | None:
        """Return the last segment; `None` before the first."""
        return self.recorded[-1].segment if self.recorded else None


class SegmentOps:
    """Read and write the ops about segments."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._pages = Pages(store)

    async def read(self) -> RecordedSegments:
        """Return the segments whose ops their authors have signed.

        Any node may write such an op, so one that does not follow the last segment is skipped: it must not
        keep others from archiving. One that the owner declared void is passed over.
        """
        recorded: list[RecordedSegment] = []
        skipped: list[str] = []
        entries = [entry async for entry in self._pages.segments()]
        void = {op_id: each for each in entries if (op_id := voided_op(each)) is not None}
        void = {op_id: each for op_id, each in void.items() if await self._trusted_keys.is_of_owner(each)}
        passed_over = void.keys() | {each.op_id for each in void.values()}
        for entry in entries:
            if entry.op_id in passed_over or not await self._trusted_keys.is_authentic(entry):
                continue  # the check of its chain reports what its author has not signed
            try:
                segment = _segment_of(entry, recorded[-1].segment if recorded else None)
            except BadValue as error:
                skipped.append(f"{error}: op {entry.op_id} of {entry.node_id}")
                continue
            keys = {key.public_key for key in await self._trusted_keys.of_chain(entry.node_id)}
            recorded.append(RecordedSegment(segment, entry, tuple(sorted(keys))))
        return RecordedSegments(recorded, skipped, entries[-1].op_id if entries else None)

    def script(self, segment: Segment, last_op: str, before: str | None) -> Script:
        """Return the script that records a segment, whose last entry is this op.

        It is refused if another op about segments was written since the op `before`, or if the entries are
        gone.
        """
        mesh = self._store.mesh_id
        return Script(
            self.unless_last(before),
            Statement(_SQL["refuse_unless_entry"], (*mesh, segment.last_id, last_op), refusal=LOST),
            op=Op(ARCHIVE, segment.payload, signed=True),
        )

    def unless_last(self, op_id: str | None) -> Statement:
        """Return the guard that refuses a script if another op about segments was written since this one."""
        return Statement(_SQL["refuse_unless_last_segment"], (*self._store.mesh_id, op_id), refusal=TAKEN)

    def void_script(
        self, recorded: RecordedSegment, last_deletion: str | None, guards: Iterable[Statement]
    ) -> Script:
        """Return the script by which the owner declares that an op records no segment.

        It is refused if another op about deletions was written since the op `last_deletion`: entries of a
        segment that does not count must not be deleted.
        """
        mesh, op_id = self._store.mesh_id, recorded.entry.op_id
        return Script(
            *guards,
            Statement(_SQL["refuse_unless_last_deletion"], (*mesh, last_deletion), refusal=DELETED),
            Statement(_SQL["refuse_unless_entry"], (*mesh, recorded.entry.id, op_id), refusal=LOST),
            op=Op(ARCHIVE, void_payload(op_id), signed=True),
        )


def _segment_of(entry: LogEntry, before: Segment | None) -> Segment:
    """Return the segment that an op records. Raises `BadValue` if it is not the next one."""
    segment = Segment.read(entry)
    if not segment.follows(before):
        raise BadValue(f"segment {segment.number} of the log does not follow the one before it")
    if segment.last_id >= entry.id:
        raise BadValue(f"segment {segment.number} of the log has entries that were not written before it")
    return segment
