"""Queries: the current state of jobs, read from the replica if there is one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, NotKnown, TooLarge
from vox_mesh.jobs.proof.brief_proof import KeyAt, completed_items
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.json_text import COUNTER_LIMIT
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.jobs.claim_history import ClaimHistory, LoggedClaim, OpPlace
from vox_mesh.model.jobs.policy_roots import PolicyRoots
from vox_mesh.model.jobs.records import UNSUCCESSFUL, Job, JobState, Tags
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.rhythm.bindings import NO_BINDINGS, Openings
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.rows import Row, Rows, Value
from vox_mesh.store.store import Store

_STATES: Final = frozenset(JobState)
_MAX_POSITION: Final = 2**63 - 1
_ID: Final = re.compile(r"[0-9a-f]{64}")
_ID_PREFIX: Final = re.compile(r"[0-9a-f]{6,64}")
_JOB_FIELDS: Final = len(Job._fields)
_MAX_ENTRIES: Final = 2_000
"""How many entries of the log are looked through for claims at a time."""

_PAGE: Final = 100
MAX_LINKS: Final = 20_000  # predecessors or successors of some jobs that are read at once

_MAX_COMPLETIONS: Final = 250
"""How many are looked through for completions, which are larger."""


class KindRules(NamedTuple):
    """The rules of a kind of job."""

    kind: str
    is_paused: bool = False
    max_running: int | None = None
    rate: int | None = None
    rate_ms: int | None = None
    lease_ms: int | None = None
    is_audited: bool = False


class SpendLeft(NamedTuple):
    """What is left of a budget of tokens or money, and what an attempt reserves of it by default."""

    subject: str
    resource: str
    left: int
    reserve: int


class Situation(NamedTuple):
    """The facts that decide which node may claim which jobs."""

    kinds: list[str]
    """The kinds that have unfinished jobs."""
    drains: frozenset[str]
    """The nodes that are draining."""
    rules: dict[str, KindRules]
    """The rules by kind."""
    places: dict[str, int]
    """The number of jobs that each node holds."""
    routed: str | None
    """A marker of the last change of routes; `None` if there is no route."""
    rekeyed: str | None = None
    """A marker of the last key that the owner accepted; `None` if there is none."""
    bindings: Sequence[str] = ()
    """What of the rhythm pending jobs wait for."""
    spend_left: Sequence[SpendLeft] = ()
    """What is left of the budgets of tokens and money."""
    has_tagged: bool = False
    """Whether pending jobs may have tags."""


class Claimable(NamedTuple):
    """The fields of a claimable job that decide whose turn it is."""

    id: int
    job_id: str
    kind: str
    priority: int
    not_before_ms: int
    claim_token: int
    seed: str
    binding: str | None = None
    """What of the rhythm it waits for, read only if any job does."""


class ClaimableJobs(NamedTuple):
    """The jobs of a survey, and the row ids of the ones that no node can claim."""

    jobs: list[Claimable]
    unreadable: list[int]


class Glance(NamedTuple):
    """All pending jobs, which are few, and the number of jobs that each node holds."""

    jobs: list[Claimable]
    places: dict[str, int]


class PlacedJob(NamedTuple):
    """A job, and the place in the log of the op that last changed it, and maybe its entry."""

    job: Job
    place: OpPlace | None
    entry: LogEntry | None = None


class Predecessor(NamedTuple):
    """A condition a job waits for: another job's success, its end, or an op."""

    job_id: str
    predecessor: str
    awaited: str
    state: str
    kind: str


class JobVertex(NamedTuple):
    """A job in a graph: its position in the order of scheduling, and a title for people."""

    job_id: str
    id: int
    kind: str
    state: str
    title: str


