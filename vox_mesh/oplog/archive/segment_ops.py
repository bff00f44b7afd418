"""The ops about segments: what the log records of its archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.segment import ARCHIVE, Segment
from vox_mesh.oplog.pages import Pages
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.store import Store

TAKEN: Final = "segment_taken"
"""The refusal of a segment that another process has archived meanwhile."""

LOST: Final = "entries_lost"
"""The refusal of a segment whose entries are not in the database any more."""

_SQL: Final = named("oplog")


class RecordedSegment(NamedTuple):
    """A segment, the op that records it, and the keys of the chain of that op."""

    segment: Segment
    entry: LogEntry
    keys: tuple[str, ...]


class RecordedSegments(NamedTuple):
    """The segments in their order, and what is wrong with the ops that record them."""

    recorded: Sequence[RecordedSegment]
    faults: Sequence[str]

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
        """Return the segments whose ops their authors have signed, up to the first that does not follow."""
        recorded: list[RecordedSegment] = []
        async for entry in self._pages.segments():
            if not await self._trusted_keys.is_authentic(entry):
                continue  # the check of its chain reports it
            try:
                segment = Segment.read(entry)
            except BadValue as error:
                return RecordedSegments(recorded, [str(error)])
            if not segment.follows(recorded[-1].segment if recorded else None):
                fault = f"segment {segment.number} of the log does not follow the one before it"
                return RecordedSegments(recorded, [f"{fault}: op {entry.op_id} of {entry.node_id}"])
            keys = {key.public_key for key in await self._trusted_keys.of_chain(entry.node_id)}
            recorded.append(RecordedSegment(segment, entry, tuple(sorted(keys))))
        return RecordedSegments(recorded, [])

    def script(self, segment: Segment, last_op: str, before: LogEntry | None) -> Script:
        """Return the script that records a segment, whose last entry is this op.

        It is refused if another segment was recorded since the op `before`, or if the entries are gone.
        """
        mesh = self._store.mesh_id
        return Script(
            Statement(
                _SQL["refuse_unless_last_segment"],
                (*mesh, None if before is None else before.op_id),
                refusal=TAKEN,
            ),
            Statement(_SQL["refuse_unless_entry"], (*mesh, segment.last_id, last_op), refusal=LOST),
            op=Op(ARCHIVE, segment.payload, signed=True),
        )
