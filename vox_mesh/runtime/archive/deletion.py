"""Deletion: remove archived entries from the database, by the owner's node, in small batches."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import ArchiveFailed, BadValue, Refused
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.nodes.features import DELETIONS_KNOWN
from vox_mesh.model.oplog.deletion import DELETE, DeletedEntries, Deletion
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.oplog.archive.archived_log import ArchivedLog
from vox_mesh.oplog.archive.deletion_ops import RecordedDeletion
from vox_mesh.oplog.archive.deletion_plan import DeletionPlanner
from vox_mesh.oplog.archive.false_segments import FalseSegments, Guard, missing_error
from vox_mesh.oplog.archive.segment_ops import LOST, TAKEN, RecordedSegment, RecordedSegments, SegmentOps
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.oplog.pages import Pages
from vox_mesh.runtime.archive.leading import LEASE_S, Monotonic, lead_archive
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.targets.target import FileTarget

if TYPE_CHECKING:
    from vox_mesh.runtime.services import MeshServices

_log = logging.getLogger(__name__)

ENTRIES: Final = "log-entries"
"""The subject under which deleted entries are counted; its position is the last op that was carried out."""

_SQL: Final = named("oplog")
_PROGRESS: Final = named("archive")
_KIND: Final = OpKind(DELETE, appendable=False)
_BATCH: Final = 200
_MAX_SEGMENTS: Final = 4
"""How many segments more one op covers, so that it stays small."""

_REST: Final = 3
"""How many times as long as a batch took the next one waits, so that others write meanwhile."""

_MIN_REST_S: Final = 0.005
_MAX_REST_S: Final = 1.0

_MAX_TRIES: Final = 10
"""How often a deletion is recorded again after another op about segments was written."""


async def may_delete(mesh: MeshServices) -> bool:
    """Return whether this process acts for the owner, and all live nodes know deletions."""
    author = mesh.identity
    is_owner = await mesh.ownership.may_act(author.chain, author.key.public)
    return is_owner and await mesh.features.is_known_to_all(DELETIONS_KNOWN)


class LogDeletion:
    """Deletes for the owner, whose op says what may be missing; everyone else would report it as lost."""

    def __init__(self, mesh: MeshServices, target: FileTarget, guard: Guard) -> None:
        self._mesh = mesh
        self._store = mesh.store
        self._target = target
        self._guard = guard
        self._pages = Pages(mesh.store)
        self._segments = SegmentOps(mesh.store, mesh.trusted_keys)
        self._false_segments = FalseSegments(mesh.store, mesh.identity, mesh.trusted_keys, target)

    async def run_once(self, older_than_ms: int) -> int:
        """Delete what is archived and at least this old, and not needed. Return the number of entries.

        The log must have been verified just before. It can be stopped at any point, and goes on. An archive
        that has lost a file may lose others, so nothing is deleted then.

        Raises:
            ArchiveFailed: The archive does not have what the log records of it.
        """
        missing = await self._false_segments.first_missing()
        if missing is not None:
            raise missing_error(missing)
        known = await self._mesh.roles.deletions.read()
        deleted = await self._carry_out(known)
        while (due := await self._next(known, older_than_ms)) is not None:
            await self._record(known, due)
            before, known = known, await self._mesh.roles.deletions.read()
            if len(known) == len(before):
                break
            deleted += await self._carry_out(known[len(before) :])
        return deleted

    async def _next(self, known: list[RecordedDeletion], older_than_ms: int) -> RecordedSegments | None:
        """Return the segments that the next deletion covers; `None` if none is due."""
        found = await self._segments.read()
        done = max((each.deletion.segment for each in known), default=0)
        until_ms = self._mesh.clock.now_ms - older_than_ms
        due: list[RecordedSegment] = []
        for recorded in found.recorded[done : done + _MAX_SEGMENTS]:
            segment = recorded.segment
            last = await self._pages.after(segment.last_id - 1, segment.last_id)
            if not last or last[0].time_ms > until_ms:
                break
            due.append(recorded)
        return found._replace(recorded=due) if due else None

    async def _record(self, known: list[RecordedDeletion], due: RecordedSegments) -> None:
        """Write the op that lets entries be deleted, after a look at the archive.

        Nothing is written if one of the segments was declared void meanwhile.
        """
        deleted = DeletedEntries(each.deletion for each in known)
        await ArchivedLog(self._store, self._target, due.recorded, deleted).check()
        rebuild = Rebuild(self._store, self._mesh.oplog)
        await rebuild.check()
        unlawful = {each.op_id for each in rebuild.findings if each.kind == PRUNE}
        if unlawful:
            _log.warning("entries of jobs kept, ops pruned them against the rules: ops=%d", len(unlawful))
        last, op_id = due.recorded[-1].segment, due.recorded[-1].entry.op_id
        planned = await DeletionPlanner(self._store, deleted, unlawful).plan(last)
        if planned is None:
            planned = Deletion(last.number, last.sha256, last.last_id, {}, [])
        (end,) = await self._pages.after(last.last_id - 1, last.last_id)
        self._mesh.clock.refuse_if_off()
        values = (*self._store.mesh_id, last.last_id, end.op_id)
        unless_entry = Statement(_SQL["refuse_unless_entry"], values, refusal=LOST)
        found = due
        for _ in range(_MAX_TRIES):
            script = Script(
                await self._guard(),
                *await self._mesh.roles.guards(_KIND),
                self._segments.unless_last(found.last_op),
                unless_entry,
                op=Op(DELETE, planned.payload, signed=True),
            )
            try:
                await self._store.write(script)
            except Refused as refused:
                if refused.reason != TAKEN:
                    raise
            else:
                return
            found = await self._segments.read()
            if all(each.entry.op_id != op_id for each in found.recorded):
                _log.info("archived entries not deleted, their segment is void: segment=%d", last.number)
                return

    async def _carry_out(self, known: list[RecordedDeletion]) -> int:
        """Delete the entries of these ops, as far as that was not done."""
        rows = await self._store.read(_PROGRESS["position"], (*self._store.mesh_id, ENTRIES), fresh=True)
        done_id = rows.value if rows else 0
        deleted = 0
        for deletion, entry in known:
            if entry.id <= done_id:
                continue
            size = sum(each.last - each.first + 1 for some in deletion.ranges.values() for each in some)
            for chain, ranges in deletion.ranges.items():
                for each in ranges:
                    await self._delete(chain, each.first, each.last)
            values = (*self._store.mesh_id, ENTRIES, size, entry.id)
            await self._store.write(Script(await self._guard(), Statement(_PROGRESS["advance"], values)))
            _log.info("archived entries deleted: segment=%d entries=%d", deletion.segment, size)
            deleted += size
        return deleted

    async def _delete(self, chain: str, first: int, last: int) -> None:
        loop = asyncio.get_running_loop()
        for begin in range(first, last + 1, _BATCH):
            began = loop.time()
            values = (*self._store.mesh_id, chain, begin, min(begin + _BATCH - 1, last))
            delete = Statement(_SQL["delete_archived"], values)
            await self._store.write(Script(await self._guard(), delete))
            await asyncio.sleep(min(max(_REST * (loop.time() - began), _MIN_REST_S), _MAX_REST_S))


async def delete_archived(
    mesh: MeshServices,
    target: FileTarget,
    older_than_ms: int,
    monotonic: Monotonic,
    lease_s: float = LEASE_S,
) -> int:
    """Verify the log, delete archived entries at once, and return how many.

    Raises:
        ArchiveFailed: The log is broken, or the archive does not have what the log records of it.
        BadValue: This process does not act for the owner, or a live node knows no deletions.
        LockHeld: Another process archives or deletes.
    """
    if not await may_delete(mesh):
        raise BadValue(
            "nothing deleted: only the owner's node deletes entries, and all live nodes must know deletions",
            hint="`vox-mesh roles show` names the owner, and `vox-mesh nodes` shows the versions",
        )
    broken = [each for each in await mesh.oplog.verify() if each.problem is not None]
    if broken:
        raise ArchiveFailed(
            f"the log is broken, and nothing is deleted: {broken[0].node_id} {broken[0].problem}",
            hint="run `vox-mesh oplog verify`",
        )
    async with lead_archive(mesh, monotonic, "nothing deleted", lease_s) as guard:
        return await LogDeletion(mesh, target, guard).run_once(older_than_ms)
