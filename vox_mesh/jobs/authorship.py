"""Authorship of jobs: a job is run only if the op that scheduled it is in the log, signed by its author.

A row of `jobs` proves nothing. The ops of other processes are verified once, in runs of a chain with one
signature for each; jobs that this process has scheduled are known already. A row that was put back to an
earlier state is found by the claims and the ends in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.jobs.job_ends import JobEnds
from vox_mesh.jobs.queries import Claimable, JobQueries, PlacedJob
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.claim_history import (
    MAX_ENDS,
    ClaimHistory,
    LoggedEnd,
    OpPlace,
    claimed_jobs,
    ended_jobs,
    moved_jobs,
    released_token,
)
from vox_mesh.model.jobs.job_end import Condition, conditions_of
from vox_mesh.model.jobs.records import ABORT, CLAIM, EXPIRE, SCHEDULE, YIELD, Job
from vox_mesh.model.jobs.scheduled_job import (
    Item,
    ScheduledJob,
    ScheduleKey,
    has_own_manifest,
    jobs_scheduled_by,
)
from vox_mesh.model.oplog.authorship import authentic_entries
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import Key
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.oplog.pages import Pages
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MAX_KNOWN: Final = 32_768
_MAX_KNOWN_EDGES: Final = 100_000  # predecessors that are remembered with the jobs
_MAX_CAUSES: Final = 256  # ops that one claim of a job names
_MAX_DOUBTED: Final = 4_096
_DOUBT_S: Final = 30.0  # until a job without an authentic op is looked at again
_UNSEALED_S: Final = 2.0  # until a job is looked at again whose end was refused, but not sealed yet
_MAX_RUN: Final = 256
_MIN_READ_AHEAD: Final = 8  # in a backlog, jobs of the next ops are claimed next
_READ_AHEAD_BYTES: Final = 2**15
_MAX_INLINE_BYTES: Final = 2**15 + 2**12  # about a millisecond; a longer run is verified in another thread
_SEARCH_SLACK_MS: Final = 1_000
_MAX_SEARCHED: Final = 20_000


class _Position(NamedTuple):
    """The place of an op in its chain."""

    chain: str
    seq: int


class _Doubt(NamedTuple):
    """Why a job is not run, and for how many seconds."""

    reason: str
    seconds: float = _DOUBT_S
    level: int = logging.ERROR


_NOT_SIGNED: Final = _Doubt("no op signed by its author schedules it")
_PUT_BACK: Final = _Doubt("its row was put back since it was claimed")
_ENDED: Final = _Doubt("its row was put back since it ended")
_UNSEALED: Final = _Doubt("no seal confirms yet that its end was refused", _UNSEALED_S, logging.WARNING)


class JobAuthorship:
    """Tells jobs that their authors scheduled from rows that were merely written to the table."""

    def __init__(
        self,
        store: Store,
        queries: JobQueries,
        trusted_keys: TrustedKeys,
        roles: Roles,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._queries = queries
        self._trusted_keys = trusted_keys
        self._pages = Pages(store)
        self._monotonic = monotonic
        self._read_ahead = _MIN_READ_AHEAD
        self._scheduled: dict[ScheduleKey, ScheduledJob] = {}
        self._earlier: dict[ScheduleKey, ScheduledJob] = {}
        self._edges = 0
        self._doubted_until = Recent[tuple[str, int], float](_MAX_DOUBTED)
        self._log_throttled = ThrottledLogger(_log, monotonic)
        self.ends = JobEnds(store, queries, trusted_keys, roles, self.conditions_of)
        """The ends of predecessors."""
        self.history = ClaimHistory()
        """The claims in the log: read before the rows of jobs, which are never behind it."""
        self.forged = 0
        """How many rows were found that no authentic op has led to."""

    def forget(self) -> None:
        """Look again the next time: the database was rolled back, and may have lost ops."""
        self._scheduled, self._earlier, self._edges = {}, {}, 0
        self.history.forget()
        self.ends.forget()

    def remember(self, items: Iterable[Item], op_id: str) -> None:
        """Remember jobs that this process has scheduled by an op: its own ops need no verification."""
        after = self.history.position or 0
        shared: dict[bytes, Item] = {}
        self._learn(
            {
                (item["job_id"], item["seed"]): ScheduledJob.of(
                    item, item.get("run_at_ms") or 0, after, op_id, shared
                )
                for item in items
            }
        )

    def _learn(self, jobs: Mapping[ScheduleKey, ScheduledJob]) -> None:
        """Take in scheduled jobs; the oldest half is dropped when there are too many."""
        if len(self._scheduled) >= _MAX_KNOWN or self._edges >= _MAX_KNOWN_EDGES:
            self._scheduled, self._earlier, self._edges = {}, self._scheduled, 0
        self._scheduled.update(jobs)
        self._edges += sum(_edge_count(each) for each in jobs.values())

    @property
    def doubted_count(self) -> int:
        """Return how many rows without an authentic op were found just now, up to a limit."""
        while self._doubted_until and next(iter(self._doubted_until.values())) <= self._monotonic():
            self._doubted_until.popitem(last=False)
        return len(self._doubted_until)

    def doubted_s(self, job_id: str, claim_token: int) -> float:
        """Return for how many seconds a row is left alone that was not authentic just now; 0: it is not."""
        return max(0.0, self._doubted_until.get((job_id, claim_token), 0.0) - self._monotonic())

    async def still_claimable(self, chosen: Sequence[Claimable], rekeyed: str | None) -> list[PlacedJob]:
        """Read the chosen jobs that are still claimable, with all that is needed to verify them.

        A single one is verified from the same answer, if the keys of its author are known and no other was
        accepted since, which `rekeyed` shows.
        """
        if len(chosen) > 1 or self._knows(chosen[0]):
            return await self._queries.still_claimable(chosen)
        found = await self._queries.claimable_with_op(chosen[0])
        for _, _, entry in found:
            if entry is not None and entry.signature is not None and entry.kind == SCHEDULE:
                keys = self._trusted_keys.known(entry.node_id, rekeyed)
                is_newest = keys is not None and all(key.from_seq <= entry.seq for key in keys)
                if keys is not None and is_newest and len(entry.payload) <= _MAX_INLINE_BYTES:
                    arguments = [entry], keys, self._store.writer_id.scope_id
                    self._learn(jobs_scheduled_by(authentic_entries(*arguments)))
        return found

    def _knows(self, job: Claimable) -> bool:
        key = (job.job_id, job.seed)
        return key in self._scheduled or key in self._earlier

    async def genuine(self, jobs: Sequence[PlacedJob]) -> list[Job]:
        """Return the pending jobs that their authors scheduled, just as they are in the table."""
        genuine: list[Job] = []
        waiting: list[Job] = []
        for placed, scheduled in zip(jobs, await self._scheduled_by_author(jobs), strict=True):
            doubt = None
            if scheduled is None:
                doubt = _NOT_SIGNED
            elif not self._is_untouched(placed.job.job_id, scheduled):
                doubt = await self._put_back(placed, scheduled)
            if doubt is not None:
                self._set_aside(placed.job, doubt)
                continue
            genuine.append(placed.job)
            if scheduled is not None and scheduled.item.get("after"):
                waiting.append(placed.job)
        doubted = await self._before_predecessors(waiting) if waiting else set()
        return [job for job in genuine if job.job_id not in doubted] if doubted else genuine

    async def is_scheduled(self, job: Job) -> bool:
        """Return whether a job, in any state, was scheduled by its author."""
        if self._known(job) is not None:
            return has_own_manifest(job)
        (scheduled,) = await self._scheduled_by_author([await self._queries.placed(job)])
        return scheduled is not None

    async def scheduled_as(self, jobs: Sequence[Job]) -> list[ScheduledJob | None]:
        """Return how the author of each job scheduled it; `None` if no op that its author signed does."""
        return await self._scheduled_by_author([await self._queries.placed(job) for job in jobs])

    def doubt(self, job: Job, reason: str) -> None:
        """Leave a job alone for a while, because the table says what no authentic op says."""
        self._set_aside(job, _Doubt(reason))

    def _set_aside(self, job: Job, doubt: _Doubt) -> None:
        self.forged += doubt.level == logging.ERROR
        self._doubted_until[job.job_id, job.claim_token] = self._monotonic() + doubt.seconds
        self._log_throttled(
            doubt.level,
            "job not run, %s: job_id=%s kind=%s scheduled_by=%s",
            *(doubt.reason, job.job_id, job.kind, job.scheduled_by),
        )

    # --- scheduled by its author -----------------------------------------------------------------

    async def _scheduled_by_author(self, jobs: Sequence[PlacedJob]) -> list[ScheduledJob | None]:
        """Return how the author of each job scheduled it; `None` if the row says anything else."""
        known = [self._known(placed.job) for placed in jobs]
        if None in known:
            unknown = [placed for placed, found in zip(jobs, known, strict=True) if found is None]
            for chain, seqs in _by_chain(await self._positions(unknown)).items():
                await self._verify(chain, seqs)
            known = [found or self._known(placed.job) for placed, found in zip(jobs, known, strict=True)]
        return [
            found if has_own_manifest(placed.job) else None for placed, found in zip(jobs, known, strict=True)
        ]

    def _known(self, job: Job) -> ScheduledJob | None:
        scheduled = self._scheduled_as(job)
        return scheduled if scheduled is not None and scheduled.is_row(job) else None

    def _scheduled_as(self, job: Job) -> ScheduledJob | None:
        key = (job.job_id, job.seed)
        return self._scheduled.get(key) or self._earlier.get(key)

    async def _positions(self, jobs: Sequence[PlacedJob]) -> set[_Position]:
        """Return where the ops are that may have scheduled these jobs."""
        positions: set[_Position] = set()
        for job, place, _ in jobs:
            if place is not None and place.kind == SCHEDULE:
                positions.add(_Position(place.chain, place.seq))
            else:  # it has changed since it was scheduled
                positions.update(await self._search(job))
        return positions

    async def _search(self, job: Job) -> list[_Position]:
        """Search the log from the job's creation on; the op was bound right after it."""
        if type(job.created_ms) is not int:
            return []
        start = f"{max(0, job.created_ms - _SEARCH_SLACK_MS):013}"
        rows = await self._read("schedule_of", start, _MAX_SEARCHED, job.scheduled_by, job.seed)
        return [_Position(row["node_id"], row["seq"]) for row in rows]

    async def _verify(self, chain: str, seqs: Sequence[int]) -> None:
        """Take in the ops at these numbers of a chain, and those between them, if the author signed them."""
        done = 0
        for index, seq in enumerate(seqs):
            if seq <= done:
                continue
            last = max(each for each in seqs[index:] if each < seq + _MAX_RUN)
            limit = last - seq + self._read_ahead
            run, mark = await self._pages.from_entry(chain, seq, through=last, limit=limit)
            if not run or run[0].seq != seq:
                continue
            keys = self._trusted_keys.known(chain, mark)
            if keys is None:
                keys = await self._trusted_keys.of_chain(chain)
            arguments = run, keys, self._store.writer_id.scope_id
            if sum(len(entry.payload) for entry in run) <= _MAX_INLINE_BYTES:
                done, jobs, self._read_ahead = _authentic_jobs(*arguments)
            else:
                done, jobs, self._read_ahead = await asyncio.to_thread(_authentic_jobs, *arguments)
            if not jobs or await self._trusted_keys.is_original(run[done - seq]):
                self._learn(jobs)

    # --- after its predecessors ------------------------------------------------------------------

    async def _before_predecessors(self, waiting: Sequence[Job]) -> set[str]:
        """Set aside the jobs whose predecessors have not ended as they ask, and return their ids."""
        conditions = await self.conditions_of(waiting)
        unmet = await self.ends.unmet(conditions)
        doubted: set[str] = set()
        for job in waiting:
            if job.job_id not in conditions:
                self.doubt(job, "its predecessors can't be read")
            elif (condition := unmet.get(job.job_id)) is not None:
                self.doubt(job, f"no signed op shows the {condition.awaited} of {condition.predecessor}")
            else:
                continue
            doubted.add(job.job_id)
        return doubted

    async def conditions_of(self, jobs: Sequence[Job]) -> dict[str, Sequence[Condition]]:
        """Return by id what jobs wait for, as their authors signed it; unreadable ones are left out."""
        unknown = [await self._queries.placed(job) for job in jobs if self._scheduled_as(job) is None]
        if unknown:
            await self._scheduled_by_author(unknown)
        found: dict[str, Sequence[Condition]] = {}
        for job in jobs:
            scheduled = self._scheduled_as(job)
            conditions = None if scheduled is None else conditions_of(scheduled.item)
            if conditions is not None:
                found[job.job_id] = conditions
        return found

    def causes_of(self, job: Job) -> list[str]:
        """Return the ops that led to a claim: the last one about the job, and those it waited for."""
        scheduled = self._scheduled_as(job)
        if scheduled is None or not scheduled.item.get("after"):
            return [job.last_op]
        awaited = (self.ends.known_op(each) for each in conditions_of(scheduled.item) or ())
        causes = {scheduled.op_id: None, job.last_op: None}
        for op_id in awaited:
            if op_id is not None and len(causes) < _MAX_CAUSES:
                causes[op_id] = None
        return [*causes]

    # --- not put back ----------------------------------------------------------------------------

    def _is_untouched(self, job_id: str, scheduled: ScheduledJob) -> bool:
        """Return whether no op since the one that scheduled a job claims it or ends it."""
        return not self.history.names(job_id) and not self.history.is_missing_since(scheduled.entry_id)

    async def _put_back(self, placed: PlacedJob, scheduled: ScheduledJob) -> _Doubt | None:
        """Return a doubt if a pending job's row shows an earlier state than its last claim or end led to."""
        job, place, _ = placed
        scheduled_at = since = scheduled.entry_id
        token = None
        if place is not None and place.kind in (YIELD, EXPIRE):
            token = await self._released_token(job, place)
            since = since if token is None else place.entry_id
        if self.history.is_missing_since(scheduled_at):
            await self._queries.follow_back(self.history, scheduled_at)
        if self.history.names(job.job_id):
            await self._queries.follow_completions(self.history)
        ends = self.history.ends(job.job_id, token or 0)
        if ends and (doubt := await self._ended(job, ends)) is not None:
            return doubt
        claim = self.history.last_claim(job.job_id)
        is_put_back = claim is not None and claim > since and await self._was_claimed_at(claim, job)
        return _PUT_BACK if is_put_back else None

    async def _released_token(self, job: Job, place: OpPlace) -> int | None:
        """Return the token whose claim the op at a place ended, if it returned the job to the queue."""
        entry = await self._entry(place.entry_id)
        token = None if entry is None else released_token(job, entry.kind, entry.payload)
        return token if token is not None and await self._is_authentic(entry) else None

    async def _ended(self, job: Job, ends: Sequence[LoggedEnd]) -> _Doubt | None:
        """Return a doubt unless the author of each op that would have ended the job says that it did not."""
        if len(ends) == MAX_ENDS:
            return _ENDED
        for end in ends:
            entry = await self._entry(end.entry_id)
            if entry is None or job.job_id not in ended_jobs(entry.kind, entry.payload):
                return _ENDED  # it was removed or changed since it was read
            has_effect = entry.accepted == 1 and (
                entry.result is None or job.job_id in moved_jobs(entry.result)
            )
            if has_effect or entry.kind == ABORT:
                return _ENDED
            if not await self._trusted_keys.is_sealed(entry):
                return _UNSEALED
        return None

    async def _was_claimed_at(self, entry_id: int, job: Job) -> bool:
        """Return whether the entry, which was read before, has claimed the job, and its author signed it."""
        entry = await self._entry(entry_id)
        if entry is None or entry.kind != CLAIM or entry.accepted != 1:
            return True  # it was removed or changed since it was read
        is_claimed = job.job_id in claimed_jobs(entry.payload, entry.result)
        return not is_claimed or await self._trusted_keys.is_authentic(entry)

    async def _is_authentic(self, entry: LogEntry | None) -> bool:
        return entry is not None and entry.accepted == 1 and await self._trusted_keys.is_authentic(entry)

    async def _entry(self, entry_id: int) -> LogEntry | None:
        rows = await self._read("entry_at", entry_id)
        return LogEntry._make(rows[0]) if rows else None

    async def _read(self, name: str, *values: Any) -> Any:
        return await self._store.read(SQL[name], (*self._store.mesh_id, *values))


def _authentic_jobs(
    run: Sequence[LogEntry], keys: Sequence[Key], scope_id: str
) -> tuple[int, dict[ScheduleKey, ScheduledJob], int]:
    """Verify a run. Return the number of its last authentic entry, the jobs scheduled up to it, and how many
    entries to read ahead the next time.
    """
    authentic = authentic_entries(run, keys, scope_id)
    last = authentic[-1].seq if authentic else 0
    return last, jobs_scheduled_by(authentic), _read_ahead_of(authentic)


def _edge_count(scheduled: ScheduledJob) -> int:
    after = scheduled.item.get("after")
    return len(after) if isinstance(after, list | tuple) else 0


def _read_ahead_of(run: Sequence[LogEntry]) -> int:
    """Return how many entries to read ahead, so that they have about a given size."""
    size = sum(len(entry.payload) for entry in run)
    return min(max(_MIN_READ_AHEAD, _READ_AHEAD_BYTES * len(run) // (size + 1)), _MAX_RUN)


def _by_chain(positions: Iterable[_Position]) -> dict[str, list[int]]:
    """Return the numbers of each chain, in order."""
    chains: dict[str, list[int]] = {}
    for chain, seq in sorted(positions):
        chains.setdefault(chain, []).append(seq)
    return chains
