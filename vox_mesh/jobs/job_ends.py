"""Ends of jobs: a successor relies on what signed ops say about its predecessors, and not on their rows.

The row of an ended job only says which op to look at. Ends are verified once, many in one read, and
remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue, TooLarge, UnreadableText
from vox_mesh.jobs.queries import JobQueries, json
from vox_mesh.jobs.results import RESULT, STDOUT
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.job_end import Condition, JobEnd, ends_stated_by
from vox_mesh.model.jobs.records import COMPLETE, EXEC, UNSUCCESSFUL, Job, JobState
from vox_mesh.model.jobs.scheduled_job import has_own_manifest
from vox_mesh.model.oplog.authorship import authentic_entries
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import Key
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store

_MAX_KNOWN: Final = 16_384  # more than one job may wait for
_MAX_READ: Final = 64
_MAX_INLINE_BYTES: Final = 2**15 + 2**12  # about a millisecond; more is verified in another thread
_MAX_DEPTH: Final = 1_000
_MAX_ANCESTORS: Final = 4_096
_OUTPUTS: Final = frozenset({RESULT, STDOUT})

Conditions = Sequence[Condition]
ReadConditions = Callable[[Sequence[Job]], Awaitable[Mapping[str, Conditions]]]
"""Returns by id what signed ops say that these jobs wait for."""


class _Run(NamedTuple):
    """Consecutive entries of a chain, and its keys."""

    entries: Sequence[LogEntry]
    keys: Sequence[Key]


class _Stated(NamedTuple):
    """What an authentic entry says about the end of a job."""

    end: JobEnd
    entry: LogEntry


class JobEnds:
    """Finds how jobs have ended, in ops that their authors signed."""

    def __init__(
        self,
        store: Store,
        queries: JobQueries,
        trusted_keys: TrustedKeys,
        roles: Roles,
        read_conditions: ReadConditions,
    ) -> None:
        self._store = store
        self._queries = queries
        self._trusted_keys = trusted_keys
        self._roles = roles
        self._read_conditions = read_conditions
        self._ends = Recent[str, JobEnd](_MAX_KNOWN)
        self._ops = Recent[str, None](_MAX_KNOWN)

    def forget(self) -> None:
        """Look again the next time: the database was rolled back, and may have lost ops."""
        self._ends.clear()
        self._ops.clear()

    async def find(self, job_ids: Iterable[str]) -> dict[str, JobEnd]:
        """Return by id how jobs have ended; one without an authentic op about its end is left out."""
        return await self._find(dict.fromkeys(job_ids))

    def known_op(self, condition: Condition) -> str | None:
        """Return the op that met a condition, if it was found just now."""
        if condition.is_op:
            return condition.predecessor
        end = self._ends.get(condition.predecessor)
        return None if end is None else end.op_id

    async def unmet(self, conditions: Mapping[str, Conditions]) -> dict[str, Condition]:
        """Return by job the first of its conditions that no authentic op has met."""
        every = [each for conditions in conditions.values() for each in conditions]
        ends = await self._find({each.predecessor: None for each in every if not each.is_op})
        ops = await self._find_ops({each.predecessor: None for each in every if each.is_op})
        for each in every:
            if each.is_any_end and each.predecessor not in ends:
                ends |= await self._find_failed_with_predecessor(each.predecessor)
        found: dict[str, Condition] = {}
        for job_id, conditions_of_job in conditions.items():
            for each in conditions_of_job:
                is_met = each.predecessor in ops if each.is_op else each.is_met_by(ends.get(each.predecessor))
                if not is_met:
                    found.setdefault(job_id, each)
        return found

    async def _find(self, job_ids: Collection[str]) -> dict[str, JobEnd]:
        ends = {job_id: self._ends[job_id] for job_id in job_ids if job_id in self._ends}
        for part in _parts([each for each in job_ids if each not in ends]):
            ends |= await self._verify(part)
        return ends

    async def find_op(self, op_id: str) -> LogEntry | None:
        """Return the entry of an accepted op that its author signed, or `None`."""
        authentic, _ = await self._authentic((), [op_id])
        for entry in authentic:
            if entry.op_id == op_id and await self._is_accepted(entry):
                return entry
        return None

    async def _find_ops(self, op_ids: Collection[str]) -> set[str]:
        known = {op_id for op_id in op_ids if op_id in self._ops}
        for part in _parts([each for each in op_ids if each not in known]):
            authentic, _ = await self._authentic((), part)
            asked = [each for each in authentic if each.op_id in part]
            accepted = {each.op_id for each in asked if await self._is_accepted(each)}
            self._ops.update(dict.fromkeys(accepted))
            known |= accepted
        return known

    async def _verify(self, job_ids: Sequence[str]) -> dict[str, JobEnd]:
        authentic, has_routes = await self._authentic(job_ids, ())
        wanted = frozenset(job_ids)
        if _size(authentic) <= _MAX_INLINE_BYTES:
            stated = _stated_by(authentic, wanted)
        else:
            stated = await asyncio.to_thread(_stated_by, authentic, wanted)
        if has_routes:
            stated = await self._by_allowed_nodes(stated)
        stated = {job_id: each for job_id, each in stated.items() if await self._is_accepted(each.entry)}
        ends = {job_id: each.end._replace(op_id=each.entry.op_id) for job_id, each in stated.items()}
        self._ends.update(ends)
        return ends

    async def _is_accepted(self, entry: LogEntry) -> bool:
        """Return whether an op was accepted. A mark that says so counts unless its author's seal differs.

        A worker seals at once that its completion was refused, and everything else within a minute.
        """
        return entry.accepted == 1 and not await self._trusted_keys.has_changed_verdict(entry)

    # --- reading the log -------------------------------------------------------------------------

    async def _authentic(self, job_ids: Sequence[str], op_ids: Sequence[str]) -> tuple[list[LogEntry], bool]:
        """Return the authentic entries among the ops that ended these jobs and among other ops.

        And whether there are routes.
        """
        rows = await self._read(job_ids, op_ids)
        entries = sorted((LogEntry._make(row[:-2]) for row in rows), key=lambda entry: entry[1:3])
        runs = [_Run(run, await self._keys(run[0].node_id, rows[0]["mark"])) for run in _runs(entries)]
        if _size(entries) <= _MAX_INLINE_BYTES:
            authentic = _authentic_of(runs, self._store.writer_id.scope_id)
        else:
            authentic = await asyncio.to_thread(_authentic_of, runs, self._store.writer_id.scope_id)
        original = [entry for entry in authentic if await self._trusted_keys.is_original(entry)]
        return original, bool(rows and rows[0]["has_routes"])

    async def _read(self, job_ids: Sequence[str], op_ids: Sequence[str]) -> Sequence[Any]:
        """Read entries, each with the following ones up to a signed one; fewer if it is too much."""
        try:
            values = (*self._store.mesh_id, json(job_ids), json(op_ids))
            return [*await self._store.read(SQL["ends"], values)]
        except (TooLarge, UnreadableText):
            ids = job_ids or op_ids
            if len(ids) == 1:  # only a hostile entry is so
                return []
            halves = (ids[: len(ids) // 2], ids[len(ids) // 2 :])
            parts = [await self._read(*((each, ()) if job_ids else ((), each))) for each in halves]
            return [row for part in parts for row in part]

    async def _keys(self, chain: str, mark: str | None) -> list[Key]:
        known = self._trusted_keys.known(chain, mark)
        return await self._trusted_keys.of_chain(chain) if known is None else known

    async def _by_allowed_nodes(self, stated: Mapping[str, _Stated]) -> dict[str, _Stated]:
        """Leave out completions by nodes that a route kept from the job."""
        from vox_mesh.oplog.audits.route_audit import RouteAudit  # imported late: few meshes have routes

        audit = RouteAudit(self._store, self._roles)
        routes = await audit.history()
        jobs = await self._queries.find_all(stated)
        allowed: dict[str, _Stated] = {}
        for job_id, each in stated.items():
            kind = _kind_of(jobs.get(job_id))
            if kind is None:
                continue
            entry, is_barred = each.entry, False
            if entry.kind == COMPLETE and routes.barred_from(kind, entry.author, entry.id):
                # It may have been claimed before there was the route.
                token = each.end.claim_token
                is_barred = await audit.barred_from(kind, entry, job_id, token) is not None
            if not is_barred:
                allowed[job_id] = each
        return allowed

    # --- failed with a predecessor ---------------------------------------------------------------

    async def _find_failed_with_predecessor(self, job_id: str) -> dict[str, JobEnd]:
        """Return the end of a job that failed because one that it waited for did not succeed.

        No op names it: it follows from the end of the other one, which may be several jobs away.
        """
        level, seen = {job_id}, {job_id}
        for _ in range(_MAX_DEPTH):
            rows = await self._queries.find_all(level)
            conditions = await self._read_conditions([*rows.values()])
            predecessors = {
                each.predecessor
                for of_job in conditions.values()
                for each in of_job
                if not each.is_op and not each.is_any_end
            }
            ends = await self._find(predecessors)
            if any(end.state in UNSUCCESSFUL for end in ends.values()):
                end = JobEnd(JobState.FAILED)
                self._ends[job_id] = end
                return {job_id: end}
            level = predecessors - ends.keys() - seen
            seen |= level
            if not level or len(seen) > _MAX_ANCESTORS:
                break
        return {}


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _MAX_READ] for start in range(0, len(ids), _MAX_READ))


def _size(entries: Iterable[LogEntry]) -> int:
    return sum(len(entry.payload) for entry in entries)


def _runs(entries: Iterable[LogEntry]) -> list[list[LogEntry]]:
    """Return the entries in runs of consecutive ones, each once; they come in the order of their chains."""
    runs: list[list[LogEntry]] = []
    for entry in entries:
        last = runs[-1][-1] if runs else None
        if last is None or last.node_id != entry.node_id or entry.seq > last.seq + 1:
            runs.append([entry])
        elif entry.seq == last.seq + 1:
            runs[-1].append(entry)
    return runs


def _authentic_of(runs: Iterable[_Run], scope_id: str) -> list[LogEntry]:
    return [entry for run, keys in runs for entry in authentic_entries(run, keys, scope_id)]


def _stated_by(entries: Iterable[LogEntry], job_ids: Collection[str]) -> dict[str, _Stated]:
    """Return what authentic entries say about the ends of these jobs."""
    return {
        job_id: _Stated(end, entry)
        for entry in entries
        for job_id, end in ends_stated_by(entry, _OUTPUTS).items()
        if job_id in job_ids
    }


def _kind_of(job: Job | None) -> str | None:
    """Return the kind of a job, by the manifest whose hash is its id; `None` if its row has another."""
    if job is None or not has_own_manifest(job):
        return None
    try:
        return str(job.core.get("kind", EXEC))
    except BadValue:
        return None
