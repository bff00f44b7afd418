"""The plan of a deletion: which archived entries nothing needs any more.

A chain is divided by its seals. Of a part between two seals, all entries stay if one of them is needed: so
the verdict of each remaining entry is still sealed, and the entry signed for. The first and last parts stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import orjson

from vox_mesh.model.jobs.records import INFERENCE, JOB_OPS, SCHEDULE
from vox_mesh.model.oplog.chain import ANCHOR, SEAL, LogEntry
from vox_mesh.model.oplog.deletion import DeletedEntries, DeletedRange, Deletion
from vox_mesh.model.oplog.op_names import CHARGE, END_PHRASE, INTERNAL_KINDS, RESTORE
from vox_mesh.model.oplog.segment import Segment
from vox_mesh.model.oplog.verification import OWNER_ONLY
from vox_mesh.model.retention.deleted_jobs import OF_JOBS, jobs_of
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.oplog.pages import Pace, Pages
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("oplog")
_MIN_RUN: Final = 4
"""Fewer entries take less than the range that would name them."""

_MAX_RANGES: Final = 8_000
"""How many ranges one op has at most."""

DELETABLE: Final = frozenset((*JOB_OPS, INFERENCE, PRUNE, END_PHRASE, CHARGE, SEAL, ANCHOR))
"""The kinds of the mesh's own ops that need not stay. All others govern something."""

_GOVERNING: Final = (INTERNAL_KINDS | OWNER_ONLY | {RESTORE}) - DELETABLE


class DeletionPlanner:
    """Plans what the next deletion removes."""

    def __init__(self, store: Store, known: DeletedEntries, unlawful: Collection[str] = ()) -> None:
        """`known`: what may be missing already. `unlawful`: ops that pruned jobs against the rules."""
        self._store = store
        self._pages = Pages(store)
        self._known = known
        self._unlawful = unlawful
        self._awaited: set[str] = set()
        self._open: set[str] = set()

    async def plan(self, last: Segment) -> Deletion | None:
        """Return what nothing needs of the entries up to a segment; `None` if that is nothing."""
        self._awaited = {row[0] for row in await self._store.read(_SQL["awaited_ops"], self._store.mesh_id)}
        self._open = await self._open_jobs(last.last_id)
        ranges: dict[str, list[DeletedRange]] = {}
        partial: set[str] = set()
        count, pace = 0, Pace()
        async for chain in self._pages.chains(last.last_id):
            plan = _ChainPlan(self._is_needed, lambda entry: partial.update(self._ended(entry)))
            async for page in self._pages.entries(chain, last.last_id):
                for entry in page:
                    plan.add(entry, has_room=count + len(plan.ranges) < _MAX_RANGES)
                    await pace.keep(entry.payload)
            plan.finish()
            if plan.ranges:
                ranges[chain] = plan.ranges
                count += len(plan.ranges)
        if not ranges:
            return None
        return Deletion(last.number, last.sha256, last.last_id, ranges, sorted(partial))

    async def _open_jobs(self, up_to: int) -> set[str]:
        """Return the jobs that were scheduled and not pruned."""
        found: set[str] = set()
        after_id, pace = 0, Pace()
        while page := await self._pages.accepted_of_kinds((SCHEDULE, PRUNE), after_id, up_to):
            for entry in page:
                jobs = jobs_of(entry) or []
                if entry.kind == SCHEDULE:
                    found.update(each for each in jobs if self._known.jobs.get(each, 0) < entry.id)
                elif entry.op_id not in self._unlawful:
                    found.difference_update(jobs)
                await pace.keep(entry.payload)
            after_id = page[-1].id
        return found

    def _is_needed(self, entry: LogEntry) -> bool:
        if entry.kind in _GOVERNING or entry.op_id in self._awaited or entry.op_id in self._unlawful:
            return True
        if entry.kind in (END_PHRASE, CHARGE):
            return _job_of(entry) in self._open
        if entry.kind in OF_JOBS:
            jobs = jobs_of(entry)
            return jobs is None or not self._open.isdisjoint(jobs)
        return False

    def _ended(self, entry: LogEntry) -> list[str]:
        """Return the pruned jobs that a remaining entry names, as far as no earlier deletion names them."""
        if entry.kind not in OF_JOBS or entry.accepted != 1:
            return []
        jobs = jobs_of(entry) or []
        return [each for each in jobs if each not in self._open and self._known.jobs.get(each, 0) < entry.id]


def _job_of(entry: LogEntry) -> str | None:
    """Return the job that a cost is of, if it is of one."""
    try:
        payload: Any = orjson.loads(entry.payload)
        return str(payload.get("job") or payload.get("task"))
    except (ValueError, AttributeError):
        return None


class _ChainPlan:
    """Divides one chain, entry by entry, into what stays and what is deleted."""

    def __init__(self, is_needed: Callable[[LogEntry], bool], keep: Callable[[LogEntry], None]) -> None:
        self._is_needed = is_needed
        self._keep = keep
        self.ranges: list[DeletedRange] = []
        self._part: list[LogEntry] = []  # from a seal on, up to the next one
        self._must_stay = False
        self._is_unsigned = False  # whether what stays needs a signature that is still to come
        self._run: DeletedRange | None = None
        self._short: list[LogEntry] = []  # the run, while it is too short

    def add(self, entry: LogEntry, *, has_room: bool) -> None:
        """Take in the next entry."""
        if entry.kind == SEAL and self._part:
            self._close()
        self._part.append(entry)
        self._must_stay |= not has_room or self._is_needed(entry)

    def finish(self) -> None:
        """Take in the end of the chain: the last part stays."""
        self._must_stay = True
        self._close()
        self._end_run()

    def _close(self) -> None:
        part, self._part = self._part, []
        if self._must_stay or not part or part[0].kind != SEAL:
            staying, self._is_unsigned = part, True
        elif self._is_unsigned:
            signed = next((n for n, entry in enumerate(part, 1) if entry.signature is not None), None)
            staying, self._is_unsigned = part[:signed], signed is None
        else:
            staying = []
        self._must_stay = False
        if staying:
            self._end_run()
        for entry in staying:
            self._keep(entry)
        for entry in part[len(staying) :]:
            self._drop(entry)

    def _drop(self, entry: LogEntry) -> None:
        run = self._run
        if run is not None and entry.seq != run.last + 1:  # what is between them was deleted before
            self._end_run()
            run = None
        if run is None:
            self._run = DeletedRange(entry.seq, entry.seq, entry.prev, entry.hash)
        else:
            self._run = run._replace(last=entry.seq, hash=entry.hash)
        if len(self._short) < _MIN_RUN:
            self._short.append(entry)

    def _end_run(self) -> None:
        run, short, self._run, self._short = self._run, self._short, None, []
        if run is not None and run.last - run.first + 1 >= _MIN_RUN:
            self.ranges.append(run)
        else:
            for entry in short:
                self._keep(entry)
