"""Spooled jobs: scheduled while the database was unreachable, and kept on this machine until it is back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from vox_mesh.errors import DatabaseUnavailable, Unreachable
from vox_mesh.jobs.queries import JobQueries, json
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.jobs.records import SCHEDULE, matches
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.store.spool.spool import SpooledOp

SPOOLED: Final = "spooled"
REFUSED: Final = "refused"

_MAX_OPS: Final = 100_000
"""How many spooled ops are searched for a predecessor: more than a spool holds."""


_FEW: Final = 16


class SpooledJob(NamedTuple):
    """A job in a spool: `spooled` until its op is replayed, `refused` if the database refused that."""

    job_id: str
    ulid: str
    kind: str
    priority: int
    state: str
    scheduled_ms: int
    reason: str | None


class SpooledJobs:
    """The jobs in the spool of this node."""

    def __init__(self, store: Store, queries: JobQueries) -> None:
        self._store = store
        self._queries = queries

    async def listed(self, kind: str | None = None, limit: int = 100) -> list[SpooledJob]:
        """Return refused jobs, then those to replay, in order; `kind` may be a pattern such as `cortex.*`."""
        queue = self._store.spool_queue
        return [] if queue is None else select_spooled(await queue.ops(SCHEDULE, _MAX_OPS), kind, limit)

    @property
    def is_expected(self) -> bool:
        """Return whether a job that is scheduled now would be spooled, as far as is known."""
        can_spool = self._store.spool_queue is not None
        return self._store.is_spooling or (can_spool and self._store.is_unreachable)

    async def job_ids(self, references: Sequence[str]) -> dict[str, str]:
        """Return the ids of the jobs with these prefixes or ULIDs, in the spool or in the database.

        Raises `Unreachable` for one that is not in the spool while the database is unreachable.
        """
        waiting = await self._waiting() if references and self._store.is_spooling else {}
        found = await self._ids_of_many(references)
        fault: DatabaseUnavailable | None = None
        for name in references:
            if name in found:
                continue
            job_id = waiting.get(name) or waiting.get(name.upper())
            if job_id is None and not self._store.is_unreachable:
                try:
                    job_id = (await self._queries.find(name, fresh=True)).job_id
                except DatabaseUnavailable as error:
                    if self._store.spool_queue is None:
                        raise
                    fault = error
            if job_id is None:
                raise Unreachable(
                    f"predecessor {name} can't be looked up: {fault or 'the database is unreachable'}",
                    hint="give the full id of the job, or wait until the database is back",
                )
            found[name] = job_id
        return found

    async def _ids_of_many(self, references: Sequence[str]) -> dict[str, str]:
        """Return the ids of jobs by their ULIDs if they are many: one by one takes long."""
        if len(references) <= _FEW or self._store.is_spooling or self._store.is_unreachable:
            return {}
        values = (*self._store.mesh_id, json(name for name in references if is_ulid(name)))
        return {row[0]: row[1] for row in await self._store.read(SQL["ids_of_ulids"], values, fresh=True)}

    async def _waiting(self) -> dict[str, str]:
        """Return the ids of the jobs to replay, by id and by ULID."""
        jobs = await self.listed(limit=_MAX_OPS)
        pairs = [(job.job_id, job.ulid) for job in jobs if job.state == SPOOLED]
        return {name: job_id for job_id, ulid in pairs for name in (job_id, ulid)}


def spooled_in(paths: Iterable[Path], kind: str | None, limit: int) -> list[SpooledJob]:
    """Return the jobs in spool files, which other processes may own."""
    from vox_mesh.store.spool.spool import ops_of  # imported late: only servers have spools

    return select_spooled([op for path in paths for op in ops_of(path, SCHEDULE, _MAX_OPS)], kind, limit)


def select_spooled(ops: Iterable[SpooledOp], kind: str | None, limit: int) -> list[SpooledJob]:
    """Return the first jobs of a kind that spooled ops schedule."""
    jobs = (job for op in ops for job in _jobs_of(op) if kind is None or matches(kind, job.kind))
    return [job for _, job in zip(range(limit), jobs, strict=False)]


def _jobs_of(op: SpooledOp) -> list[SpooledJob]:
    payload = orjson.loads(op.payload)
    state = SPOOLED if op.reason is None else REFUSED
    return [
        SpooledJob(
            *(item["job_id"], item["ulid"], item["kind"], item["priority"]),
            *(state, payload["at_ms"], op.reason),
        )
        for item in payload["jobs"]
    ]