class JobQueries:
    """Reads jobs. Methods with `fresh` read from the replica unless it is true."""

    def __init__(self, store: Store, clock: MeshClock) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock

    # --- one job ---------------------------------------------------------------------------------

    async def find(self, reference: str, *, fresh: bool = False) -> Job:
        """Return the job with this id, id prefix or ULID.

        Raises `NotKnown` if there is none, and `BadValue` for an ambiguous or invalid reference.
        """
        rows = await self._candidates(reference, fresh)
        if not rows:
            raise NotKnown(f"there is no job {reference}", hint="run `vox-mesh job list`")
        if len(rows) > 1:
            raise BadValue(
                f"job id {reference} is ambiguous: several jobs begin with it", hint="give more digits"
            )
        return Job.of_row(rows[0])

    async def _candidates(self, reference: str, fresh: bool) -> Rows:
        if is_ulid(reference.upper()):
            rows = await self._read("named", reference.upper(), fresh=fresh)
            if rows or not _ID_PREFIX.fullmatch(reference):  # an id prefix of 26 digits looks like a ULID
                return rows
        if _ID.fullmatch(reference):
            return await self._read("find", json([reference]), fresh=fresh)
        if _ID_PREFIX.fullmatch(reference):
            return await self._read("beginning_with", reference, fresh=fresh)
        raise BadValue(
            f"a job must be given by its id or ULID, got {reference!r}",
            hint="pass the id, at least its first 6 digits, or the ULID",
        )

    async def find_all(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, Job]:
        """Return the jobs that exist, by id."""
        rows = await self._read("find", json(job_ids), fresh=fresh)
        return {row["job_id"]: Job.of_row(row) for row in rows}

    async def pages(
        self, job_ids: Iterable[str], *, fresh: bool = False, size: int = _PAGE
    ) -> AsyncIterator[dict[str, Job]]:
        """Yield the jobs that exist, by id and in the order of the ids, as many at a time as fit."""
        rest = [*job_ids]
        while rest:
            try:
                found = await self.find_all(rest[:size], fresh=fresh)
            except TooLarge:
                if (size := size // 2) == 0:
                    raise
                continue
            yield {job_id: found[job_id] for job_id in rest[:size] if job_id in found}
            rest = rest[size:]

    async def standing(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Return the jobs that exist, by id, read from the database and without manifests."""
        rows = await self._read("standing", json(job_ids), fresh=True)
        return {row["job_id"]: Job.of_row(row) for row in rows}

    async def standing_after(self, position: int, limit: int) -> list[Job]:
        """Return the jobs after a position, oldest first and without manifests."""
        return self._jobs(await self._read("standing_after", position, limit, fresh=True))

    async def completions(self, jobs: Iterable[Job], key_at: KeyAt) -> dict[str, Mapping[str, Any]]:
        """Return by job the item of the op that completed it, which need not be authentic, if one did."""
        ended = [job for job in jobs if job.ended_ms is not None]
        ops = json(dict.fromkeys(job.last_op for job in ended))
        rows = await self._read("completions", json(job.job_id for job in ended), ops, fresh=True)
        return await completed_items(rows, key_at)

    async def still_open(self, job_ids: Sequence[str]) -> list[str]:
        """Return the ids of the jobs that exist and are not terminal."""
        return [row[0] for row in await self._read("still_open", json(job_ids))]

    # --- claiming --------------------------------------------------------------------------------

    async def situation(self, history: ClaimHistory | None = None) -> Situation:
        """Return the facts that decide which node may claim which jobs.

        `history` takes in the claims since it was last read: with it, and before the rows of jobs.
        """
        after = None if history is None else history.position
        until = None if after is None else after + _MAX_ENTRIES
        row = (await self._read("claim_inputs", after, until))[0]
        kinds, drains, rules, places, routed, rekeyed, last_id, claims, bindings, spend, has_tagged = row
        if history is not None:
            await self._follow(history, last_id or 0, orjson.loads(claims))
        parsed = [KindRules._make(each) for each in orjson.loads(rules)]
        return Situation(
            orjson.loads(kinds),
            frozenset(orjson.loads(drains)),
            {each.kind: each for each in parsed},
            orjson.loads(places),
            routed,
            rekeyed,
            orjson.loads(bindings),
            [SpendLeft._make(each) for each in orjson.loads(spend)],
            bool(has_tagged),
        )

    async def glance(self, limit: int) -> Glance | None:
        """Return the pending jobs, or `None` if a survey must tell: more jobs, or some that can't be claimed.

        It takes a small part of the time of `situation` and `claimable`.
        """
        rows = await self._read("glance", limit)
        pending, places = rows[0][:2]
        found = [row[2:] for row in rows if row[2] is not None]
        if pending != len(found) or not all(_is_claimable(*row) for row in found):
            return None
        return Glance([Claimable(*row) for row in found], orjson.loads(places))

    async def _follow(self, history: ClaimHistory, last_id: int, claims: Sequence[LoggedClaim]) -> None:
        """Take in the first claims since the position of the history, and then all others."""
        after = history.position
        if after is None or last_id < after:
            history.begin(last_id)
            return
        history.learn(claims, min(last_id, after + _MAX_ENTRIES))
        while (after := history.position or 0) < last_id:
            until = min(last_id, after + _MAX_ENTRIES)
            history.learn(await self._read("claims_between", after, until), until)

    async def follow_back(self, history: ClaimHistory, entry_id: int) -> None:
        """Read the claims since an entry that precedes the history, as far as it goes back."""
        while history.is_missing_since(entry_id):
            first_id = max(0, history.start - _MAX_ENTRIES)
            rows = await self._read("claims_between", first_id, history.start)
            history.learn_earlier(rows, first_id)

    async def follow_completions(self, history: ClaimHistory) -> None:
        """Read the completions in the part of the log whose claims are known."""
        while (span := history.next_completions(_MAX_COMPLETIONS)) is not None:
            history.learn_completions(await self._read("completions_between", *span), *span)

    # --- queue -----------------------------------------------------------------------------------

    async def ready(self, kinds: Sequence[str], limit: int = 100) -> list[Job]:
        """Return claimable jobs of these kinds, by priority and then by age."""
        return await self._read_jobs("ready", (json(kinds), self._clock.now_ms), limit)

    async def claimable(
        self,
        kinds: Sequence[str],
        limit: int,
        *,
        at_ms: int,
        but_of: Sequence[str],
        policy_roots: PolicyRoots | None = None,
        openings: Openings = NO_BINDINGS,
        spend_left: Sequence[SpendLeft] = (),
        tags: Tags | None = None,
    ) -> ClaimableJobs:
        """Return jobs claimable at a time, by priority and then by age, without those of some accounts.

        If policy roots are given, only jobs with one of them are returned. Of jobs bound to the rhythm, only
        those whose binding is open are returned, with the time since when it is. With `spend_left`, only
        those for which enough tokens and money are left. If tags are given, only jobs that have no others.
        """
        values = (json(kinds), at_ms, limit)
        is_plain = policy_roots is None and openings is NO_BINDINGS and tags is None
        if but_of or spend_left or not is_plain:
            roots = None if policy_roots is None else json(policy_roots)
            left = json(map(tuple, spend_left)) if spend_left else None
            own_tags = None if tags is None else json(sorted(tags))
            but = (json(but_of), roots, json(openings.latest), left, own_tags)
            rows = await self._read("claimable_but", *values, *but)
        else:
            rows = await self._read("claimable", *values)
        jobs = [_since_opening(Claimable(*row), openings) for row in rows if _is_claimable(*row)]
        unreadable = [row[0] for row in rows if not _is_claimable(*row)] if len(jobs) < len(rows) else []
        return ClaimableJobs(jobs, unreadable)

    async def still_claimable(self, chosen: Sequence[Claimable]) -> list[PlacedJob]:
        """Return the jobs that are still claimable; only the first ones if all do not fit into one answer."""
        ids = json(each.id for each in chosen)
        rows = await self._read_some("still_claimable", (ids,), len(chosen))
        return [
            PlacedJob(Job._make(job), _place(chain, seq, kind, entry_id))
            for *job, _, chain, seq, kind, entry_id in rows
        ]

    async def still_pending(self, chosen: Sequence[Claimable]) -> list[Claimable]:
        """Return the jobs that are pending by the database itself: a replica may be behind."""
        rows = await self._read("still_pending", json(each.id for each in chosen), fresh=True)
        pending = {row[0] for row in rows}
        return [each for each in chosen if each.id in pending]

    async def claimable_with_op(self, chosen: Claimable) -> list[PlacedJob]:
        """Return a job, if it is still claimable, with the entry of its last op."""
        rows = await self._read("claimable_with_op", chosen.id)
        return [_with_op(Job._make(row[:_JOB_FIELDS]), row[_JOB_FIELDS:]) for row in rows]

    async def placed(self, job: Job) -> PlacedJob:
        """Return the job with the place of its last op."""
        rows = await self._read("place", job.last_op)
        return PlacedJob(job, OpPlace._make(rows[0]) if rows else None)

    async def next_due_ms(self, kinds: Sequence[str], *, at_ms: int | None = None) -> int | None:
        """Return the time in ms when the next job of these kinds becomes claimable."""
        due: int | None = (await self._read("next_due", json(kinds), at_ms or self._clock.now_ms)).value
        return due

    async def overdue(self, limit: int = 100) -> list[Job]:
        """Return held jobs with expired leases, without manifests; no node can expire one with a `fault`."""
        return self._jobs(await self._read("overdue", self._clock.now_ms, limit))

    async def held_by(self, node_id: str, *, fresh: bool = False) -> list[Job]:
        """Return the jobs that a node holds, without manifests."""
        held = self._jobs(await self._read("held_by", node_id, fresh=fresh))
        return [job for job in held if job.fault is None]

    async def not_held(self, held: Iterable[tuple[str, int]], node_id: str) -> list[str]:
        """Return the ids of the jobs, given by id and claim token, that the node does not hold any more."""
        return [row[0] for row in await self._read("not_held", json(held), node_id)]

    # --- lists -----------------------------------------------------------------------------------

    async def listed(
        self,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        claimer: str | None = None,
        agent: str | None = None,
        ulids: tuple[str, str] | None = None,
        before: int | None = None,
        down_to: int = 0,
        limit: int = 100,
    ) -> list[Job]:
        """Return jobs, newest first; `kind` may be a pattern such as `cortex.*`.

        `agent` holds them, and `ulids` are the first and the last one of a run. `before` and `down_to` bound
        their positions, and so how many jobs are looked at.
        """
        name = list_name("list", state, agent, ulids)
        before = _MAX_POSITION if before is None else before
        more = (state, down_to, agent, *(ulids or (None, None)))
        return await self._read_jobs(name, (kind, claimer, before), limit, *more)

    async def of_run(self, first: str, last: str) -> list[Job]:
        """Return the jobs whose ULIDs are between these, read from the database."""
        values = (*self._store.mesh_id, first, last)
        return [Job._make(row) for row in await self._store.read(SQL["of_run"], values, fresh=True)]

    async def runs(self, scanned: int, limit: int) -> list[Row]:
        """Return the newest runs of workflows among the newest jobs."""
        return [*await self._store.read(SQL["runs"], (*self._store.mesh_id, scanned, limit))]

    async def newest_position(self) -> int:
        """Return the position of the job that was scheduled last, in any mesh of the database."""
        return (await self._store.read(SQL["newest"])).value or 0

    async def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of jobs by kind and state; a state without jobs is not listed, and reads as 0."""
        counts: dict[str, dict[str, int]] = {}
        for row in await self._read("counts"):
            if row["state"] in _STATES and type(row["jobs"]) is int:
                counts.setdefault(row["kind"], Counter())[row["state"]] = row["jobs"]
        return counts

    async def count_open(self, _: int) -> int:
        """Return the number of jobs that have not ended."""
        counts = (await self.counts()).values()
        return sum(
            jobs for of_kind in counts for state, jobs in of_kind.items() if not JobState(state).is_end
        )

    async def oldest_pending(self) -> dict[str, int]:
        """Return by kind the time in ms since when its oldest pending job has been claimable."""
        return {row["kind"]: row["since_ms"] for row in await self._read("oldest_pending")}

    async def predecessors(self, job_ids: Iterable[str], limit: int = MAX_LINKS) -> list[Predecessor]:
        """Return the first conditions that these jobs wait for or waited for."""
        return [Predecessor._make(row) for row in await self._read("predecessors", json(job_ids), limit)]

    async def successors(self, job_ids: Iterable[str], limit: int = MAX_LINKS) -> list[str]:
        """Return the ids of the first jobs that wait or waited for these."""
        return [row[0] for row in await self._read("successors", json(job_ids), limit)]

    async def linked_open(self, limit: int) -> list[str]:
        """Return the ids of open jobs that depend on others or have others depend on them."""
        return [row[0] for row in await self._read("linked_open", limit)]

    async def vertices(self, job_ids: Iterable[str]) -> list[JobVertex]:
        """Return the jobs that exist as graphs show them, read from the database."""
        rows = await self._read("vertices", json(job_ids), fresh=True)
        return [JobVertex._make(map(_plain, (*row[:4], row[4] or row[2]))) for row in rows]

    async def _read_jobs(self, name: str, values: Sequence[Value], limit: int, *more: Value) -> list[Job]:
        """Return up to `limit` jobs, fewer if more do not fit into one answer."""
        return self._jobs(await self._read_some(name, values, limit, *more))

    async def _read_some(self, name: str, values: Sequence[Value], limit: int, *more: Value) -> Rows:
        while True:
            try:
                return await self._read(name, *values, limit, *more)
            except TooLarge:
                if limit == 1:
                    raise
                limit //= 2

    def _jobs(self, rows: Rows) -> list[Job]:
        return [Job.of_row(row) for row in rows]

    async def _read(self, name: str, *values: Any, fresh: bool = False) -> Rows:
        return await self._store.read(SQL[name], (*self._mesh, *values), fresh=fresh)


def list_name(form: str, state: JobState | None, agent: str | None, ulids: tuple[str, str] | None) -> str:
    """Return the name of the statement that reads a list with these filters by the best index."""
    if ulids is not None:
        return f"{form}_of_run"
    if agent is not None:
        return f"{form}_of_agent"
    if state is None or state == JobState.SUCCEEDED:
        return form
    return f"{form}_failed" if state in UNSUCCESSFUL else f"{form}_open"


def _plain(value: Any) -> Any:
    """Return a value as JSON can have it: bytes, which only a hostile row holds, as text."""
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def _with_op(job: Job, op: tuple[Value, ...]) -> PlacedJob:
    if op[0] is None:
        return PlacedJob(job, None)
    entry: LogEntry = LogEntry._make(op)
    return PlacedJob(job, OpPlace(entry.node_id, entry.seq, entry.kind, entry.id), entry)


def _since_opening(job: Claimable, openings: Openings) -> Claimable:
    """Return a job that was ready before its binding opened as ready since then: ranks count from there."""
    opening = None if job.binding is None else openings.open.get(job.binding)
    return job if opening is None else job._replace(not_before_ms=max(job.not_before_ms, opening.begins_ms))


def _place(chain: Any, seq: Any, kind: Any, entry_id: Any) -> OpPlace | None:
    return None if chain is None else OpPlace(chain, seq, kind, entry_id)


def _is_claimable(
    _id: int, job_id: object, kind: object, _p: int, _at: int, token: object, seed: object, _b: object = None
) -> bool:
    """Return whether the columns hold such values: only a hostile row does not, and no node can claim it."""
    are_texts = type(job_id) is str and type(kind) is str and type(seed) is str
    is_counter = type(token) is int and 0 <= token < COUNTER_LIMIT
    return are_texts and is_counter and _ID.fullmatch(str(job_id)) is not None


def json(values: Iterable[object]) -> str:
    """Return values as a JSON array."""
    return orjson.dumps(list(values)).decode()
