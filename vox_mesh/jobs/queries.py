"""The roster: where jobs stand, read from the replica where there is one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, NotKnown, TooLarge
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.jobs.records import GONE_WRONG, Job, JobState
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.store import Store

_ID: Final = re.compile(r"[0-9a-f]{64}")
_BEGINNING: Final = re.compile(r"[0-9a-f]{6,64}")


class KindRules(NamedTuple):
    """What was decided of a kind of job."""

    kind: str
    is_paused: bool = False
    max_running: int | None = None
    rate: int | None = None
    rate_ms: int | None = None
    lease_ms: int | None = None
    is_audited: bool = False


class Situation(NamedTuple):
    """What decides of who may claim jobs."""

    kinds: list[str]
    """Those of which there are jobs to be done, now or later."""
    drains: frozenset[str]
    """The nodes that are to take no more work."""
    rules: dict[str, KindRules]
    """What was decided of kinds."""
    places: dict[str, int]
    """How many jobs each node has in hand."""
    routed: str | None
    """When the owner said something of routes last."""


class Claimable(NamedTuple):
    """Of a job that can be claimed, what decides of whose turn it is: a small part of it."""

    id: int
    job_id: str
    kind: str
    priority: int
    not_before_ms: int
    claim_token: int
    seed: str


class Predecessor(NamedTuple):
    """What a job waits for: another job's success, its end, or an op."""

    job_id: str
    predecessor: str
    awaited: str
    state: str
    kind: str


class JobQueries:
    """Answers where jobs stand."""

    def __init__(self, store: Store, clock: MeshClock) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._clock = clock

    # --- one job ---------------------------------------------------------------------------------

    async def find(self, reference: str, *, fresh: bool = False) -> Job:
        """The job with this id, ULID, or beginning of an id."""
        rows = await self._candidates(reference, fresh)
        if not rows:
            raise NotKnown(f"there is no job {reference}", hint="`vox-mesh job list` shows them")
        if len(rows) > 1:
            raise BadValue(f"several jobs begin with {reference}", hint="give more of the id")
        return Job._make(rows[0])

    async def _candidates(self, reference: str, fresh: bool) -> Rows:
        if is_ulid(reference.upper()):
            rows = await self._read("named", reference.upper(), fresh=fresh)
            if rows or not _BEGINNING.fullmatch(reference):  # 26 digits of an id look like a ULID
                return rows
        if _ID.fullmatch(reference):
            return await self._read("find", json([reference]), fresh=fresh)
        if _BEGINNING.fullmatch(reference):
            return await self._read("beginning_with", reference, fresh=fresh)
        raise BadValue(
            f"{reference!r} is no job",
            hint="give its id, at least the first 6 digits of it, or its ULID",
        )

    async def find_all(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, Job]:
        """Those of the jobs that are there, by their ids."""
        rows = await self._read("find", json(job_ids), fresh=fresh)
        return {row["job_id"]: Job._make(row) for row in rows}

    async def standing(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """The same at the database itself, without their manifests."""
        rows = await self._read("standing", json(job_ids), fresh=True)
        return {row["job_id"]: Job._make(row) for row in rows}

    async def still_open(self, job_ids: Sequence[str]) -> list[str]:
        """Return the ids of those jobs that exist and have not ended."""
        return [row[0] for row in await self._read("still_open", json(job_ids))]

    # --- who may do what -------------------------------------------------------------------------

    async def situation(self) -> Situation:
        """All that decides of who may claim jobs, as it is now."""
        kinds, drains, rules, places, routed = (await self._read("situation"))[0]
        found = [KindRules._make(each) for each in orjson.loads(rules)]
        return Situation(
            orjson.loads(kinds),
            frozenset(orjson.loads(drains)),
            {each.kind: each for each in found},
            orjson.loads(places),
            routed,
        )

    # --- what is to be done ----------------------------------------------------------------------

    async def ready(self, kinds: Sequence[str], limit: int = 100) -> list[Job]:
        """Jobs of these kinds that can be claimed now: the most urgent first, then the longest waiting."""
        return await self._as_many("ready", (json(kinds), self._clock.now_ms), limit)

    async def claimable(
        self, kinds: Sequence[str], limit: int, *, at_ms: int, but_of: Sequence[str]
    ) -> list[Claimable]:
        """The same at a time, of each only what choosing takes; without those charged to some accounts."""
        values = (json(kinds), at_ms, limit)
        if but_of:
            rows = await self._read("claimable_but", *values, json(but_of))
        else:
            rows = await self._read("claimable", *values)
        return [Claimable._make(row) for row in rows]

    async def still_claimable(self, chosen: Sequence[Claimable]) -> list[Job]:
        """The whole of those that still can be; of the first of them, if all are too large for one answer."""
        return await self._as_many("still_claimable", (json(each.id for each in chosen),), len(chosen))

    async def next_due_ms(self, kinds: Sequence[str], *, at_ms: int | None = None) -> int | None:
        """When the next job of these kinds can be claimed that can't be yet."""
        due: int | None = (await self._read("next_due", json(kinds), at_ms or self._clock.now_ms)).value
        return due

    async def overdue(self, limit: int = 100) -> list[Job]:
        """Jobs in hand whose lease has run out, without their manifests."""
        return self._jobs(await self._read("overdue", self._clock.now_ms, limit))

    async def held_by(self, node_id: str, *, fresh: bool = False) -> list[Job]:
        """The jobs that a node has in hand, without their manifests."""
        return self._jobs(await self._read("held_by", node_id, fresh=fresh))

    async def not_held(self, held: Iterable[tuple[str, int]], node_id: str) -> list[str]:
        """Which of these, given by id and token, the node has in hand no more."""
        return [row[0] for row in await self._read("not_held", json(held), node_id)]

    # --- all of them -----------------------------------------------------------------------------

    async def listed(
        self,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        claimer: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """Jobs, the newest first; of a kind, or of all that a pattern such as `cortex.*` is of."""
        name = "list"
        if state is not None:
            name = "list_gone_wrong" if state in GONE_WRONG else "list" if state.is_end else "list_open"
        return await self._as_many(name, (kind, claimer, before), limit, state)

    async def counts(self) -> dict[str, dict[str, int]]:
        """How many jobs there are of each kind, by state."""
        counts: dict[str, dict[str, int]] = {}
        for row in await self._read("counts"):
            counts.setdefault(row["kind"], {})[row["state"]] = row["jobs"]
        return counts

    async def oldest_pending(self) -> dict[str, int]:
        """Since when the longest waiting job of each kind could be claimed."""
        return {row["kind"]: row["since_ms"] for row in await self._read("oldest_pending")}

    async def predecessors(self, job_ids: Iterable[str]) -> list[Predecessor]:
        """What these jobs wait for, or waited for."""
        return [Predecessor._make(row) for row in await self._read("predecessors", json(job_ids))]

    async def successors(self, job_ids: Iterable[str]) -> list[str]:
        """Which jobs wait for these, or waited for them."""
        return [row[0] for row in await self._read("successors", json(job_ids))]

    async def _as_many(self, name: str, values: Sequence[Value], limit: int, *more: Value) -> list[Job]:
        """Up to so many jobs; fewer, where they are so large that no more fit into an answer."""
        while True:
            try:
                return self._jobs(await self._read(name, *values, limit, *more))
            except TooLarge:
                if limit == 1:
                    raise
                limit //= 2

    def _jobs(self, rows: Rows) -> list[Job]:
        return [Job._make(row) for row in rows]

    async def _read(self, name: str, *values: Any, fresh: bool = False) -> Rows:
        return await self._store.read(SQL[name], (*self._mesh, *values), fresh=fresh)


def json(values: Iterable[object]) -> str:
    """Values as a JSON array."""
    return orjson.dumps(list(values)).decode()
